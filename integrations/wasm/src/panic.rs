//! Messages of panics, such as those of the tokenizers library on some malformed files.
//!
//! A panic in WebAssembly traps: the call ends at once, and JavaScript gets an error without a message. So the message is
//! kept here until `js/guard.js` takes it.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};

use wasm_bindgen::prelude::*;

static MESSAGE: Mutex<Option<String>> = Mutex::new(None);

/// Called when the module starts.
#[wasm_bindgen(start)]
pub fn keep_messages() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo| {
        let message = info.payload_as_str().unwrap_or("without a message").to_string();
        *MESSAGE.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }));
}

/// The message of the last panic, once.
#[wasm_bindgen(js_name = takePanic)]
pub fn take_panic() -> Option<String> {
    MESSAGE.lock().unwrap_or_else(PoisonError::into_inner).take()
}

//! What a fuzzer sets up once.

use std::cell::RefCell;
use std::panic;

thread_local! {
    /// What the last panic of this thread said.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Sets up a fuzzer of one process.
///
/// The only thread of rayon's pool is the calling one, so that no input waits for another thread to wake up. A panic
/// that the crate catches, such as one of a tokenizer, is no finding and is not printed; one that leaves a target is
/// both.
pub fn start() {
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().expect("the first use of rayon");
    panic::set_hook(Box::new(|info| LAST.set(info.to_string())));
}

/// Runs a target and stops the process at a panic, which libFuzzer then reports with the input.
pub fn report(target: fn(&[u8]), bytes: &[u8]) {
    if panic::catch_unwind(|| target(bytes)).is_err() {
        eprintln!("{}", LAST.take());
        std::process::abort();
    }
}

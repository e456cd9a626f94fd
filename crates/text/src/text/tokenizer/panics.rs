//! Panics of the tokenizers library as errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_attention::{Error, Result};

/// Runs code of the tokenizers library, and makes an error of a panic. The message of the panic is still printed,
/// because only the program may replace the hook that does so.
pub(super) fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| Error::Tokenizer(e.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
            let text = text.unwrap_or("a panic without a message");
            Err(Error::Tokenizer(format!("`tokenizer.json` is malformed: {text}")))
        }
    }
}

//! Errors as JavaScript's `Error`.

use wasm_bindgen::JsError;

/// The result of an exported function.
pub type Result<T> = std::result::Result<T, JsError>;

/// An error about a value that a user passed, in the words of the crate's errors.
pub fn value(what: &str, found: &str, expected: &str) -> JsError {
    JsError::new(&format!("{what} is {found}, expected {expected}"))
}

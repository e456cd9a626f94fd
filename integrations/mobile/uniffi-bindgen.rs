//! UniFFI's program that writes bindings, at the version of this package.

fn main() {
    uniffi::uniffi_bindgen_main();
}

//! Exports the stack pointer of the module, which `js/guard.js` puts back after a panic.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|target| target == "wasm32") {
        println!("cargo::rustc-link-arg-cdylib=--export=__stack_pointer");
    }
    println!("cargo::rerun-if-changed=build.rs");
}

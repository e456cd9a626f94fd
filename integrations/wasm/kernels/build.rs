//! Makes imports of what the C library for WASI does not have, which `wasi.mjs` gives: starting threads.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|target| target == "wasi") {
        println!("cargo::rustc-link-arg=--allow-undefined");
    }
    println!("cargo::rerun-if-changed=build.rs");
}

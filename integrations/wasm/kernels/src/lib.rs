//! The CPU kernels of the crate with their tests, and of the rest only what they use.
//!
//! These tests run on WebAssembly too, where addresses have 32 bits and there are no threads. Other tests of the crate need
//! one or the other, and some of its dev-dependencies do not compile there.
#![allow(dead_code, unused_imports, reason = "what only the rest of the crate calls")]

#[path = "../../../../src/error/mod.rs"]
mod error;
mod kernels;
mod tensor;

//! Kernels for the CPU and for CUDA, over slices, strides and launch parameters.
//!
//! Nearly all `unsafe` of the crate is in this room. Kernels take no tensor, no mask of the API and no configuration, so
//! that they can be tested against plain loops, and so that whoever reads them for soundness need not read anything else.
#![allow(unsafe_code)]

mod activation;
pub mod cpu;
pub(crate) mod cuda;

pub use activation::Activation;

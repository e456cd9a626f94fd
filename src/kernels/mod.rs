//! The kernels: over slices, strides and launch parameters. Nearly all `unsafe` of the crate is in here.
#![allow(unsafe_code)]

mod activation;
pub(crate) mod cpu;
pub(crate) mod cuda;

pub(crate) use activation::Activation;

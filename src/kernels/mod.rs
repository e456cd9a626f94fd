//! The kernels: over slices, strides and launch parameters. Nearly all `unsafe` of the crate is in here.
#![allow(unsafe_code)]

pub(crate) mod cpu;
pub(crate) mod cuda;

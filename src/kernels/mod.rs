//! The launching of CUDA kernels, over addresses, strides and launch parameters. The kernels for CPUs are a package of
//! their own, `candle-attention-kernels`.
//!
//! Nearly all `unsafe` of this package is in this room. Kernels take no tensor, no mask of the API and no
//! configuration, so that they can be tested against plain loops, and so that whoever reads them for soundness need not
//! read anything else.
#![allow(unsafe_code)]

pub(crate) mod cuda;

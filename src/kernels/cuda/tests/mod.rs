//! The CUDA kernels on an emulated GPU, against f64 loops.

mod attention;
pub(in crate::kernels) mod emulator;
mod non_finite;
mod rowwise;

//! The CUDA kernels on an emulated GPU, against f64 loops.

mod attention;
mod emulator;
mod non_finite;
mod report;

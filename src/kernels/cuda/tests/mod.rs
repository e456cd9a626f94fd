//! The CUDA kernels on an emulator of a GPU.

mod emulated;
mod emulated_rows;
mod emulator;

//! Fused attention on NVIDIA GPUs: CUDA C++ that is compiled by NVRTC where it runs, for the shape at hand.
//!
//! `source/` has two kernels, one on ordinary cores in f32 for any element type and any GPU, one on tensor cores for 16-bit
//! types; [`Variant`] chooses. Tests run them on a CPU, by `source/emulator.hpp` in place of `source/device.cuh`.

mod params;
mod variant;

pub(crate) use params::Params;
pub(crate) use variant::{Features, Gpu, Shape, Variant};

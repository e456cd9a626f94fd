//! Fused attention on NVIDIA GPUs: CUDA C++ that is compiled by NVRTC where it runs, for the shape at hand.
//!
//! `source/` has two kernels, one on ordinary cores in f32 for any element type and any GPU, one on tensor cores for 16-bit
//! types; [`Variant`] chooses. Tests run them on a CPU, by `source/emulator.hpp` in place of `source/device.cuh`.

#[cfg(feature = "cuda")]
mod compile;
#[cfg(feature = "cuda")]
mod launch;
mod params;
mod variant;

#[cfg(feature = "cuda")]
pub(crate) use launch::{Launch, gpu};
pub(crate) use params::Params;
pub(crate) use variant::Features;
#[cfg(test)]
pub(crate) use variant::{Gpu, Shape, Variant};

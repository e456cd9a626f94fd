//! Fused attention on NVIDIA GPUs: CUDA C++ that is compiled by NVRTC where it runs, for the shape at hand.
//!
//! `source/` has two kernels of attention, one on ordinary cores in f32 for any element type and any GPU, one on tensor cores
//! for 16-bit types, of which [`Variant`] chooses, and in `rows.cuh` what lies between products. Tests run them on a CPU, by
//! `source/emulator.hpp` in place of `source/device.cuh`.

#[cfg(feature = "cuda")]
mod compile;
mod device;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(any(test, feature = "cuda"))]
mod params;
#[cfg(feature = "cuda")]
mod queue;
#[cfg(any(test, feature = "cuda"))]
mod rows;
#[cfg(feature = "cuda")]
mod rows_launch;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "cuda"))]
mod variant;

pub(crate) use device::Gpu;
#[cfg(feature = "cuda")]
pub(crate) use launch::Launch;
#[cfg(feature = "cuda")]
pub(crate) use memory::{capturing, gpu};
#[cfg(any(test, feature = "cuda"))]
pub(crate) use params::Params;
#[cfg(test)]
pub(crate) use rows::{ActivateParams, NormParams, Places, RotateParams, Rows};
#[cfg(feature = "cuda")]
pub(crate) use rows_launch::{activated, norm, rotate};
#[cfg(any(test, feature = "cuda"))]
pub(crate) use variant::{Features, Shape, Variant};

//! CUDA kernels of fused attention, over addresses, strides and launch parameters.
//!
//! The kernels are CUDA C++ in `source/`, compiled by NVRTC on the user's machine when a problem shape first occurs.
//! Building the crate needs no CUDA toolkit, and each kernel is specialized: head dimensions, tile sizes and mask
//! features are compile-time constants, so that a feature that is off costs nothing. Precompiled kernels were rejected:
//! every combination of dtype, head dimension, tile and feature, for every architecture, would be hundreds of binaries
//! built in advance.
//!
//! There are two kernels, between which [`Variant`] chooses: `simt.cuh` computes in f32 on CUDA cores, for
//! any element type and any GPU; `tensor_core.cuh` uses tensor cores for 16-bit types. They differ only in how they
//! multiply. Work distribution, masks, scores, the online softmax step and output are one code for both
//! (`work_item.cuh`, `mask.cuh`, `output.cuh`), so that a mask has the same meaning in both. Tests run the same sources
//! on a CPU: `tests/cuda_emulator/emulator.hpp` takes the place of `device.cuh`.

#[cfg(feature = "cuda")]
mod compile;
mod device;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(any(test, feature = "cuda"))]
mod launch_size;
#[cfg(test)]
#[path = "../../../tests/unit/cuda/mod.rs"]
mod tests;
#[cfg(feature = "cuda")]
mod upload;
#[cfg(any(test, feature = "cuda"))]
mod variant;

pub(crate) use device::Gpu;
#[cfg(feature = "cuda")]
pub(crate) use device::{capturing, gpu};
#[cfg(feature = "cuda")]
pub(crate) use launch_size::LaunchSize;
#[cfg(any(test, feature = "cuda"))]
pub(crate) use launch_size::{to_i32, to_i32_positions};
#[cfg(feature = "cuda")]
pub(crate) use upload::Uploads;
#[cfg(any(test, feature = "cuda"))]
pub(crate) use variant::AttentionParams;
#[cfg(feature = "cuda")]
pub(crate) use variant::vectorizable;
#[cfg(any(test, feature = "cuda"))]
pub(crate) use variant::{Features, ProblemShape, Variant};

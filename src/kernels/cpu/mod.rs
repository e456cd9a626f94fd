//! CPU kernels over slices and strides. The algorithm is written once, generic over [`simd::Simd`]; an instruction set
//! only instantiates it. All `unsafe` of the crate but one memory map is in here.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod batch;
mod blocks;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // no other has such instructions
mod blocks_pairs;
mod core;
mod element;
mod exp;
mod gelu;
mod gemm;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // no other has such instructions
mod gemm_pairs;
mod heads;
mod isa;
mod mask;
#[cfg(target_arch = "aarch64")]
mod neon;
mod output;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // no other has such instructions
mod pairs;
#[cfg(feature = "encoder")]
mod rows;
mod simd;
mod soften;
#[cfg(test)]
pub(super) mod tests;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_bf16;

pub(crate) use attention::{Attention, attend, scratch_floats};
pub(crate) use batch::Batch;
pub(crate) use element::Element;
pub(crate) use gemm::Packed;
pub(crate) use heads::Heads;
pub(crate) use isa::Isa;
pub(crate) use mask::{Broadcast, Distances, Lengths, Mask, MaskStructure};
#[cfg(feature = "encoder")]
pub(crate) use rows::add_norm;

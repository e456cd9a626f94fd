//! CPU kernels over slices and strides: fused attention, products with packed weights, layer normalization.
//!
//! **Each algorithm is written once**, generic over [`Simd`](isa::simd::Simd), and an instruction set only instantiates
//! it. Kernels written per instruction set would be several copies of the same loops, and the tests of one copy would
//! say nothing about the next. Leaving the vectors to the compiler was rejected, too: it may not change the
//! order of the terms of a floating-point sum, so it does not vectorize one, and it does not keep a tile of sums in
//! registers.
//!
//! **An instruction set is a value**, a capability token that only run-time detection returns
//! ([`InstructionSet`](isa::kernel::InstructionSet)). A binary runs on any processor, so the instructions may be
//! missing, and to execute a missing one is undefined behavior. With tokens, the check is made once, the value proves
//! it wherever it goes, and operations on registers are safe methods. Function pointers, or a check in each operation,
//! would forbid inlining, and with it registers that live longer than one operation. [memchr](https://docs.rs/memchr)
//! has the same design.
//!
//! **Attention takes the keys in blocks with an online softmax** ([Milakov 2018](https://arxiv.org/abs/1805.02867),
//! [Rabe 2021](https://arxiv.org/abs/2112.05682), [Dao 2022](https://arxiv.org/abs/2205.14135)). A score matrix would
//! be written to memory and read back three times, and it grows with the square of the sequence length. A tile of
//! scores by one key block stays in the L1 cache. Blocks start at key 0 and have one size, so results do not depend on
//! the batch.
//!
//! From the bottom up: [`isa`], [`math`], element types and the [`microkernel`]; then the attention problem, its masks
//! and biases by distance, score tiles and online softmax; and packing and products beside them. Nothing here takes a
//! `Tensor`, an attention mask of the API, or a configuration.

mod aligned;
mod attention;
mod distance_bias;
mod distance_products;
mod element;
mod gemm;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has bf16 products"))]
mod gemm_bf16;
mod gemm_f32;
mod gemm_task;
mod isa;
mod mask;
mod math;
mod max_sim;
mod microkernel;
mod non_finite;
mod norm;
mod online_softmax;
mod packer;
mod packing;
mod problem;
mod score_tile;
mod scratch;
mod shared_out;
mod strided;
mod team;
#[cfg(test)]
pub(super) mod tests;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has bf16 products"))]
mod tile_bf16;
mod tile_f32;
mod unpack;

pub use aligned::AlignedVec;
pub(crate) use attention::{attend, attend_into, scratch_floats};
pub(crate) use distance_bias::{DistanceEmbeddings, DistanceTable};
pub(crate) use distance_products::distance_floats;
pub use element::Element;
pub use isa::Isa;
pub(crate) use mask::{Broadcast, Distances, Lengths, Mask, MaskStructure};
pub use max_sim::max_sim;
pub(crate) use norm::RowNorm;
pub(crate) use packer::Packer;
pub use packing::PackedWeights;
pub(crate) use problem::{AttentionProblem, Batch, HeadsView};
pub use scratch::ScratchPool;
pub use team::Team;

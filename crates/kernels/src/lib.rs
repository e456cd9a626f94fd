//! CPU kernels over slices and strides: fused attention, products with packed weights, layer normalization.
//!
//! Attention, products with packed weights, norms and MaxSim, for the fastest instructions that the processor has.
//! Nothing here takes a tensor, a mask of an API or a configuration:
//! [candle-attention](https://docs.rs/candle-attention), the layer on these kernels, does. Sizes and views are checked
//! before anything is written.
//!
//! ```
//! use candle_attention_kernels::{Activation, Isa, Packer, Team, WeightFormat};
//!
//! // y = W x + b for one row x, with W of 2 × 3.
//! let mut packer = Packer::new(Isa::detect()?, WeightFormat::F32, 2, 3)?;
//! packer.push(2, &[1f32, 0.0, 0.0, 0.0, 2.0, 3.0], Some(&[0.5, -1.0]))?;
//! let weights = packer.finish()?;
//! let mut y = Vec::<f32>::new();
//! let x = [1f32, 2.0, 3.0];
//! Team::with(weights.multiply_adds(1), |team| weights.multiply(team, &x, 1, Activation::Relu, &mut y))?;
//! assert_eq!(y, [1.5, 12.0]);
//! # Ok::<_, candle_attention_kernels::Error>(())
//! ```
//!
//! **Each algorithm is written once**, generic over the vectors of an instruction set, and an instruction set only
//! instantiates it. Kernels written per instruction set would be several copies of the same loops, and the tests of one
//! copy would say nothing about the next. Leaving the vectors to the compiler was rejected, too: it may not change the
//! order of the terms of a floating-point sum, so it does not vectorize one, and it does not keep a tile of sums in
//! registers.
//!
//! **An instruction set is a value**, [`Isa`], a capability token that only run-time detection returns. A binary runs
//! on any processor, so the instructions may be missing, and to execute a missing one is undefined behavior. With
//! tokens, the check is made once, the value proves it wherever it goes, and operations on registers are safe methods.
//! Function pointers, or a check in each operation, would forbid inlining, and with it registers that live longer than
//! one operation. [memchr](https://docs.rs/memchr) has the same design.
//!
//! **Attention takes the keys in blocks with an online softmax** ([Milakov 2018](https://arxiv.org/abs/1805.02867),
//! [Rabe 2021](https://arxiv.org/abs/2112.05682), [Dao 2022](https://arxiv.org/abs/2205.14135)). A score matrix would
//! be written to memory and read back three times, and it grows with the square of the sequence length. A tile of
//! scores by one key block stays in the L1 cache. Blocks start at key 0 and have one size, so results do not depend on
//! the batch.
//!
//! **Products with weights of 8 and 4 bits are exact sums of integers**, scaled once. So they have the same bits on all
//! instruction sets: `int8` says how.
//!
//! **All kernels are compiled in this crate, once for each instruction set.** A caller's dtype ends at the door:
//! [`Element`] is a closed set of types, and kernels take slices of any of them, which become f32 where they are read.
//! A loop for each dtype was rejected: it took five times as long to compile, and was no faster. Work that is called
//! from several places is a function of its own inside an instruction set (`Simd::call`).
//!
//! From the bottom up: `convert` and `isa`, the vectors of each instruction set with the microkernel on them, and `exp`
//! and `activation`; `elements`, the slices of callers; `int8`, integers of 8 bits and their products; and `registry`,
//! the table of instruction sets, on which kernels stand. Attention is the `problem` with its `mask`, the score tiles,
//! `online_softmax`, and the kernels `attention` and `few_queries`. Products are `packing`, the tasks of `gemm`, and
//! `packed_weights`, which runs them. No file uses one that uses it.
#![allow(unsafe_code)]
#![deny(missing_docs)]
// Only x86-64 and Arm have products of pairs, and macros for their intrinsics.
#![cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code, unused_macros, unused_imports))]

mod activation;
mod attention;
mod attention_backward;
mod backward_products;
mod blas;
mod convert;
mod distance_products;
mod dropout;
mod elements;
mod error;
mod exp;
mod few_queries;
mod gate;
mod gemm;
mod gemm_pairs;
mod int8;
mod isa;
mod mask;
mod matmul;
mod max_sim;
mod memory;
mod non_finite;
mod norm;
mod online_softmax;
mod packed_weights;
mod packing;
mod problem;
mod registry;
mod row_products;
mod score_tile;
mod team;
mod tile_bf16;
mod tile_f32;
mod tile_int8;
mod unroll;

#[cfg(test)]
extern crate self as candle_attention_kernels;
#[cfg(test)]
#[path = "../tests/mod.rs"]
mod tests;

pub use activation::Activation;
pub use attention::{SoftmaxRow, attend, attend_for_training, attend_into, scratch_floats};
pub use attention_backward::{AttentionGradient, Gradients, attention_backward, backward_floats};
pub use blas::{Blas, Sgemm};
pub use distance_products::distance_floats;
pub use dropout::Dropout;
pub use elements::Element;
pub use error::{Error, Result};
pub use gate::{GateFunction, RowGate};
pub use int8::encode::WeightFormat;
pub use int8::heads::{SCALE_BYTES, quantize_heads, widen_heads};
pub use int8::rows::QuantizedRows;
pub use mask::{Broadcast, DistanceEmbeddings, DistanceTable, Distances, GridBias, KEY_BLOCK, Lengths, Mask};
pub use mask::{MaskStructure, PairRule, ScoreRule, Seen};
pub use matmul::{Matrix, column_sums, matmul};
pub use max_sim::max_sim;
pub use memory::{AlignedVec, Scratch, ScratchPool, check_allocation, element_count, try_reserve, zeros};
pub use norm::RowNorm;
pub use packed_weights::PackedWeights;
pub use packing::Packer;
pub use problem::{AttentionCall, AttentionProblem, Batch, HeadsView, Int8Heads};
pub use registry::Isa;
pub use team::Team;

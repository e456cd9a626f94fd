//! Products with int8, Q8_0 and Q4_0 weights.
//!
//! Weights are integers of 8 or 4 bits, with a scale per output feature or per block of 32 inputs. Each row of inputs
//! is rounded to int8 when it is multiplied, with a scale per row or per block. The products are summed in 32-bit
//! integers, which is exact in any order, and only the sum of a row or block is scaled, in f32. No step of that is
//! fused or reordered, so **all instruction sets give the same bits**, except for activations, which have
//! approximations of their own.
//!
//! From the bottom up: `dot` describes the instructions that multiply vectors of integers, which are in one file for
//! each processor, and `kernel` what a kernel is to them. `encode` finds the integers and scales of weights, `inputs`
//! those of inputs, `panels` has the order of packed bytes, and `gemm` the product. Beside them are `rows`, tables
//! whose rows are looked up, and `heads`, keys and values of a cache.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod arm;
pub(crate) mod dot;
pub(crate) mod encode;
pub(crate) mod gemm;
pub(crate) mod heads;
pub(crate) mod inputs;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has tiles"))]
pub(crate) mod kernel;
pub(crate) mod panels;
mod portable;
pub(crate) mod rows;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
pub(crate) mod wide;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

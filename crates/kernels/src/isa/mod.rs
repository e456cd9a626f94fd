//! Instruction sets, and the vectors that kernels are written with. The ground of this crate: nothing here knows a
//! kernel.
//!
//! `simd` has the operations on vectors, `pair_dot` those on pairs of 16-bit numbers, and `kernel` is what a kernel is
//! to an instruction set. Each instruction set is one file with a type that implements
//! [`InstructionSet`](kernel::InstructionSet) and [`Simd`](simd::Simd), with the size of its register tile and the
//! reason for it; if it multiplies pairs, also [`PairDot`](pair_dot::PairDot).

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_bf16;
pub(crate) mod kernel;
pub(crate) mod microkernel;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_bf16;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_f16;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_fhm;
pub(crate) mod pair_dot;
pub(crate) mod portable;
pub(crate) mod simd;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) mod simd128;

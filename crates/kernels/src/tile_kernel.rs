//! Kernels on score tiles: written once, they run in f32, bf16 or int8.

use super::error::Result;
use super::int8::dot::Int8Dot;
use super::isa::Isa;
use super::isa::kernel::{Int8Kernel, Kernel, PairKernel};
use super::isa::pair_dot::PairDot;
use super::isa::simd::Simd;
use super::score_tile::ScoreTile;
use super::tile_bf16::TileBf16;
use super::tile_f32::TileF32;
use super::tile_int8::TileInt8;

/// A kernel on score tiles. `run` must be `#[inline(always)]`, for the reason given at [`Kernel`].
pub(super) trait TileKernel {
    fn run<C: ScoreTile>(self, tile: C) -> Result<()>;
}

/// The numbers that score tiles multiply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TileNumbers {
    F32,
    /// Where there are instructions for it, and else f32.
    Bf16,
    /// Keys and values are in int8.
    Int8,
}

/// Runs a kernel with tiles of such numbers.
pub(super) fn run_on_tiles<K: TileKernel>(isa: Isa, numbers: TileNumbers, kernel: K) -> Result<()> {
    let mut result = Ok(());
    let kernel = OnTiles { kernel, result: &mut result };
    match numbers {
        TileNumbers::Int8 => isa.run_int8(kernel),
        TileNumbers::Bf16 if isa.has_bf16_dot() => isa.run_bf16(kernel),
        _ => isa.run(kernel),
    }
    result
}

struct OnTiles<'a, K> {
    kernel: K,
    result: &'a mut Result<()>,
}

impl<K: TileKernel> Kernel for OnTiles<'_, K> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        *self.result = self.kernel.run(TileF32::<S, MR, NR>(s));
    }
}

impl<K: TileKernel> Int8Kernel for OnTiles<'_, K> {
    #[inline(always)]
    fn run<D: Int8Dot, const MR: usize, const NR: usize, const BLOCK_MR: usize>(self, dot: D) {
        // AVX2 without VNNI, and NEON, have no registers left for the sums of more rows.
        *self.result = if const { MR == 5 || D::S::LANES == 4 } {
            self.kernel.run(TileInt8::<D, 4, NR>(dot))
        } else {
            self.kernel.run(TileInt8::<D, MR, NR>(dot))
        };
    }
}

impl<K: TileKernel> PairKernel for OnTiles<'_, K> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, s: S, dot: D) {
        *self.result = self.kernel.run(TileBf16(s, dot));
    }
}

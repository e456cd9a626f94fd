//! Kernels on score tiles: written once, they run in f32 or in bf16.

use super::error::Result;
use super::isa::Isa;
use super::isa::kernel::{Kernel, PairKernel};
use super::isa::pair_dot::PairDot;
use super::isa::simd::Simd;
use super::score_tile::ScoreTile;
use super::tile_bf16::TileBf16;
use super::tile_f32::TileF32;

/// A kernel on score tiles. `run` must be `#[inline(always)]`, for the reason given at [`Kernel`].
pub(super) trait TileKernel {
    fn run<C: ScoreTile>(self, tile: C) -> Result<()>;
}

/// Runs a kernel with tiles in bf16, if they are `bf16` and there are instructions for it, and else in f32.
pub(super) fn run_on_tiles<K: TileKernel>(isa: Isa, bf16: bool, kernel: K) -> Result<()> {
    let mut result = Ok(());
    let kernel = OnTiles { kernel, result: &mut result };
    if bf16 && isa.has_bf16_dot() {
        isa.run_bf16(kernel)
    } else {
        isa.run(kernel)
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

impl<K: TileKernel> PairKernel for OnTiles<'_, K> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, s: S, dot: D) {
        *self.result = self.kernel.run(TileBf16(s, dot));
    }
}

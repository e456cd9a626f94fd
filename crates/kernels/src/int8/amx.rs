//! AMX-INT8: products of 16 rows by 16 outputs of 64 terms each.

use super::kernel::{Int8InstructionSet, Int8Kernel, Int8TileKernel, Int8Tiles, Sums, TILE_COLUMNS};
use crate::convert::Pair;
use crate::isa::amx::{Amx, ConfiguredTiles, TILE_PAIRS, TILE_ROWS, microkernel};
use crate::isa::avx512::Avx512;
use crate::isa::microkernel::Prefetch;
use crate::isa::pair_dot::{PairTile, TileLayout, VECTOR_COLUMNS};

impl Int8InstructionSet for Amx {
    const HAS_INT8_TILES: bool = true;

    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        self.vectors().run_int8(kernel);
    }

    /// Configures the tile registers of this thread for the time of the kernel.
    fn run_int8_tiles<K: Int8TileKernel>(self, kernel: K) {
        let _tiles = ConfiguredTiles::new(self);
        // SAFETY: the vectors prove that the processor has AVX-512F.
        unsafe { run_tiles(self.vectors(), self, kernel) }
    }
}

#[target_feature(enable = "avx512f")]
fn run_tiles<K: Int8TileKernel>(s: Avx512, tiles: Amx, kernel: K) {
    kernel.run(s, tiles);
}

// SAFETY: `microkernel` reads 16 or 32 rows of inputs and whole steps of the panel.
unsafe impl Int8Tiles for Amx {
    #[inline(always)]
    unsafe fn multiply(
        self,
        rows: usize,
        steps: usize,
        a: *const i8,
        a_stride: usize,
        panel: *const u8,
        sums: &mut Sums,
    ) {
        let tile = PairTile {
            rows,
            vectors: TILE_COLUMNS / VECTOR_COLUMNS,
            pairs: steps * TILE_PAIRS,
            layout: TileLayout::Rows { a: a_stride / size_of::<Pair>(), b: TILE_COLUMNS },
            c_stride: TILE_COLUMNS,
            accumulate: false,
            prefetch: Prefetch::NONE,
        };
        let (a, panel, sums) = (a.cast(), panel.cast(), sums.0.as_mut_ptr().cast());
        // SAFETY: the caller's promise. What takes the place of a pair is four inputs of a row, or four weights of a
        // column, and what takes that of an f32 a sum of 32 bits; a row of inputs is whole steps of 64 bytes.
        unsafe {
            if rows > TILE_ROWS {
                microkernel::<true, true, false, true>(tile, a, panel, sums)
            } else {
                microkernel::<false, true, false, true>(tile, a, panel, sums)
            }
        }
    }
}

//! AMX-INT8: products of 16 rows by 16 outputs of 64 terms each.

use std::arch::asm;

use super::kernel::{Int8InstructionSet, Int8Kernel, Int8TileKernel};
use super::tiles::{Int8Tiles, Sums, TILE_COLUMNS, TILE_STEP};
use crate::isa::amx::{Amx, ConfiguredTiles, TILE_ROWS, tile_asm};
use crate::isa::avx512::Avx512;

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

/// Multiplies one tile of rows or two (`TALL`) by two tiles of outputs. Tile registers 0 to 3 hold the sums, 4 and 5
/// tiles of inputs, 6 and 7 tiles of weights, as for bf16.
///
/// # Safety
/// The conditions of [`Int8Tiles::multiply`].
#[inline(always)]
unsafe fn microkernel<const TALL: bool>(steps: usize, a: *const i8, a_stride: usize, panel: *const u8, sums: *mut i32) {
    // SAFETY: each tile is 16 rows of 64 bytes at the stride of its matrix, inside the memory that the caller promises.
    // The caller runs as long as the tiles are configured: see the microkernel for bf16.
    unsafe {
        tile_asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {steps}, {steps}",
            "jz 3f",
            "2:",
            "tileloadd tmm4, [{a} + {a_stride}]",
            "tileloadd tmm6, [{b} + {b_stride}]",
            "tdpbssd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {b_stride} + 64]",
            "tdpbssd tmm1, tmm4, tmm7",
            ".if {tall}",
            "tileloadd tmm5, [{lower_a} + {a_stride}]",
            "tdpbssd tmm2, tmm5, tmm6",
            "tdpbssd tmm3, tmm5, tmm7",
            ".endif",
            "add {a}, {step}",
            "add {lower_a}, {step}",
            "add {b}, {b_step}",
            "dec {steps}",
            "jnz 2b",
            "3:",
            "tilestored [{c} + {b_stride}], tmm0",
            "tilestored [{c} + {b_stride} + 64], tmm1",
            ".if {tall}",
            "tilestored [{lower_c} + {b_stride}], tmm2",
            "tilestored [{lower_c} + {b_stride} + 64], tmm3",
            ".endif",
            tall = const TALL as u8,
            step = const TILE_STEP,
            b_step = const TILE_STEP * TILE_COLUMNS,
            steps = inout(reg) steps => _,
            a = inout(reg) a => _,
            lower_a = inout(reg) a.wrapping_add(TILE_ROWS * a_stride) => _,
            b = inout(reg) panel => _,
            c = in(reg) sums,
            lower_c = in(reg) sums.wrapping_add(TILE_ROWS * TILE_COLUMNS),
            a_stride = in(reg) a_stride,
            // 4 bytes per column: four i8 weights, or one i32 sum.
            b_stride = in(reg) 4 * TILE_COLUMNS,
            options(nostack),
        );
    }
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
        // SAFETY: the caller's promise.
        unsafe {
            if rows > TILE_ROWS {
                microkernel::<true>(steps, a, a_stride, panel, sums.0.as_mut_ptr())
            } else {
                microkernel::<false>(steps, a, a_stride, panel, sums.0.as_mut_ptr())
            }
        }
    }
}

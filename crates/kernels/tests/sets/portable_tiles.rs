//! int8 tiles in plain Rust. With them, what surrounds the instructions of AMX is tested on every machine.

use super::portable_bf16::PortableBf16;
use crate::int8::kernel::{
    Int8InstructionSet, Int8Kernel, Int8TileKernel, Int8Tiles, Sums, TILE_COLUMNS, TILE_ROWS, TILE_STEP,
};
use crate::isa::portable::Portable;

impl Int8InstructionSet for PortableBf16 {
    const HAS_INT8_TILES: bool = true;

    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        Portable.run_int8(kernel);
    }

    fn run_int8_tiles<K: Int8TileKernel>(self, kernel: K) {
        kernel.run(Portable, self);
    }
}

// SAFETY: the rows and steps that the caller promises are read.
unsafe impl Int8Tiles for PortableBf16 {
    unsafe fn multiply(
        self,
        rows: usize,
        steps: usize,
        a: *const i8,
        a_stride: usize,
        panel: *const u8,
        sums: &mut Sums,
    ) {
        assert!((1..=TILE_ROWS).contains(&rows));
        for row in 0..rows.next_multiple_of(16) {
            for column in 0..TILE_COLUMNS {
                // SAFETY: inside the memory that the caller promises.
                let term = |input: usize| unsafe {
                    let weight = *panel.add((input / 4 * TILE_COLUMNS + column) * 4 + input % 4);
                    i32::from(*a.add(row * a_stride + input)) * i32::from(weight.cast_signed())
                };
                sums.0[row * TILE_COLUMNS + column] = (0..steps * TILE_STEP).map(term).sum();
            }
        }
    }
}

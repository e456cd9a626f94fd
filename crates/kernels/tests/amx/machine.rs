//! The tile registers and what the instructions do with them, as volume 2 of Intel's Software Developer's Manual has
//! it.

use std::arch::asm;

use half::bf16;

use super::decode::{Fault, Instruction};
use crate::tests::Random;

const TILES: usize = 8;
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;
pub(super) const CONFIG_BYTES: usize = 64;

/// Rows and bytes per row of a tile; both are 0 for a tile that is not configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    rows: usize,
    row_bytes: usize,
}

pub(super) type Tile = [[u8; ROW_BYTES]; ROWS];

/// The state of one thread.
pub(super) struct Machine {
    /// The memory that LDTILECFG read last; zeros after TILERELEASE.
    config: [u8; CONFIG_BYTES],
    shapes: [Shape; TILES],
    tiles: [Tile; TILES],
}

impl Machine {
    pub const RELEASED: Self = Self {
        config: [0; CONFIG_BYTES],
        shapes: [Shape { rows: 0, row_bytes: 0 }; TILES],
        tiles: [[[0; ROW_BYTES]; ROWS]; TILES],
    };

    /// # Safety
    /// The memory operand can be read or written, as for the processor's own instruction.
    pub unsafe fn execute(&mut self, instruction: Instruction) -> Result<(), Fault> {
        // SAFETY: the caller's promise. The processor takes operands of any alignment.
        unsafe {
            match instruction {
                Instruction::LoadConfig { at } => return self.load_config(*(at as *const [u8; CONFIG_BYTES])),
                Instruction::StoreConfig { at } => *(at as *mut [u8; CONFIG_BYTES]) = self.config,
                Instruction::Release => *self = Self::RELEASED,
                Instruction::Zero { tile } => {
                    self.shape(tile)?;
                    self.tiles[tile] = [[0; ROW_BYTES]; ROWS];
                }
                Instruction::Load { tile, at, stride } => {
                    let Shape { rows, row_bytes } = self.shape(tile)?;
                    self.tiles[tile] = [[0; ROW_BYTES]; ROWS];
                    for (r, row) in self.tiles[tile][..rows].iter_mut().enumerate() {
                        let from = at.wrapping_add(stride.wrapping_mul(r as u64)) as *const u8;
                        from.copy_to_nonoverlapping(row.as_mut_ptr(), row_bytes);
                    }
                }
                Instruction::Store { tile, at, stride } => {
                    let Shape { rows, row_bytes } = self.shape(tile)?;
                    for (r, row) in self.tiles[tile][..rows].iter().enumerate() {
                        let to = at.wrapping_add(stride.wrapping_mul(r as u64)) as *mut u8;
                        to.copy_from_nonoverlapping(row.as_ptr(), row_bytes);
                    }
                }
                Instruction::MultiplyBf16 { to, a, b } => self.multiply(to, a, b, bf16_row)?,
                Instruction::MultiplyInt8 { to, a, b } => self.multiply(to, a, b, int8_row)?,
            }
        }
        Ok(())
    }

    fn load_config(&mut self, config: [u8; CONFIG_BYTES]) -> Result<(), Fault> {
        let (palette, start_row) = (config[0], config[1]);
        *self = Self::RELEASED;
        match palette {
            0 => return Ok(()),
            1 => self.config = config,
            _ => return Err("#GP: an unknown palette"),
        }
        if start_row != 0 {
            return Err("a start row is not emulated");
        }
        let shape = |tile: usize| Shape {
            rows: config[48 + tile].into(),
            row_bytes: u16::from_le_bytes([config[16 + 2 * tile], config[17 + 2 * tile]]).into(),
        };
        if config[2..16].iter().any(|byte| *byte != 0) {
            return Err("#GP: reserved bytes of the tile configuration");
        }
        if (TILES..16).any(|tile| shape(tile) != Shape { rows: 0, row_bytes: 0 }) {
            return Err("#GP: the configuration of a tile above 7");
        }
        self.shapes = std::array::from_fn(shape);
        for Shape { rows, row_bytes } in self.shapes {
            if rows > ROWS || row_bytes > ROW_BYTES || (rows == 0) != (row_bytes == 0) {
                return Err("#GP: rows or bytes per row of a tile");
            }
        }
        Ok(())
    }

    /// `to + a · b` of whole tiles.
    pub fn product(to: Tile, a: &Tile, b: &Tile) -> Tile {
        let mut machine = Self::RELEASED;
        machine.load_config(config([(16, 64); 3])).unwrap();
        machine.tiles[..3].copy_from_slice(&[to, *a, *b]);
        machine.multiply(0, 1, 2, bf16_row).unwrap();
        machine.tiles[0]
    }

    fn shape(&self, tile: usize) -> Result<Shape, Fault> {
        let shape = self.shapes[tile];
        if shape.rows == 0 { Err("#UD: the tile is not configured") } else { Ok(shape) }
    }

    fn multiply(&mut self, to: usize, a: usize, b: usize, row: MultiplyRow) -> Result<(), Fault> {
        if to == a || a == b || b == to {
            return Err("#UD: a tile is used twice");
        }
        let (shape, a_shape, b_shape) = (self.shape(to)?, self.shape(a)?, self.shape(b)?);
        if [shape, a_shape, b_shape].iter().any(|shape| shape.row_bytes % 4 != 0) {
            return Err("#UD: bytes per row are no multiple of 4");
        }
        if shape.row_bytes != b_shape.row_bytes || a_shape.row_bytes / 4 != b_shape.rows || shape.rows != a_shape.rows {
            return Err("#UD: the shapes of the tiles do not fit");
        }
        let (a, b) = (self.tiles[a], self.tiles[b]);
        for (to, a) in self.tiles[to].iter_mut().zip(&a).take(shape.rows) {
            row(to, a, &b, a_shape.row_bytes / 4);
            to[shape.row_bytes..].fill(0);
        }
        self.tiles[to][shape.rows..].fill([0; ROW_BYTES]);
        Ok(())
    }
}

/// Adds one row of a product over some 32-bit groups of terms, at most `ROWS`.
type MultiplyRow = fn(&mut [u8; ROW_BYTES], &[u8; ROW_BYTES], &Tile, usize);

fn bf16_row(row: &mut [u8; ROW_BYTES], a: &[u8; ROW_BYTES], b: &Tile, pairs: usize) {
    // SAFETY: `signal::install` has checked for AVX-512F, and so do tests; `b` has a row for each pair of `a`.
    unsafe { multiply_row(row, a, b, pairs) }
}

/// Sums wrap around.
fn int8_row(row: &mut [u8; ROW_BYTES], a: &[u8; ROW_BYTES], b: &Tile, fours: usize) {
    for (column, to) in row.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        for (a, b) in a.as_chunks::<4>().0.iter().zip(b).take(fours) {
            for (a, b) in a.iter().zip(&b[4 * column..]) {
                let product = i32::from(a.cast_signed()) * i32::from(b.cast_signed());
                *to = i32::from_le_bytes(*to).wrapping_add(product).to_le_bytes();
            }
        }
    }
}

/// Adds one row of a product. The sums of the first and of the second terms of the pairs are two, which are added at
/// the end. Sums are rounded once per term (FMA), and denormal operands and results are zeros, whatever MXCSR says.
///
/// # Safety
/// The processor has AVX-512F, and `pairs` is from 1 to `ROWS`.
unsafe fn multiply_row(row: &mut [u8; ROW_BYTES], a: &[u8; ROW_BYTES], b: &Tile, pairs: usize) {
    /// Round to nearest, no exceptions, denormal results and operands are zeros.
    const FLUSH_DENORMALS: u32 = 0x1f80 | 1 << 15 | 1 << 6;
    let mut own = 0u32;
    // SAFETY: `pairs` values of `a`, as many rows of `b` and one row are accessed; MXCSR is restored.
    unsafe {
        asm!(
            "stmxcsr [{own}]",
            "ldmxcsr [{flush}]",
            "vpxord zmm16, zmm16, zmm16",
            "vpxord zmm17, zmm17, zmm17",
            "vpbroadcastd zmm18, {high:e}",
            "2:",
            "vpbroadcastd zmm19, dword ptr [{a}]",
            "vmovdqu32 zmm20, [{b}]",
            "vpslld zmm21, zmm19, 16",
            "vpslld zmm22, zmm20, 16",
            "vfmadd231ps zmm16, zmm21, zmm22",
            "vpandd zmm19, zmm19, zmm18",
            "vpandd zmm20, zmm20, zmm18",
            "vfmadd231ps zmm17, zmm19, zmm20",
            "add {a}, 4",
            "add {b}, 64",
            "dec {pairs}",
            "jnz 2b",
            "vaddps zmm16, zmm16, zmm17",
            "vaddps zmm16, zmm16, [{row}]",
            "vmovups [{row}], zmm16",
            "ldmxcsr [{own}]",
            own = in(reg) &raw mut own,
            flush = in(reg) &FLUSH_DENORMALS,
            high = in(reg) 0xffff_0000u32,
            row = in(reg) row,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            pairs = inout(reg) pairs => _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _,
            options(nostack),
        );
    }
}

/// A configuration of tiles 0 to 2.
fn config(shapes: [(u8, u8); 3]) -> [u8; CONFIG_BYTES] {
    let mut config = [0; CONFIG_BYTES];
    config[0] = 1;
    for (tile, (rows, row_bytes)) in shapes.into_iter().enumerate() {
        (config[48 + tile], config[16 + 2 * tile]) = (rows, row_bytes);
    }
    config
}

/// bf16 pairs with exponents of all sizes, so that sums cancel, overflow and become denormal.
pub(super) fn random_tile(random: &mut Random) -> Tile {
    let scales = [1.0, 2f32.powi(-66), 2f32.powi(64), 2f32.powi(-127), 0.0];
    let mut value = || {
        let scale = scales[((random.next() + 1.0) * 2.49) as usize];
        bf16::from_f32(random.next() * scale).to_bits().to_le_bytes()
    };
    std::array::from_fn(|_| std::array::from_fn::<_, 32, _>(|_| value()).concat().try_into().unwrap())
}

fn execute(machine: &mut Machine, instruction: Instruction) -> Result<(), Fault> {
    // SAFETY: the tests pass operands of live memory.
    unsafe { machine.execute(instruction) }
}

#[test]
fn what_the_processor_refuses_is_refused() {
    let mut machine = Machine::RELEASED;
    let product = Instruction::MultiplyBf16 { to: 0, a: 1, b: 2 };
    for instruction in [Instruction::Zero { tile: 0 }, product] {
        assert!(execute(&mut machine, instruction).is_err(), "{instruction:?} without a configuration");
    }
    for shapes in [[(17, 64); 3], [(16, 68); 3], [(0, 4); 3], [(4, 0); 3]] {
        assert!(machine.load_config(config(shapes)).is_err(), "{shapes:?}");
    }
    for (byte, value) in [(0, 2), (2, 1), (32, 4), (56, 1)] {
        let mut config = config([(16, 64); 3]);
        config[byte] = value;
        assert!(machine.load_config(config).is_err(), "byte {byte}");
    }
    for shapes in [
        [(16, 64), (16, 64), (15, 64)],
        [(16, 64), (15, 64), (16, 64)],
        [(16, 60), (16, 64), (16, 64)],
        [(16, 62), (16, 64), (16, 62)],
    ] {
        machine.load_config(config(shapes)).unwrap();
        assert!(execute(&mut machine, product).is_err(), "{shapes:?}");
    }
    machine.load_config(config([(16, 64); 3])).unwrap();
    if is_x86_feature_detected!("avx512f") {
        assert!(execute(&mut machine, product).is_ok());
    }
    assert!(execute(&mut machine, Instruction::MultiplyBf16 { to: 0, a: 1, b: 1 }).is_err());
    assert!(execute(&mut machine, Instruction::Zero { tile: 3 }).is_err());
    execute(&mut machine, Instruction::Release).unwrap();
    assert!(execute(&mut machine, product).is_err());
}

fn is_denormal(x: f32) -> bool {
    x != 0.0 && x.abs() < f32::MIN_POSITIVE
}

fn flushed(x: f32) -> f32 {
    if is_denormal(x) { 0f32.copysign(x) } else { x }
}

#[test]
fn products_are_those_of_the_manual() {
    if !is_x86_feature_detected!("avx512f") {
        return;
    }
    let mut random = Random(12);
    for (rows, columns, pairs) in [(16, 16, 16), (16, 16, 1), (1, 1, 16), (3, 5, 7)] {
        for _ in 0..4 {
            let mut machine = Machine::RELEASED;
            let shapes = [(rows, 4 * columns), (rows, 4 * pairs), (pairs, 4 * columns)];
            machine.load_config(config(shapes)).unwrap();
            let memory = [random_tile(&mut random), random_tile(&mut random), random_tile(&mut random)];
            for (tile, memory) in memory.iter().enumerate() {
                let at = memory.as_ptr() as u64;
                execute(&mut machine, Instruction::Load { tile, at, stride: 64 }).unwrap();
            }
            execute(&mut machine, Instruction::MultiplyBf16 { to: 0, a: 1, b: 2 }).unwrap();
            let term = |tile: usize, row: usize, column: usize, half: usize| {
                let at = 4 * column + 2 * half;
                flushed(bf16::from_le_bytes([memory[tile][row][at], memory[tile][row][at + 1]]).to_f32())
            };
            let word = |tile: &Tile, row: usize, column: usize| {
                f32::from_le_bytes(tile[row][4 * column..][..4].try_into().unwrap())
            };
            for (row, column) in (0..16).flat_map(|row| (0..16).map(move |column| (row, column))) {
                let sums = [0, 1].map(|half| {
                    (0..pairs.into()).fold(0f32, |sum, pair| {
                        flushed(term(1, row, pair, half).mul_add(term(2, pair, column, half), sum))
                    })
                });
                let sum = flushed(sums[0] + sums[1]);
                let mut want = flushed(flushed(word(&memory[0], row, column)) + sum);
                if row >= rows.into() || column >= columns.into() {
                    want = 0.0;
                }
                let got = word(&machine.tiles[0], row, column);
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "[{row}, {column}] of {rows}×{columns}×{pairs}: {got:e}, want {want:e}");
            }
        }
    }
}

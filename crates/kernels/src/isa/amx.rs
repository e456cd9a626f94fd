//! AMX: products of 16 × 16 tiles by eight tile registers of 1 KiB each.
//!
//! Rust has no stable intrinsics for them, hence the inline assembly. See "Programming with Intel AMX" in volume 1 of
//! Intel's Software Developer's Manual.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max, _xgetbv};

use super::avx512::Avx512;
use super::avx512_bf16::Avx512Bf16;
use super::kernel::{InstructionSet, Kernel, PairKernel};
use super::pair_dot::{PairDot, PairOrder, PairTile, TileLayout};
use crate::convert::{Pair, PairFormat};

/// AMX-BF16 and AMX-INT8, with the operating system's permission to use it, and AVX-512 for everything but the
/// products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amx(Avx512Bf16);

/// The operand of `ldtilecfg`: palette 1, eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: TileConfig = {
    let mut config = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row: [0; 16], rows: [0; 16] };
    let mut tile = 0;
    while tile < 8 {
        config.bytes_per_row[tile] = 64;
        config.rows[tile] = 16;
        tile += 1;
    }
    config
};

impl InstructionSet for Amx {
    const NAME: &'static str = "amx";
    const F32_NAME: &'static str = Avx512Bf16::F32_NAME;
    const PAIRS: &[PairFormat] = &[PairFormat::Bf16];

    /// Asks the operating system for permission.
    fn detect() -> Option<Self> {
        let vectors = Avx512Bf16::detect()?;
        let usable = has_tiles() && request_permission();
        // Tests emulate the instructions where they are missing.
        #[cfg(test)]
        let usable = usable || crate::tests::amx::emulate();
        usable.then_some(Self(vectors))
    }

    /// `tdpbf16ps`: 16 · 16 · 32 multiply-adds in 16 cycles.
    fn speed() -> u32 {
        if has_tiles() { 512 } else { 0 }
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }

    /// Configures the tile registers of this thread for the time of the kernel.
    fn run_pairs<K: PairKernel>(self, _: PairFormat, kernel: K) {
        let _tiles = ConfiguredTiles::new(self);
        self.0.run_bf16_with(self, kernel);
    }
}

impl Amx {
    /// The instructions for everything but products.
    pub(crate) fn vectors(self) -> Avx512 {
        self.0.vectors()
    }
}

/// Assembly that changes tile registers: [`asm!`], to which all of them are declared as outputs.
macro_rules! tile_asm {
    ($($part:tt)+) => {
        asm!(
            $($part)+
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
        )
    };
}
#[cfg(test)]
pub(crate) use tile_asm;

/// The assembly that multiplies two tile registers of bf16, or of `integers`.
macro_rules! dot {
    ($registers:literal) => {
        concat!(".if {integers}\ntdpbssd ", $registers, "\n.else\ntdpbf16ps ", $registers, "\n.endif")
    };
}

/// The tile registers of this thread, configured as long as the value lives. A panic in a kernel releases them, too.
pub(crate) struct ConfiguredTiles;

impl ConfiguredTiles {
    pub fn new(_: Amx) -> Self {
        // SAFETY: the argument proves that the processor has AMX and that this process may use it. `CONFIG` has the 64
        // bytes that the instruction reads.
        unsafe { tile_asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly),) };
        Self
    }
}

impl Drop for ConfiguredTiles {
    fn drop(&mut self) {
        // SAFETY: the value proves that `new` has executed an instruction of AMX.
        unsafe { tile_asm!("tilerelease", options(nostack, nomem),) };
    }
}

/// Whether the processor has AMX-TILE, AMX-BF16 and AMX-INT8 and the operating system saves the tiles.
pub(crate) fn has_tiles() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    const AMX: u32 = AMX_BF16 | AMX_TILE | AMX_INT8;
    const OSXSAVE: u32 = 1 << 27;
    const TILE_STATES: u64 = 0b11 << 17;
    let (leaves, _) = __get_cpuid_max(0);
    if leaves < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let amx = __cpuid_count(7, 0).edx & AMX == AMX;
    // SAFETY: with OSXSAVE set, the processor has XGETBV and the operating system enables it.
    amx && unsafe { _xgetbv(0) } & TILE_STATES == TILE_STATES
}

/// Asks Linux for the tile state. Since 5.16 a process has these 8 KiB only after `arch_prctl(ARCH_REQ_XCOMP_PERM)`.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: the system call accesses no memory of this process; the kernel overwrites rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// AMX is used on Linux only.
#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// Pairs per row of a tile: 64 bytes.
pub(crate) const TILE_PAIRS: usize = 16;
/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Multiplies one or two tiles of rows (`TALL`) by one or two tiles of columns (`WIDE`), which lie in memory as rows or
/// as blocks (`BLOCKS`): a block is what one load reads, 16 whole cache lines one after another. Tile registers 0 to 3
/// hold the sums, 4 and 5 tiles of A, 6 and 7 tiles of B.
///
/// Pairs are bf16, or, of `INTEGERS`, four signed integers of 8 bits with sums of 32 bits.
///
/// A product is one block of assembly, because the contents of registers do not last from one block to the next.
///
/// # Safety
/// The conditions of [`PairDot::multiply_tile`].
#[inline(always)]
pub(crate) unsafe fn microkernel<const TALL: bool, const WIDE: bool, const BLOCKS: bool, const INTEGERS: bool>(
    tile: PairTile,
    a: *const Pair,
    b: *const Pair,
    c: *mut f32,
) {
    // From one row to the next, from the upper rows of A to the lower ones, and of B from one step to the next.
    let (a_stride, lower, b_stride, b_step) = match tile.layout {
        TileLayout::Rows { a, b } => (a, TILE_ROWS * a, b, TILE_PAIRS * b),
        TileLayout::Packed => {
            (TILE_PAIRS, TILE_ROWS * tile.pairs, TILE_PAIRS, Amx::MAX_VECTORS * TILE_PAIRS * TILE_PAIRS)
        }
    };
    #[cfg(test)]
    crate::tests::amx::fill_with_nan();
    // SAFETY: each tile is 16 rows of 64 bytes at the stride of its matrix, inside the memory that the caller promises.
    // The caller runs as long as a `ConfiguredTiles` lives. The compiler does not know the configuration, so it neither
    // changes it nor depends on it. A function that is called in between could change it only by using AMX itself, and
    // what kernels call does not: copies and the allocator.
    unsafe {
        tile_asm!(
            "test {accumulate}, {accumulate}",
            "jnz 2f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 3f",
            "2:",
            "tileloadd tmm0, [{c} + {c_stride}]",
            ".if {wide}",
            "tileloadd tmm1, [{c} + {c_stride} + 64]",
            ".endif",
            ".if {tall}",
            "tileloadd tmm2, [{lower_c} + {c_stride}]",
            ".endif",
            ".if {tall} & {wide}",
            "tileloadd tmm3, [{lower_c} + {c_stride} + 64]",
            ".endif",
            "3:",
            "test {steps}, {steps}",
            "jz 5f",
            "4:",
            "tileloadd tmm4, [{a} + {a_stride}]",
            "tileloadd tmm6, [{b} + {b_stride}]",
            dot!("tmm0, tmm4, tmm6"),
            ".if {wide}",
            "tileloadd tmm7, [{b} + {b_stride} + {next}]",
            dot!("tmm1, tmm4, tmm7"),
            ".endif",
            ".if {tall}",
            "tileloadd tmm5, [{lower_a} + {a_stride}]",
            dot!("tmm2, tmm5, tmm6"),
            ".endif",
            ".if {tall} & {wide}",
            dot!("tmm3, tmm5, tmm7"),
            ".endif",
            "add {a}, {next}",
            "add {lower_a}, {next}",
            "add {b}, {b_step}",
            "dec {steps}",
            "jnz 4b",
            "5:",
            "tilestored [{c} + {c_stride}], tmm0",
            ".if {wide}",
            "tilestored [{c} + {c_stride} + 64], tmm1",
            ".endif",
            ".if {tall}",
            "tilestored [{lower_c} + {c_stride}], tmm2",
            ".endif",
            ".if {tall} & {wide}",
            "tilestored [{lower_c} + {c_stride} + 64], tmm3",
            ".endif",
            integers = const INTEGERS as u8,
            tall = const TALL as u8,
            wide = const WIDE as u8,
            // From the first vector of B to the second, and of A from one step to the next: a row, or a block of 1 KiB.
            next = const if BLOCKS { 4 * TILE_PAIRS * TILE_ROWS } else { 4 * TILE_PAIRS },
            accumulate = in(reg) usize::from(tile.accumulate),
            steps = inout(reg) tile.pairs / TILE_PAIRS => _,
            a = inout(reg) a => _,
            lower_a = inout(reg) a.wrapping_add(lower) => _,
            b = inout(reg) b => _,
            c = in(reg) c,
            lower_c = in(reg) c.wrapping_add(TILE_ROWS * tile.c_stride),
            // In bytes.
            a_stride = in(reg) 4 * a_stride,
            b_stride = in(reg) 4 * b_stride,
            c_stride = in(reg) 4 * tile.c_stride,
            b_step = in(reg) 4 * b_step,
            options(nostack),
        );
    }
}

/// Runs the [`microkernel`] of a tile's size.
///
/// # Safety
/// The conditions of [`PairDot::multiply_tile`]; `BLOCKS` is the layout of the tile.
#[inline(always)]
unsafe fn multiply_in_layout<const BLOCKS: bool>(tile: PairTile, a: *const Pair, b: *const Pair, c: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match (tile.rows > TILE_ROWS, tile.vectors > 1) {
            (true, true) => microkernel::<true, true, BLOCKS, false>(tile, a, b, c),
            (true, false) => microkernel::<true, false, BLOCKS, false>(tile, a, b, c),
            (false, true) => microkernel::<false, true, BLOCKS, false>(tile, a, b, c),
            (false, false) => microkernel::<false, false, BLOCKS, false>(tile, a, b, c),
        }
    }
}

// SAFETY: `microkernel` reads and writes 16 or 32 rows of 16 or 32 columns: at most `MAX_ROWS` rows, and exactly the
// vectors of the tile.
unsafe impl PairDot for Amx {
    const FORMAT: PairFormat = PairFormat::Bf16;
    /// Two by two tiles: with eight tile registers, four hold sums, and each step has four loads for four products. One
    /// by one would have two loads for each product.
    const MAX_ROWS: usize = 2 * TILE_ROWS;
    const MAX_VECTORS: usize = 2;
    const PAIR_STEP: usize = TILE_PAIRS;
    const ORDER: PairOrder = PairOrder::Blocks;

    #[inline(always)]
    fn round_to_pairs(self, from: &[f32], to: &mut [Pair]) {
        self.0.round_to_pairs(from, to);
    }

    #[inline(always)]
    unsafe fn multiply_tile(self, tile: PairTile, a: *const Pair, b: *const Pair, c: *mut f32) {
        // SAFETY: the caller's promise; `run_pairs` has configured the tiles.
        unsafe {
            match tile.layout {
                TileLayout::Rows { .. } => multiply_in_layout::<false>(tile, a, b, c),
                TileLayout::Packed => multiply_in_layout::<true>(tile, a, b, c),
            }
        }
    }
}

//! AMX: products of 16 × 16 tiles by eight tile registers of 1 KiB each.
//!
//! Rust has no stable intrinsics for them, hence the inline assembly. See "Programming with Intel AMX" in volume 1 of
//! Intel's Software Developer's Manual.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max, _xgetbv};

use super::avx512_bf16::Avx512Bf16;
use super::bf16_dot::{Bf16Dot, Bf16Tile, Bf16x2};
use super::kernel::{Bf16Kernel, InstructionSet, Kernel};

/// AMX-BF16, with the operating system's permission to use it, and AVX-512 for everything but the products.
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
    const HAS_BF16_DOT: bool = true;

    fn detect() -> Option<Self> {
        Avx512Bf16::detect().filter(|_| has_tiles() && request_permission()).map(Self)
    }

    /// `tdpbf16ps`: 16 · 16 · 32 multiply-adds in 16 cycles.
    fn speed(self) -> u32 {
        512
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }

    /// Configures the tile registers of this thread for the time of the kernel.
    fn run_bf16<K: Bf16Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AMX and that this process may use it. `CONFIG` has the 64 bytes
        // that the instruction reads.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
        self.0.run_bf16_with(self, kernel);
        // SAFETY: `self` proves that the processor has AMX and that this process may use it.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Whether the processor has AMX-TILE and AMX-BF16 and the operating system saves the tiles.
fn has_tiles() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const OSXSAVE: u32 = 1 << 27;
    const TILE_STATES: u64 = 0b11 << 17;
    let (leaves, _) = __get_cpuid_max(0);
    if leaves < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let amx = __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE;
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
const TILE_PAIRS: usize = 16;
/// Rows of a tile.
const TILE_ROWS: usize = 16;

/// Executes tile instructions in order; `{at} + {stride}` are the address and the row stride of a memory operand. The
/// compiler never uses tile registers, so their contents last from one invocation to the next.
macro_rules! tiles {
    ($($instruction:literal),+; $at:ident, $stride:ident) => {
        asm!($($instruction),+, at = in(reg) $at, stride = in(reg) $stride, options(nostack))
    };
    ($($instruction:literal),+) => {
        asm!($($instruction),+, options(nostack, nomem))
    };
}

/// Multiplies one or two tiles of rows (`TALL`) by one or two tiles of columns (`WIDE`). Tile registers 0 to 3 hold the
/// sums, 4 and 5 tiles of A, 6 and 7 tiles of B.
///
/// # Safety
/// The conditions of [`Bf16Dot::multiply_tile`].
#[inline(always)]
unsafe fn microkernel<const TALL: bool, const WIDE: bool>(
    tile: Bf16Tile,
    mut a: *const Bf16x2,
    mut b: *const Bf16x2,
    c: *mut f32,
) {
    // In bytes.
    let (a_stride, b_stride, c_stride) = (4 * tile.a_stride, 4 * tile.b_stride, 4 * tile.c_stride);
    // SAFETY: each tile is 16 rows of 64 bytes at the stride of its matrix, inside the memory that the caller promises.
    unsafe {
        let lower = c.wrapping_add(TILE_ROWS * tile.c_stride);
        if tile.accumulate {
            tiles!("tileloadd tmm0, [{at} + {stride}]"; c, c_stride);
            if WIDE {
                tiles!("tileloadd tmm1, [{at} + {stride} + 64]"; c, c_stride);
            }
            if TALL {
                tiles!("tileloadd tmm2, [{at} + {stride}]"; lower, c_stride);
            }
            if TALL && WIDE {
                tiles!("tileloadd tmm3, [{at} + {stride} + 64]"; lower, c_stride);
            }
        } else {
            tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3");
        }
        for _ in 0..tile.pairs / TILE_PAIRS {
            tiles!("tileloadd tmm4, [{at} + {stride}]"; a, a_stride);
            tiles!("tileloadd tmm6, [{at} + {stride}]", "tdpbf16ps tmm0, tmm4, tmm6"; b, b_stride);
            if WIDE {
                tiles!("tileloadd tmm7, [{at} + {stride} + 64]", "tdpbf16ps tmm1, tmm4, tmm7"; b, b_stride);
            }
            if TALL {
                let a = a.wrapping_add(TILE_ROWS * tile.a_stride);
                tiles!("tileloadd tmm5, [{at} + {stride}]", "tdpbf16ps tmm2, tmm5, tmm6"; a, a_stride);
            }
            if TALL && WIDE {
                tiles!("tdpbf16ps tmm3, tmm5, tmm7");
            }
            a = a.wrapping_add(TILE_PAIRS);
            b = b.wrapping_add(TILE_PAIRS * tile.b_stride);
        }
        tiles!("tilestored [{at} + {stride}], tmm0"; c, c_stride);
        if WIDE {
            tiles!("tilestored [{at} + {stride} + 64], tmm1"; c, c_stride);
        }
        if TALL {
            tiles!("tilestored [{at} + {stride}], tmm2"; lower, c_stride);
        }
        if TALL && WIDE {
            tiles!("tilestored [{at} + {stride} + 64], tmm3"; lower, c_stride);
        }
    }
}

// SAFETY: `microkernel` reads and writes 16 or 32 rows of 16 or 32 columns: at most `MAX_ROWS` rows, and exactly the
// vectors of the tile.
unsafe impl Bf16Dot for Amx {
    /// Two by two tiles: with eight tile registers, four hold sums, and each step has four loads for four products. One
    /// by one would have two loads for each product.
    const MAX_ROWS: usize = 2 * TILE_ROWS;
    const MAX_VECTORS: usize = 2;
    const PAIR_STEP: usize = TILE_PAIRS;

    #[inline(always)]
    fn round_to_bf16(self, from: &[f32], to: &mut [Bf16x2]) {
        self.0.round_to_bf16(from, to);
    }

    #[inline(always)]
    unsafe fn multiply_tile(self, tile: Bf16Tile, a: *const Bf16x2, b: *const Bf16x2, c: *mut f32) {
        // SAFETY: the caller's promise; `run_bf16` has configured the tiles.
        unsafe {
            match (tile.rows > TILE_ROWS, tile.vectors > 1) {
                (true, true) => microkernel::<true, true>(tile, a, b, c),
                (true, false) => microkernel::<true, false>(tile, a, b, c),
                (false, true) => microkernel::<false, true>(tile, a, b, c),
                (false, false) => microkernel::<false, false>(tile, a, b, c),
            }
        }
    }
}

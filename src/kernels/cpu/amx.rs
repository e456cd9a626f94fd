//! AMX: products of 16 × 16 tiles of bf16 in eight registers of 1 KiB each. The intrinsics are not stable in Rust, so
//! these are the instructions themselves.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max, _xgetbv};

use super::pairs::{Pair, PairDot, Tile};
use super::x86::Avx512;
use super::x86_bf16::Avx512Bf16;

/// AMX-BF16, with the operating system's permission to use it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amx(Avx512Bf16);

/// What `ldtilecfg` reads: palette 1, eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_a_row: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: TileConfig = {
    let mut config = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], bytes_a_row: [0; 16], rows: [0; 16] };
    let mut tile = 0;
    while tile < 8 {
        config.bytes_a_row[tile] = 64;
        config.rows[tile] = 16;
        tile += 1;
    }
    config
};

impl Amx {
    pub(super) fn new() -> Option<Self> {
        Avx512Bf16::new().filter(|_| has_tiles() && ask_permission()).map(Self)
    }

    pub(super) fn floats(self) -> Avx512 {
        self.0.floats()
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
    // SAFETY: OSXSAVE was seen: the processor has XGETBV, and it is enabled.
    amx && unsafe { _xgetbv(0) } & TILE_STATES == TILE_STATES
}

/// Linux gives a process the 8 KiB of tile state only when asked (`arch_prctl`, since 5.16); elsewhere it is not used.
#[cfg(target_os = "linux")]
fn ask_permission() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call that touches no memory of ours; the kernel overwrites rcx and r11.
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

#[cfg(not(target_os = "linux"))]
fn ask_permission() -> bool {
    false
}

/// Pairs a row of a tile: 64 bytes.
const STEP: usize = 16;

/// One tile instruction after the other, each `[memory + stride]` an operand. The compiler uses no tile registers, so what
/// they hold lasts from one of these to the next.
macro_rules! tiles {
    ($($instruction:literal),+; $at:ident, $stride:ident) => {
        asm!($($instruction),+, at = in(reg) $at, stride = in(reg) $stride, options(nostack))
    };
    ($($instruction:literal),+) => {
        asm!($($instruction),+, options(nostack, nomem))
    };
}

/// One or two tiles of rows (`TALL`) by one or two tiles of columns (`WIDE`): sums in tiles 0 to 3, A in 4 and 5, B in 6
/// and 7.
///
/// # Safety
/// As [`PairDot::tile`].
#[inline(always)]
unsafe fn product<const TALL: bool, const WIDE: bool>(tile: Tile, mut a: *const Pair, mut b: *const Pair, c: *mut f32) {
    let (a_row, b_row, c_row) = (4 * tile.a_row, 4 * tile.b_row, 4 * tile.c_row);
    // SAFETY: each tile is 16 rows of 64 bytes at a stride that was given, inside what the caller promises.
    unsafe {
        let lower = c.wrapping_add(16 * tile.c_row);
        if tile.add {
            tiles!("tileloadd tmm0, [{at} + {stride}]"; c, c_row);
            if WIDE {
                tiles!("tileloadd tmm1, [{at} + {stride} + 64]"; c, c_row);
            }
            if TALL {
                tiles!("tileloadd tmm2, [{at} + {stride}]"; lower, c_row);
            }
            if TALL && WIDE {
                tiles!("tileloadd tmm3, [{at} + {stride} + 64]"; lower, c_row);
            }
        } else {
            tiles!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3");
        }
        for _ in 0..tile.pairs / STEP {
            tiles!("tileloadd tmm4, [{at} + {stride}]"; a, a_row);
            tiles!("tileloadd tmm6, [{at} + {stride}]", "tdpbf16ps tmm0, tmm4, tmm6"; b, b_row);
            if WIDE {
                tiles!("tileloadd tmm7, [{at} + {stride} + 64]", "tdpbf16ps tmm1, tmm4, tmm7"; b, b_row);
            }
            if TALL {
                let a = a.wrapping_add(16 * tile.a_row);
                tiles!("tileloadd tmm5, [{at} + {stride}]", "tdpbf16ps tmm2, tmm5, tmm6"; a, a_row);
            }
            if TALL && WIDE {
                tiles!("tdpbf16ps tmm3, tmm5, tmm7");
            }
            a = a.wrapping_add(STEP);
            b = b.wrapping_add(STEP * tile.b_row);
        }
        tiles!("tilestored [{at} + {stride}], tmm0"; c, c_row);
        if WIDE {
            tiles!("tilestored [{at} + {stride} + 64], tmm1"; c, c_row);
        }
        if TALL {
            tiles!("tilestored [{at} + {stride}], tmm2"; lower, c_row);
        }
        if TALL && WIDE {
            tiles!("tilestored [{at} + {stride} + 64], tmm3"; lower, c_row);
        }
    }
}

// SAFETY: the tiles read and write 16 or 32 rows of 16 or 32 columns: within `ROWS` rows and `vectors` vectors.
unsafe impl PairDot for Amx {
    const ROWS: usize = 32;
    const VECTORS: usize = 2;
    const STEP: usize = STEP;

    #[inline(always)]
    fn begin(self) {
        // SAFETY: `self` is the proof that the processor has AMX and that this process may use it.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) };
    }

    #[inline(always)]
    fn end(self) {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    #[inline(always)]
    fn round(self, from: &[f32], to: &mut [Pair]) {
        self.0.round(from, to);
    }

    #[inline(always)]
    unsafe fn tile(self, tile: Tile, a: *const Pair, b: *const Pair, c: *mut f32) {
        // SAFETY: promised by the caller; `begin` has set the tiles up.
        unsafe {
            match (tile.rows > 16, tile.vectors > 1) {
                (true, true) => product::<true, true>(tile, a, b, c),
                (true, false) => product::<true, false>(tile, a, b, c),
                (false, true) => product::<false, true>(tile, a, b, c),
                (false, false) => product::<false, false>(tile, a, b, c),
            }
        }
    }
}

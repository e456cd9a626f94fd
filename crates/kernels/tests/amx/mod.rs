//! AMX where the processor does not have it: an emulator of its instructions, so that the kernels for AMX are tested on
//! every Linux machine with AVX512-BF16. Where the processor has AMX, the emulator is compared with it.

#[cfg(target_os = "linux")]
mod decode;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod permission;
#[cfg(target_os = "linux")]
mod processor;
#[cfg(target_os = "linux")]
mod signal;

use std::arch::asm;

use crate::isa::amx::tile_asm;

/// Emulates the instructions in this process from now on. `false` where this is not possible.
#[cfg(target_os = "linux")]
pub(crate) fn emulate() -> bool {
    signal::install()
}

/// The emulator is for Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn emulate() -> bool {
    false
}

/// Fills the tile registers with NaN, so that tests see it if a product uses what was in them before.
pub(crate) fn fill_with_nan() {
    let row = [f32::NAN; 16];
    // SAFETY: the tiles are configured, as for the product that follows. Each is 16 times the one row.
    unsafe {
        tile_asm!(
            "tileloadd tmm0, [{row} + {stride}]",
            "tileloadd tmm1, [{row} + {stride}]",
            "tileloadd tmm2, [{row} + {stride}]",
            "tileloadd tmm3, [{row} + {stride}]",
            "tileloadd tmm4, [{row} + {stride}]",
            "tileloadd tmm5, [{row} + {stride}]",
            "tileloadd tmm6, [{row} + {stride}]",
            "tileloadd tmm7, [{row} + {stride}]",
            row = in(reg) &raw const row,
            stride = in(reg) 0usize,
            options(nostack, readonly),
        );
    }
}

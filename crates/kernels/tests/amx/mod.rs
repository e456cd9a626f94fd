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

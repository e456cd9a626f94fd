//! Instruction sets that only tests have.

pub(crate) mod portable_bf16;
mod portable_tiles;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vnni_evex;

//! The interface between kernels with products of 8-bit integers and the instruction sets that they run on.

use super::dot::Int8Dot;
use super::tiles::Int8Tiles;
use crate::isa::kernel::InstructionSet;
use crate::isa::simd::Simd;

/// A kernel that multiplies 8-bit integers. `run` must be `#[inline(always)]`, for the reason given at
/// [`Kernel`](crate::isa::kernel::Kernel).
pub(crate) trait Int8Kernel {
    /// The register tile is `MR` rows by `NR` vectors of `D`, and `BLOCK_MR` rows for weights with a scale per block.
    fn run<D: Int8Dot, const MR: usize, const NR: usize, const BLOCK_MR: usize>(self, dot: D);
}

/// A kernel that multiplies int8 tiles. `run` must be `#[inline(always)]`, too.
pub(crate) trait Int8TileKernel {
    fn run<S: Simd, T: Int8Tiles>(self, s: S, tiles: T);
}

/// How kernels with products of 8-bit integers run on an instruction set.
pub(crate) trait Int8InstructionSet: InstructionSet {
    /// Whether there are instructions that multiply tiles of 8-bit integers, and so a
    /// [`run_int8_tiles`](Self::run_int8_tiles).
    const HAS_INT8_TILES: bool = false;

    /// Runs a kernel with the best products of 8-bit integers among those of this instruction set and older ones. VNNI
    /// is taken to belong to AVX2 and AVX-512, where the processor has it.
    fn run_int8<K: Int8Kernel>(self, kernel: K);

    /// Runs a kernel with products of int8 tiles. Only for instruction sets with
    /// [`HAS_INT8_TILES`](Self::HAS_INT8_TILES).
    fn run_int8_tiles<K: Int8TileKernel>(self, _kernel: K) {
        unreachable!("{} has no products of int8 tiles", Self::NAME)
    }
}

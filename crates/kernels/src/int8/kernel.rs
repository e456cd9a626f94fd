//! The interface between kernels with products of 8-bit integers and the instruction sets that they run on: vectors of
//! integers, and for some whole tiles of them, with weights in the panels of the vectors.

use super::dot::Int8Dot;
use crate::isa::kernel::InstructionSet;
use crate::isa::simd::Simd;

/// Rows of the largest product.
pub(crate) const TILE_ROWS: usize = 32;
/// Outputs of a product, the width of a panel.
pub(crate) const TILE_COLUMNS: usize = 32;
/// Inputs per step.
pub(crate) const TILE_STEP: usize = 64;

/// The sums of a product, row by row.
#[repr(align(64))]
pub(crate) struct Sums(pub [i32; TILE_ROWS * TILE_COLUMNS]);

/// Instructions that multiply tiles of signed 8-bit integers. A value is a capability token: see
/// [`InstructionSet`](crate::isa::kernel::InstructionSet).
///
/// # Safety
/// `multiply` accesses the memory that its own safety section names, and nothing else.
pub(crate) unsafe trait Int8Tiles: Copy + Send + Sync {
    /// Writes the sums of `rows` rows by [`TILE_COLUMNS`] outputs over `steps` steps.
    ///
    /// # Safety
    /// - `a` can be read for `rows` rows, rounded up to a multiple of 16, of `steps` steps, which are `a_stride` bytes
    ///   apart; `panel` for `steps` steps of a panel with four inputs of each output side by side.
    /// - `rows` is from 1 to [`TILE_ROWS`].
    /// - The caller is a kernel under [`Int8InstructionSet::run_int8_tiles`].
    unsafe fn multiply(
        self,
        rows: usize,
        steps: usize,
        a: *const i8,
        a_stride: usize,
        panel: *const u8,
        sums: &mut Sums,
    );
}

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

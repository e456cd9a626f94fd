//! Products of int8 tiles: instructions that multiply whole tiles, with weights in the panels of the vectors.

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
    /// - The caller is a kernel under
    ///   [`Int8InstructionSet::run_int8_tiles`](super::kernel::Int8InstructionSet::run_int8_tiles).
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

//! The product of a few rows with a few columns, held in registers.

use super::simd::Simd;

/// `MR` rows of numbers: row `r`, column `k` is at `at + r · row + k · column`.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub at: *const f32,
    pub row: usize,
    pub column: usize,
}

/// `A · B` for `MR` rows of `A` and `NR` vectors of columns of `B`, over `k` terms, summed one after the other: an
/// element of the product does not depend on which others are computed with it.
///
/// # Safety
/// `a` can be read for `MR` rows of `k` columns; `b` for `k` rows of `NR · LANES` numbers, `b_row` apart.
#[inline(always)]
pub(super) unsafe fn product<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    k: usize,
    a: Rows,
    b: *const f32,
    b_row: usize,
) -> [[S::V; NR]; MR] {
    let mut sums = [[s.splat(0.0); NR]; MR];
    for term in 0..k {
        // SAFETY: `term < k`, `n < NR`, `r < MR`: inside what the caller promises.
        unsafe {
            let mut columns = [s.splat(0.0); NR];
            for (n, column) in columns.iter_mut().enumerate() {
                *column = s.load(b.add(term * b_row + n * S::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = s.splat(*a.at.add(r * a.row + term * a.column));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = s.mul_add(x, column, *sum);
                }
            }
        }
    }
    sums
}

//! The microkernel: a product of a few rows with a few columns, held in registers.

use super::isa::simd::{MAX_LANES, Simd};

/// Rows of values in memory: row `r` starts at `at + r · stride`.
#[derive(Clone, Copy)]
pub(super) struct StridedRows {
    pub at: *const f32,
    pub stride: usize,
}

impl StridedRows {
    /// Value `at` of each of the first `LANES` rows.
    #[inline(always)]
    pub fn pointers<S: Simd>(self, at: usize) -> [*const f32; MAX_LANES] {
        let mut rows = [self.at; MAX_LANES];
        for (r, row) in rows.iter_mut().take(S::LANES).enumerate() {
            *row = self.at.wrapping_add(r * self.stride + at);
        }
        rows
    }
}

/// How far ahead of its use B is prefetched, in bytes. Processors fetch ahead themselves, but not past the end of a
/// page of 4 KiB. For one short text, whose product reads each weight once, this makes the product more than twice as
/// fast.
const PREFETCH_BYTES: usize = 2048;

/// `A · B` for `MR` rows of A and `NR` vectors of columns of B, over `k` terms.
///
/// The terms are added in order, so an element does not depend on which other elements are computed with it.
///
/// `PREFETCH`: whether B is fetched into the cache ahead of its use, because it comes from memory.
///
/// # Safety
/// A can be read for `MR` rows of `k` values, and B for `k` rows of `NR · LANES` values, `b_stride` values apart.
#[inline(always)]
pub(super) unsafe fn microkernel<S: Simd, const MR: usize, const NR: usize, const PREFETCH: bool>(
    s: S,
    k: usize,
    a: StridedRows,
    b: *const f32,
    b_stride: usize,
) -> [[S::V; NR]; MR] {
    let mut sums = [[s.splat(0.0); NR]; MR];
    for term in 0..k {
        // SAFETY: `term < k`, `n < NR` and `r < MR` stay inside the memory that the caller promises.
        unsafe {
            let mut columns = [s.splat(0.0); NR];
            for (n, column) in columns.iter_mut().enumerate() {
                let from = b.add(term * b_stride + n * S::LANES);
                *column = s.load(from);
                if PREFETCH && (n * S::LANES).is_multiple_of(16) {
                    s.prefetch(from.wrapping_byte_add(PREFETCH_BYTES));
                }
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = s.splat(*a.at.add(r * a.stride + term));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = s.mul_add(x, column, *sum);
                }
            }
        }
    }
    sums
}

/// [`microkernel`] for A in columns: the `MR` values of term `t` start at `a + t · a_stride`.
///
/// # Safety
/// A can be read for `k` terms of `MR` values, `a_stride` values apart, and B for `k` rows of `NR · LANES` values,
/// `b_stride` values apart.
#[inline(always)]
pub(super) unsafe fn column_microkernel<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    k: usize,
    (a, a_stride): (*const f32, usize),
    (b, b_stride): (*const f32, usize),
) -> [[S::V; NR]; MR] {
    let mut sums = [[s.splat(0.0); NR]; MR];
    for term in 0..k {
        // SAFETY: `term < k`, `n < NR` and `r < MR` stay inside the memory that the caller promises.
        unsafe {
            let mut columns = [s.splat(0.0); NR];
            for (n, column) in columns.iter_mut().enumerate() {
                *column = s.load(b.add(term * b_stride + n * S::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = s.splat(*a.add(term * a_stride + r));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = s.mul_add(x, column, *sum);
                }
            }
        }
    }
    sums
}

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

/// Memory that is fetched into the cache while a tile is computed.
///
/// So memory and multiply-adds are busy at the same time. Processors fetch ahead themselves, but not past the end of a
/// page of 4 KiB. The fetches are spread over the steps of many tiles: if they come faster than memory answers, they
/// hold up the loads of the tile. Then products were no faster than without them; spread, they are by a tenth.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    at: *const u8,
    /// Cache lines with each so many steps.
    lines: usize,
    steps: usize,
}

impl Prefetch {
    /// Nothing.
    pub const NONE: Self = Self { at: std::ptr::null(), lines: 0, steps: 1 };

    /// What tile `index` of the `tiles` of a panel fetches. A step of a tile reads `step` bytes, and all together the
    /// panel. The first ones share the `next` panel, which is as large. If the panel `is_first`, or if there are few
    /// tiles and the next panel would not stay in the L2 cache, the first tile fetches what it soon reads itself.
    pub fn of_tile(panel: &[u8], next: *const u8, step: usize, (index, tiles): (usize, usize), is_first: bool) -> Self {
        const FEW: usize = 3;
        const MOST_OF_FEW: usize = 1 << 18;
        if index == 0 && (is_first || tiles < FEW) {
            let own = is_first || panel.len() > MOST_OF_FEW;
            let at = if own { panel.as_ptr().wrapping_add(BYTES_AHEAD) } else { next };
            return Self { at, lines: step.div_ceil(LINE), steps: 1 };
        }
        if tiles < FEW {
            return Self::NONE;
        }
        let lines = (SPREAD * step).div_ceil(LINE * tiles);
        let share = panel.len().div_ceil(SPREAD * step) * lines * LINE;
        match index * share >= panel.len() {
            true => Self::NONE,
            false => Self { at: next.wrapping_add(index * share), lines, steps: SPREAD },
        }
    }

    /// Fetches what goes with a step.
    #[inline(always)]
    pub fn step<S: Simd>(&mut self, s: S, step: usize) {
        if step & (self.steps - 1) == 0 {
            for _ in 0..self.lines {
                s.prefetch(self.at.cast());
                self.at = self.at.wrapping_add(LINE);
            }
        }
    }
}

/// How far ahead of its use a panel is fetched that nothing has fetched before.
const BYTES_AHEAD: usize = 2048;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Steps between two fetches of many tiles, a power of two.
const SPREAD: usize = 4;

/// `A · B` for `MR` rows of A and `NR` vectors of columns of B, over `k` terms.
///
/// The terms are added in order, so an element does not depend on which other elements are computed with it.
///
/// `PREFETCH_B`: whether B is fetched ahead of its use, in tiles of so few rows that nothing else fits between their
/// loads.
///
/// # Safety
/// A can be read for `MR` rows of `k` values, and B for `k` rows of `NR · LANES` values, `b_stride` values apart.
#[inline(always)]
pub(super) unsafe fn microkernel<S: Simd, const MR: usize, const NR: usize, const PREFETCH_B: bool>(
    s: S,
    k: usize,
    a: StridedRows,
    b: *const f32,
    b_stride: usize,
    mut prefetch: Prefetch,
) -> [[S::V; NR]; MR] {
    let mut sums = [[s.splat(0.0); NR]; MR];
    for term in 0..k {
        prefetch.step(s, term);
        // SAFETY: `term < k`, `n < NR` and `r < MR` stay inside the memory that the caller promises.
        unsafe {
            let mut columns = [s.splat(0.0); NR];
            for (n, column) in columns.iter_mut().enumerate() {
                let from = b.add(term * b_stride + n * S::LANES);
                *column = s.load(from);
                if PREFETCH_B && (n * S::LANES * size_of::<f32>()).is_multiple_of(LINE) {
                    s.prefetch(from.wrapping_byte_add(BYTES_AHEAD));
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

//! The microkernel: a product of a few rows with a few columns, held in registers.

use bytemuck::Zeroable;

use super::simd::{MAX_LANES, Simd};
use crate::convert::Convert;
use crate::unroll::unroll;

/// Rows of values in memory: row `r` starts at `at + r · stride`.
#[derive(Clone, Copy)]
pub(crate) struct StridedRows<T = f32> {
    pub at: *const T,
    pub stride: usize,
}

impl<T> StridedRows<T> {
    /// Value `at` of each of the first `LANES` rows.
    #[inline(always)]
    pub fn pointers<S: Simd>(self, at: usize) -> [*const T; MAX_LANES] {
        let mut rows = [self.at; MAX_LANES];
        for (r, row) in rows.iter_mut().take(S::LANES).enumerate() {
            *row = self.at.wrapping_add(r * self.stride + at);
        }
        rows
    }
}

/// Packs `LANES` rows of `width` values or pairs into columns: value `c` of row `r` becomes `to[c · stride + r]`.
///
/// # Safety
/// `width` values can be read at each of the rows.
#[inline(always)]
pub(crate) unsafe fn pack_rows<S: Simd>(s: S, rows: StridedRows, width: usize, to: &mut [f32], stride: usize) {
    assert!(width > 0 && to.len() >= (width - 1) * stride + S::LANES);
    let whole = width / S::COLUMNS * S::COLUMNS;
    for at in (0..whole).step_by(S::COLUMNS) {
        // SAFETY: the caller promises the rows, and the assertion checks `width` columns of `LANES` values.
        unsafe {
            let (columns, to) = (s.transposed(&rows.pointers::<S>(at)), to.as_mut_ptr().add(at * stride));
            unroll!(c in 0..S::COLUMNS => s.store(to.add(c * stride), columns[c]));
        }
    }
    for at in whole..width {
        for (to, row) in to[at * stride..][..S::LANES].iter_mut().zip(rows.pointers::<S>(at)) {
            // SAFETY: the caller promises the rows. Any bits are valid for f32.
            *to = unsafe { *row };
        }
    }
}

/// Memory that is fetched into the cache while a tile is computed.
///
/// So memory and multiply-adds are busy at the same time. Processors fetch ahead themselves, but not past the end of a
/// page of 4 KiB. The fetches are spread over the terms of many tiles: if they come faster than memory answers, they
/// hold up the loads of the tile. Then products were no faster than without them; spread, they are by a tenth.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    at: *const u8,
    /// Cache lines that are fetched together.
    lines: usize,
    /// They are fetched before a block of steps whose index has none of these bits.
    mask: usize,
    /// Whether they are fetched to the L2 cache alone.
    to_l2: bool,
}

impl Prefetch {
    /// Nothing.
    pub const NONE: Self = Self { at: std::ptr::null(), lines: 0, mask: 0, to_l2: false };
    /// Steps between two fetches. The loop over them has no other work than multiply-adds and loads.
    pub const BLOCK: usize = 4;

    /// The memory that tile `index` of the `tiles` of a panel fetches. A step of a tile reads `step` bytes, and all
    /// together the panel. All tiles share the `next` panel, which is as large. If the panel `is_first`, or if there
    /// are few tiles and the next panel would not stay in the L2 cache, the first tile fetches what it soon reads
    /// itself.
    pub fn for_tile(
        panel: &[u8],
        next: *const u8,
        step: usize,
        (index, tiles): (usize, usize),
        is_first: bool,
    ) -> Self {
        const FEW: usize = 3;
        const SEVERAL: usize = 8;
        const MOST_OF_FEW: usize = 1 << 18;
        let is_large = tiles < FEW && panel.len() > MOST_OF_FEW;
        if index == 0 && (is_first || is_large) {
            return Self::ahead(panel, step);
        }
        let (blocks, share) = (panel.len() / (Self::BLOCK * step), panel.len().div_ceil(LINE * tiles));
        if is_large || blocks == 0 {
            return Self::NONE;
        }
        let lines = share.div_ceil(blocks);
        let every = 1 << (blocks / share).max(1).ilog2();
        let fetched = index * blocks.div_ceil(every) * lines * LINE;
        if fetched >= panel.len() {
            return Self::NONE;
        }
        // A few tiles fetch so much that it would drive what they read out of the L1 cache.
        Self { at: next.wrapping_add(fetched), lines, mask: every - 1, to_l2: tiles < SEVERAL }
    }

    /// The part of its own panel that a tile soon reads, `step` bytes per step: for the first tile of a panel that
    /// nothing has fetched before, and for tiles of so few rows that nothing else fits between their loads.
    pub fn ahead(panel: &[u8], step: usize) -> Self {
        let (at, lines) = (panel.as_ptr().wrapping_add(BYTES_AHEAD), (Self::BLOCK * step).div_ceil(LINE));
        Self { at, lines, mask: 0, to_l2: false }
    }

    /// Fetches what goes with a step, where loops over blocks of steps are not written out.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub fn step<S: Simd>(&mut self, s: S, step: usize) {
        if step.is_multiple_of(Self::BLOCK) {
            self.fetch(s, step / Self::BLOCK);
        }
    }

    /// Fetches what goes with a block of steps.
    #[inline(always)]
    pub fn fetch<S: Simd>(&mut self, s: S, block: usize) {
        if block & self.mask == 0 {
            for _ in 0..self.lines {
                if self.to_l2 {
                    s.prefetch_l2(self.at.cast())
                } else {
                    s.prefetch(self.at.cast())
                }
                self.at = self.at.wrapping_add(LINE);
            }
        }
    }
}

/// How far ahead of its use a panel is fetched that nothing has fetched before.
const BYTES_AHEAD: usize = 2048;
/// Bytes of a cache line.
const LINE: usize = 64;

/// The left operand of a product: value `t` of row `r` is at `at + r · row_stride + t · term_stride`.
#[derive(Clone, Copy)]
pub(crate) struct Lhs {
    at: *const f32,
    row_stride: usize,
    term_stride: usize,
}

impl Lhs {
    /// Rows whose values are contiguous.
    #[inline(always)]
    pub fn rows(at: *const f32, row_stride: usize) -> Self {
        Self { at, row_stride, term_stride: 1 }
    }

    /// The values of all rows at one term are contiguous.
    #[inline(always)]
    pub fn columns(at: *const f32, term_stride: usize) -> Self {
        Self { at, row_stride: 1, term_stride }
    }

    /// A value, in all lanes.
    ///
    /// # Safety
    /// It can be read.
    #[inline(always)]
    unsafe fn splat<S: Simd>(&self, s: S, row: usize, term: usize) -> S::V {
        // SAFETY: the caller promises it.
        s.splat(unsafe { *self.at.wrapping_add(row * self.row_stride + term * self.term_stride) })
    }
}

/// The right operand of a product: vectors of columns, in one panel or in some that follow each other.
#[derive(Clone, Copy)]
pub(crate) struct Rhs<T> {
    at: *const T,
    /// From one term to the next.
    stride: usize,
    /// Vectors of a panel, and values from one panel to the next.
    vectors: usize,
    panel: usize,
    /// Where the columns of the first term are written in f32, if they are.
    copy: Option<*mut f32>,
}

impl<T> Rhs<T> {
    /// Columns of one panel or matrix: those of term `t` start at `at + t · stride`.
    #[inline(always)]
    pub fn new(at: *const T, stride: usize) -> Self {
        Self { at, stride, vectors: usize::MAX, panel: 0, copy: None }
    }

    /// All columns of panels that are `panel` values apart, with so many `vectors` each.
    #[inline(always)]
    pub fn panels(at: *const T, stride: usize, vectors: usize, panel: usize) -> Self {
        Self { at, stride, vectors, panel, copy: None }
    }

    /// The right operand of which each term is also written in f32 to memory of its own, one after the other.
    #[inline(always)]
    pub fn copied_to(self, memory: *mut f32) -> Self {
        Self { copy: Some(memory), ..self }
    }

    /// Vector `n` of a term.
    ///
    /// # Safety
    /// It can be read.
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, n: usize, term: usize) -> S::V
    where
        T: Convert,
    {
        let place = term * self.stride + n / self.vectors * self.panel + n % self.vectors * S::LANES;
        // SAFETY: the caller promises it.
        unsafe { s.load_as(self.at.wrapping_add(place)) }
    }
}

/// `A · B` for `MR` rows of A and `NR` vectors of columns of B, over `k` terms.
///
/// The terms are added in order, so an element does not depend on which other elements are computed with it.
///
/// # Safety
/// A can be read for `MR` rows of `k` values, and B for `k` rows of `NR · LANES` values; as many can be written to a
/// copy.
#[inline(always)]
pub(crate) unsafe fn microkernel<S: Simd, T: Convert, const MR: usize, const NR: usize>(
    s: S,
    k: usize,
    mut a: Lhs,
    mut b: Rhs<T>,
    mut prefetch: Prefetch,
) -> [[S::V; NR]; MR] {
    let mut sums: [[S::V; NR]; MR] = Zeroable::zeroed();
    // The compiler mixes the terms of a block of arrays of numbers, and on Arm of one that is also copied, and keeps
    // some values on the stack.
    let one_by_one = !S::PREFETCHES || cfg!(target_arch = "aarch64") && b.copy.is_some();
    let blocks = if one_by_one { 0 } else { k / Prefetch::BLOCK };
    // SAFETY: each term is one of the `k`.
    unsafe {
        for block in 0..blocks {
            prefetch.fetch(s, block);
            unroll!(term in 0..Prefetch::BLOCK => add_term(s, term, &mut a, &mut b, &mut sums));
            skip_terms(Prefetch::BLOCK, &mut a, &mut b, NR * S::LANES);
        }
        for _ in blocks * Prefetch::BLOCK..k {
            add_term(s, 0, &mut a, &mut b, &mut sums);
            skip_terms(1, &mut a, &mut b, NR * S::LANES);
        }
    }
    sums
}

/// Adds the products of a term.
///
/// # Safety
/// A can be read for `MR` values of the term, and B for `NR` vectors; as many can be written to a copy.
#[inline(always)]
unsafe fn add_term<S: Simd, T: Convert, const MR: usize, const NR: usize>(
    s: S,
    term: usize,
    a: &mut Lhs,
    b: &mut Rhs<T>,
    sums: &mut [[S::V; NR]; MR],
) {
    // SAFETY: `r < MR` and `n < NR` stay inside the memory that the caller promises.
    unsafe {
        if MR == 1 {
            // Each vector is used once, as soon as it is loaded.
            let x = a.splat(s, 0, term);
            unroll!(n in 0..NR => sums[0][n] = s.mul_add(x, b.load(s, n, term), sums[0][n]));
        } else {
            let mut columns: [S::V; NR] = Zeroable::zeroed();
            unroll!(n in 0..NR => {
                columns[n] = b.load(s, n, term);
                if let Some(copy) = b.copy {
                    s.store(copy.add((term * NR + n) * S::LANES), columns[n]);
                }
            });
            unroll!(r in 0..MR => add_products(s, a.splat(s, r, term), &columns, &mut sums[r]));
        }
    }
    hide_addresses(&mut a.at, &mut b.at);
}

/// Adds the products of `x` with some vectors to their sums.
#[inline(always)]
pub(crate) fn add_products<S: Simd, const NR: usize>(s: S, x: S::V, columns: &[S::V; NR], sums: &mut [S::V; NR]) {
    unroll!(n in 0..NR => sums[n] = s.mul_add(x, columns[n], sums[n]));
}

/// Writes a tile to rows `stride` values apart.
///
/// # Safety
/// `NR` vectors can be written in each row.
#[inline(always)]
pub(crate) unsafe fn store_rows<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    sums: &[[S::V; NR]; MR],
    to: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller promises it.
    unroll!(r in 0..MR => unroll!(n in 0..NR => unsafe { s.store(to.add(r * stride + n * S::LANES), sums[r][n]) }));
}

/// Adds a tile to rows `stride` values apart.
///
/// # Safety
/// `NR` vectors can be read and written in each row.
#[inline(always)]
pub(crate) unsafe fn add_to_rows<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    sums: &[[S::V; NR]; MR],
    to: *mut f32,
    stride: usize,
) {
    unroll!(r in 0..MR => unroll!(n in 0..NR => {
        let to = to.wrapping_add(r * stride + n * S::LANES);
        // SAFETY: the caller promises it.
        unsafe { s.store(to, s.add(s.load(to), sums[r][n])) };
    }));
}

/// Registers that a conversion of values takes.
pub(crate) const CONVERSION: usize = 4;

/// Adds `A · B`, over `k` terms of `MR` rows of A and as many rows of B with `width` values `b_stride` apart, to rows
/// of `width` values. A width is whole vectors.
///
/// # Safety
/// A can be read for `MR` rows of `k` values, B for `k` rows, and the `MR` rows at `to` can be read and written.
#[inline(always)]
pub(crate) unsafe fn add_product<S: Simd, T: Convert, const MR: usize, const NR: usize>(
    s: S,
    k: usize,
    a: Lhs,
    (b, b_stride): (*const T, usize),
    to: *mut f32,
    width: usize,
) {
    let most = const { most_vectors(MR, NR, S::SUMS - if T::IS_F32 { 0 } else { CONVERSION }) };
    let mut column = 0;
    while column < width {
        let vectors = vectors_per_step((width - column) / S::LANES, most);
        // SAFETY: `column + vectors · LANES` is at most `width`, a multiple of `LANES`; the caller promises the rest.
        unsafe {
            let (b, to) = (Rhs::new(b.add(column), b_stride), to.add(column));
            match vectors {
                1 => add_to_rows(s, &microkernel::<S, T, MR, 1>(s, k, a, b, Prefetch::NONE), to, width),
                3 if NR >= 3 => add_to_rows(s, &microkernel::<S, T, MR, 3>(s, k, a, b, Prefetch::NONE), to, width),
                _ => add_to_rows(s, &microkernel::<S, T, MR, 2>(s, k, a, b, Prefetch::NONE), to, width),
            }
        }
        column += vectors * S::LANES;
    }
}

/// The vectors of columns of a register tile of `rows` rows, at most `vectors`, whose sums are at most `sums`.
const fn most_vectors(rows: usize, vectors: usize, sums: usize) -> usize {
    let fitting = if sums / rows > 1 { sums / rows } else { 1 };
    if fitting < vectors { fitting } else { vectors }
}

/// How many of the `left` vectors to compute together: at most three, and at most those of a register tile. Four are
/// two pairs, because a single vector would use the registers badly.
#[inline(always)]
pub(crate) fn vectors_per_step(left: usize, of_tile: usize) -> usize {
    let vectors = match left {
        1 => 1,
        2 | 4 => 2,
        _ => 3,
    };
    vectors.min(of_tile)
}

/// Moves both operands by some terms, each of so many `columns`.
#[inline(always)]
fn skip_terms<T>(terms: usize, a: &mut Lhs, b: &mut Rhs<T>, columns: usize) {
    a.at = a.at.wrapping_add(terms * a.term_stride);
    b.at = b.at.wrapping_add(terms * b.stride);
    b.copy = b.copy.map(|copy| copy.wrapping_add(terms * columns));
}

/// Makes two addresses, and what is at them, unknown to the compiler, without an instruction. So it does not load the
/// values of later terms early: it would keep them on the stack, because the sums of a tile take the registers.
#[inline(always)]
pub(crate) fn hide_addresses<A, B>(a: &mut *const A, b: &mut *const B) {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    // SAFETY: the assembly is a comment: the registers keep their values.
    unsafe {
        std::arch::asm!("/* {0} {1} */", inout(reg) * a, inout(reg) * b, options(nostack, preserves_flags));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = (a, b);
}

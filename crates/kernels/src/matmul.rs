//! Products of two matrices in f32 that both change from call to call: those of a projection in training.
//!
//! An element of the result is a sum over the terms in order, by blocks of terms of one size. So it does not depend on
//! the number of threads.

use std::ops::Range;

use super::error::{Error, Result};
use super::gemm::Sums;
use super::isa::kernel::Kernel;
use super::isa::microkernel::{Lhs, Prefetch, Rhs, StridedRows, microkernel, pack_rows, store_rows};
use super::isa::simd::{MAX_LANES, Simd};
use super::memory::{AlignedVec, ScratchPool, element_count};
use super::registry::Isa;
use super::team::{Output, SharedOut, Team};

/// The most terms that are multiplied before the next ones are packed: a panel of them stays in the L2 cache.
const MAX_TERMS: usize = 512;
/// The most columns of the result that are packed together: 3 MB.
const MAX_COLUMNS: usize = 1536;
/// Rows that a task multiplies with a panel before the next panel is fetched.
const ROW_BLOCK: usize = 128;
/// Tasks for each thread: more than one, so that a thread that loses its core to another program does not hold up all.
const TASKS_PER_THREAD: usize = 3;
/// The most columns of a panel.
const MAX_PANEL: usize = 48;

/// A matrix `(rows, columns)`, whose memory is contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// `(rows, columns)`, or `(columns, rows)` if it is `transposed`.
    pub data: &'a [f32],
    /// `[rows, columns]`.
    pub dims: [usize; 2],
    /// Whether the columns are contiguous, not the rows.
    pub transposed: bool,
}

impl Matrix<'_> {
    fn check(&self, name: &str) -> Result<()> {
        if self.data.len() == element_count(name, &self.dims)? {
            return Ok(());
        }
        Err(Error::shape(name, &[self.data.len()], format!("{} × {}", self.dims[0], self.dims[1])))
    }
}

/// Computes `a b + bias` `(rows of a, columns of b)`, with one value of `bias` per column.
///
/// # Errors
/// If the sizes contradict each other, and if there is not enough memory.
pub fn matmul(isa: Isa, team: Team, a: Matrix, b: Matrix, bias: Option<&[f32]>, to: &mut Vec<f32>) -> Result<()> {
    a.check("the first factor of a product")?;
    b.check("the second factor of a product")?;
    let ([rows, terms], [b_rows, columns]) = (a.dims, b.dims);
    if b_rows != terms {
        return Err(Error::shape("the second factor of a product", &b.dims, format!("{terms} rows")));
    }
    if let Some(bias) = bias.filter(|bias| bias.len() != columns) {
        return Err(Error::shape("a bias", &[bias.len()], format!("[{columns}]")));
    }
    let what = "the output of a product";
    let size = element_count(what, &[rows, columns])?;
    if terms == 0 || size == 0 {
        to.clear();
        super::memory::try_reserve(what, to, size)?;
        (0..size / columns.max(1)).for_each(|_| match bias {
            Some(bias) => to.extend_from_slice(bias),
            None => to.extend(std::iter::repeat_n(0.0, columns)),
        });
        return Ok(());
    }
    let product = Product { isa, team, a, b, bias };
    // SAFETY: the tasks cover all rows and columns.
    unsafe { Output::Vec(to).write(what, size, |out| product.run(out)) }
}

/// The sums of the columns of `rows`, which has `columns` values per row, always added in the same order: the gradient
/// of a bias.
pub fn column_sums(rows: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0; columns];
    for row in rows.chunks_exact(columns.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sums
}

/// A product that was checked.
struct Product<'a> {
    isa: Isa,
    team: Team<'a>,
    a: Matrix<'a>,
    b: Matrix<'a>,
    bias: Option<&'a [f32]>,
}

impl Product<'_> {
    /// `out` is memory for the result.
    fn run(&self, out: SharedOut<f32>) -> Result<()> {
        let ([rows, all_terms], [_, all_columns]) = (self.a.dims, self.b.dims);
        let width = self.isa.tile_columns();
        let terms = all_terms.div_ceil(all_terms.div_ceil(MAX_TERMS)).next_multiple_of(MAX_LANES);
        let columns = all_columns.next_multiple_of(width).min(MAX_COLUMNS / width * width);
        let mut packed = AlignedVec::<f32>::zeros("a packed factor", columns * terms.min(all_terms))?;
        let pool = ScratchPool::default();
        for first_column in (0..all_columns).step_by(columns) {
            let columns = columns.min(all_columns - first_column);
            let panels = columns.div_ceil(width);
            for first_term in (0..all_terms).step_by(terms) {
                let terms = terms.min(all_terms - first_term);
                let part = Part { product: self, first_column, columns, first_term, terms, width, out };
                self.team.try_for_chunks(&mut packed[..panels * width * terms], width * terms, |panel, to| {
                    self.isa.run(PackPanel { part: &part, panel, to });
                    Ok::<_, Error>(())
                })?;
                let row_blocks = rows.div_ceil(ROW_BLOCK);
                let wanted = if self.team.threads() == 1 { 1 } else { TASKS_PER_THREAD * self.team.threads() };
                let group = panels.div_ceil(wanted.div_ceil(row_blocks).min(panels));
                let groups = panels.div_ceil(group);
                self.team.try_for_each(row_blocks * groups, |index| {
                    let (block, first) = (index / groups * ROW_BLOCK, index % groups * group);
                    let rows = ROW_BLOCK.min(rows - block);
                    let size = if self.a.transposed { (rows + MAX_LANES) * terms } else { 0 };
                    let (mut memory, panels) = (pool.take(size)?, first..panels.min(first + group));
                    let task =
                        Task { part: &part, packed: &packed, first_row: block, rows, panels, memory: &mut memory };
                    self.isa.run(task);
                    Ok::<_, Error>(())
                })?;
            }
        }
        Ok(())
    }
}

/// Some columns of the result, and some of the terms of each.
struct Part<'a> {
    product: &'a Product<'a>,
    first_column: usize,
    columns: usize,
    first_term: usize,
    terms: usize,
    /// Columns of a panel.
    width: usize,
    out: SharedOut<f32>,
}

/// Packs a panel of the second factor: the values of the first term, then of the second, and so on. Columns after the
/// last one are zeros.
struct PackPanel<'a> {
    part: &'a Part<'a>,
    panel: usize,
    to: &'a mut [f32],
}

impl Kernel for PackPanel<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { part: Part { product, first_column, columns, first_term, terms, width, .. }, panel, to } = self;
        let Matrix { data, dims: [all_terms, all_columns], transposed } = product.b;
        let column = first_column + panel * width;
        let count = *width.min(&(columns - panel * width));
        if !transposed {
            for (term, to) in (*first_term..).zip(to.chunks_exact_mut(*width)) {
                let from = &data[term * all_columns + column..][..count];
                let (values, padding) = to.split_at_mut(count);
                values.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
                padding.fill(0.0);
            }
            return;
        }
        let value = |column: usize, term: usize| &data[column * all_terms + term..];
        for first in (0..*width).step_by(S::LANES) {
            if first + S::LANES <= count {
                let last = value(column + first + S::LANES - 1, *first_term);
                assert!(last.len() >= *terms);
                let rows = StridedRows { at: value(column + first, *first_term).as_ptr(), stride: all_terms };
                // SAFETY: each row up to the last one, which was checked, has `terms` values.
                unsafe { pack_rows(s, rows, *terms, &mut to[first..], *width) };
                continue;
            }
            for term in 0..*terms {
                for (lane, to) in to[term * width + first..][..S::LANES].iter_mut().enumerate() {
                    let is_column = first + lane < count;
                    *to = if is_column { value(column + first + lane, first_term + term)[0] } else { 0.0 };
                }
            }
        }
    }
}

/// Some rows of some panels of a part.
struct Task<'a> {
    part: &'a Part<'a>,
    packed: &'a [f32],
    first_row: usize,
    rows: usize,
    panels: Range<usize>,
    /// For the rows of a first factor that is transposed, in tiles.
    memory: &'a mut [f32],
}

impl Kernel for Task<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(mut self, s: S) {
        let Part { product: Product { a, .. }, first_term, terms, width, .. } = *self.part;
        assert_eq!(width, NR * S::LANES);
        if a.transposed {
            self.pack_rows::<MR>();
        }
        let mut memory = Sums::ZERO;
        for panel in self.panels.clone() {
            let panel_terms = &self.packed[panel * width * terms..][..width * terms];
            let b = Rhs::new(panel_terms.as_ptr(), width);
            if a.transposed {
                for (tile, from) in self.memory.chunks_exact(MR * terms).take(self.rows.div_ceil(MR)).enumerate() {
                    let rows = tile * MR..self.rows.min((tile + 1) * MR);
                    // SAFETY: a tile has `terms` times `MR` values, and a panel as many times `width`. Rows of this
                    // task; the others after the last one are left out.
                    unsafe {
                        let a = Lhs::columns(from.as_ptr(), MR);
                        let sums = microkernel::<S, _, MR, NR>(s, terms, a, b, Prefetch::NONE);
                        store_rows(s, &sums, memory.0.as_mut_ptr(), width);
                        self.store(s, panel, rows, &memory.0);
                    }
                }
                continue;
            }
            let stride = a.dims[1];
            let mut row = 0;
            while row < self.rows {
                // The last tile may start before `row`, with rows that are computed again.
                let (first, height) = if self.rows < MR { (row, 1) } else { (row.min(self.rows - MR), MR) };
                let from = &a.data[(self.first_row + first) * stride + first_term..];
                assert!(from.len() >= (height - 1) * stride + terms);
                let a = Lhs::rows(from.as_ptr(), stride);
                // SAFETY: the assertion checks the rows; a panel has `terms` times `width` values. Rows of this task.
                unsafe {
                    if height == MR {
                        let sums = microkernel::<S, _, MR, NR>(s, terms, a, b, Prefetch::NONE);
                        store_rows(s, &sums, memory.0.as_mut_ptr(), width);
                    } else {
                        let sums = microkernel::<S, _, 1, NR>(s, terms, a, b, Prefetch::NONE);
                        store_rows(s, &sums, memory.0.as_mut_ptr(), width);
                    }
                    self.store(s, panel, row..first + height, &memory.0[(row - first) * width..]);
                }
                row = first + height;
            }
        }
    }
}

impl Task<'_> {
    /// Packs the rows of a first factor whose columns are contiguous, in tiles of `MR`: their values of the first term,
    /// then of the second, and so on.
    #[inline(always)]
    fn pack_rows<const MR: usize>(&mut self) {
        let Part { product: Product { a, .. }, first_term, terms, .. } = *self.part;
        let tiles = self.memory.chunks_exact_mut(MR * terms).take(self.rows.div_ceil(MR));
        for (tile, to) in tiles.enumerate() {
            let first = self.first_row + tile * MR;
            let count = MR.min(self.rows - tile * MR);
            for (term, to) in (first_term..).zip(to.chunks_exact_mut(MR)) {
                let from = &a.data[term * a.dims[0] + first..][..count];
                if count == MR {
                    to.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
                } else {
                    to.fill(0.0);
                    to[..count].copy_from_slice(from);
                }
            }
        }
    }

    /// Stores the sums of `rows`, a whole panel of each, plus the bias, or adds those of later terms.
    ///
    /// # Safety
    /// The rows are rows of this task, and no other thread writes them in this panel.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, s: S, panel: usize, rows: Range<usize>, sums: &[f32]) {
        let Part { product, first_column, columns, first_term, width, out, .. } = *self.part;
        let all_columns = product.b.dims[1];
        let column = first_column + panel * width;
        let present = width.min(columns - panel * width);
        let mut bias = [0.0; MAX_PANEL];
        if let (0, Some(values)) = (first_term, product.bias) {
            bias[..present].copy_from_slice(&values[column..][..present]);
        }
        for (row, sums) in rows.zip(sums.chunks_exact(width)) {
            let at = (self.first_row + row) * all_columns + column;
            // SAFETY: the caller promises that this part of the result is for this thread alone. It was written with
            // the first terms.
            unsafe {
                let to = out.start().add(at);
                if present == width {
                    for (i, sums) in sums.chunks_exact(S::LANES).enumerate() {
                        let to = to.add(i * S::LANES);
                        let before = if first_term == 0 { s.load_slice(&bias[i * S::LANES..]) } else { s.load(to) };
                        s.store(to, s.add(before, s.load_slice(sums)));
                    }
                    continue;
                }
                let mut values = bias;
                if first_term > 0 {
                    std::ptr::copy_nonoverlapping(to, values.as_mut_ptr(), present);
                }
                values.iter_mut().zip(sums).for_each(|(value, sum)| *value += sum);
                std::ptr::copy_nonoverlapping(values.as_ptr(), to, present);
            }
        }
    }
}

//! Products with a matrix of weights that was packed once.
//!
//! An element of the result is a sum over `k` in order, whatever the other rows are: a row's result is bitwise the same
//! alone and in any batch, on any number of threads.

use rayon::prelude::*;

use super::gelu::gelu;
use super::isa::{Isa, Kernel};
use super::output::Output;
use super::simd::Simd;
use super::tile::{Rows, product};

/// Rows that share a pass over the weights.
const ROW_BLOCK: usize = 64;
/// Multiply-adds below which a second thread costs more than it brings.
const SERIAL: usize = 1 << 23;

/// What happens to `x W + b` before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Epilogue {
    None,
    /// `x · Φ(x)` by the error function.
    Gelu,
}

/// Weights `(n, k)` and a bias, packed for one instruction set: panels of columns of the product, in each the first term
/// of every column, then the second.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    isa: Isa,
    k: usize,
    n: usize,
    /// Columns a panel.
    width: usize,
    panels: Vec<f32>,
    /// A number a column, zeros after the last.
    bias: Vec<f32>,
}

impl Packed {
    /// Packs `weight` `(n, k)`, row after row, and `bias` `(n)`, zeros if there is none.
    pub(crate) fn new(isa: Isa, weight: &[f32], bias: Option<&[f32]>, n: usize, k: usize) -> Self {
        assert_eq!(weight.len(), n * k, "the weight's size");
        let width = isa.panel_width();
        let padded = n.next_multiple_of(width);
        let mut panels = vec![0.0; padded * k];
        for (row, weights) in weight.chunks_exact(k.max(1)).enumerate() {
            let (panel, column) = (row / width, row % width);
            let panel = &mut panels[panel * width * k..][..width * k];
            for (terms, weight) in panel.chunks_exact_mut(width).zip(weights) {
                terms[column] = *weight;
            }
        }
        let mut all = vec![0.0; padded];
        if let Some(bias) = bias {
            all[..n].copy_from_slice(bias);
        }
        Self { isa, k, n, width, panels, bias: all }
    }

    /// Columns of the product.
    pub(crate) fn columns(&self) -> usize {
        self.n
    }

    /// `a` `(rows, k)` times the weights, plus the bias → `out` `(rows, n)`.
    pub(crate) fn multiply(&self, a: &[f32], rows: usize, epilogue: Epilogue, out: &mut [f32]) {
        assert_eq!(a.len(), rows * self.k, "the input's size");
        assert_eq!(out.len(), rows * self.n, "the output's size");
        let panels = self.bias.len() / self.width;
        let row_blocks = rows.div_ceil(ROW_BLOCK);
        let parallel = rows * self.n * self.k >= SERIAL && rayon::current_num_threads() > 1;
        // Few rows: the panels are shared out instead.
        let wanted = if parallel { 4 * rayon::current_num_threads() } else { 1 };
        let groups = wanted.div_ceil(row_blocks.max(1)).min(panels).max(1);
        let group = panels.div_ceil(groups);
        let out = Output(out.as_mut_ptr());
        let run = |task: usize| {
            let (block, part) = (task / groups, task % groups);
            self.isa.run(Job {
                weights: self,
                a,
                out,
                from: block * ROW_BLOCK,
                to: rows.min((block + 1) * ROW_BLOCK),
                first: (part * group).min(panels),
                last: ((part + 1) * group).min(panels),
                epilogue,
            });
        };
        match parallel {
            true => (0..row_blocks * groups).into_par_iter().for_each(run),
            false => (0..row_blocks * groups).for_each(run),
        }
    }
}

/// Rows `from .. to` of the product, panels `first .. last`.
#[derive(Clone, Copy)]
struct Job<'a> {
    weights: &'a Packed,
    a: &'a [f32],
    out: Output<f32>,
    from: usize,
    to: usize,
    first: usize,
    last: usize,
    epilogue: Epilogue,
}

impl Kernel for Job<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        debug_assert_eq!(self.weights.width, NR * S::LANES);
        for panel in self.first..self.last {
            let mut row = self.from;
            while row + MR <= self.to {
                tile::<S, MR, NR>(s, &self, panel, row);
                row += MR;
            }
            // The rows that are left, in fours and ones.
            while MR > 4 && row + 4 <= self.to {
                tile::<S, 4, NR>(s, &self, panel, row);
                row += 4;
            }
            while row < self.to {
                tile::<S, 1, NR>(s, &self, panel, row);
                row += 1;
            }
        }
    }
}

#[inline(always)]
fn tile<S: Simd, const MR: usize, const NR: usize>(s: S, job: &Job, panel: usize, row: usize) {
    let Job { weights, a, out, epilogue, .. } = *job;
    let (k, n, width) = (weights.k, weights.n, NR * S::LANES);
    let terms = &weights.panels[panel * width * k..][..width * k];
    let bias = &weights.bias[panel * width..][..width];
    let rows = &a[row * k..][..MR * k];
    let a = Rows { at: rows.as_ptr(), row: k, column: 1 };
    // SAFETY: the slices above have the lengths that `product` asks for.
    let sums = unsafe { product::<S, MR, NR>(s, k, a, terms.as_ptr(), width) };
    let columns = width.min(n - panel * width);
    for (r, sums) in sums.into_iter().enumerate() {
        let at = (row + r) * n + panel * width;
        let mut last = [0.0f32; 48];
        for (v, sum) in sums.into_iter().enumerate() {
            // SAFETY: `bias` has `width` numbers; `multiply` checked the output's size, and this row and these columns
            // belong to this job alone; where the panel is not full, it is stored aside first.
            unsafe {
                let sum = s.add(sum, s.load(bias.as_ptr().add(v * S::LANES)));
                let sum = if epilogue == Epilogue::Gelu { gelu(s, sum) } else { sum };
                match columns == width {
                    true => s.store(out.0.add(at + v * S::LANES), sum),
                    false => s.store(last.as_mut_ptr().add(v * S::LANES), sum),
                }
            }
        }
        if columns < width {
            // SAFETY: `columns` numbers are left of this row of the output.
            unsafe { out.0.add(at).copy_from_nonoverlapping(last.as_ptr(), columns) };
        }
    }
}

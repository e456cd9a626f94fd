//! Products with a matrix of weights that was packed once.
//!
//! An element of the result is a sum over `k` in order, whatever the other rows are: a row's result is bitwise the same
//! alone and in any batch, on any number of threads.

use std::cell::RefCell;

use rayon::prelude::*;

use super::element::Element;
use super::gemm_pairs::{pack_weights, pair_job};
use super::isa::{Isa, Kernel};
use super::output::Output;
use super::pairs::Pair;
use super::simd::Simd;
use super::tile::{Rows, product};
use crate::kernels::Activation;

/// Rows that share a pass over the weights.
const ROW_BLOCK: usize = 64;
/// Multiply-adds below which a second thread costs more than it brings.
const SERIAL: usize = 1 << 23;

/// Weights `(n, k)` and a bias, packed for one instruction set: panels of columns of the product, in each the first term
/// of every column, then the second; bf16 two terms at a time.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    isa: Isa,
    pub(super) k: usize,
    pub(super) n: usize,
    /// Columns a panel.
    pub(super) width: usize,
    panels: Panels,
    /// A number a column, zeros after the last.
    pub(super) bias: Vec<f32>,
}

#[derive(Debug, Clone)]
enum Panels {
    Floats(Vec<f32>),
    /// For inputs that are rounded to bf16, sums in f32.
    Pairs(Vec<Pair>),
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
        Self { isa, k, n, width, panels: Panels::Floats(panels), bias: all }
    }

    /// As [`new`](Self::new) for weights that are bf16, where there are instructions for them: inputs are then rounded to
    /// bf16 and sums are f32. Otherwise all is f32.
    pub(crate) fn new_bf16(isa: Isa, weight: &[f32], bias: Option<&[f32]>, n: usize, k: usize) -> Self {
        if !isa.has_pairs() {
            return Self::new(isa, weight, bias, n, k);
        }
        assert_eq!(weight.len(), n * k, "the weight's size");
        let (width, step) = isa.pair_sizes();
        let mut all = vec![0.0; n.next_multiple_of(width)];
        if let Some(bias) = bias {
            all[..n].copy_from_slice(bias);
        }
        let panels = Panels::Pairs(pack_weights(weight, k, width, step));
        Self { isa, k, n, width, panels, bias: all }
    }

    /// Columns of the input.
    pub(crate) fn inputs(&self) -> usize {
        self.k
    }

    /// Columns of the product.
    pub(crate) fn columns(&self) -> usize {
        self.n
    }

    /// Whether inputs are rounded to bf16.
    pub(crate) fn rounds_to_bf16(&self) -> bool {
        matches!(self.panels, Panels::Pairs(_))
    }

    /// `a` `(rows, k)` times the weights, plus the bias; `out` becomes `(rows, n)`.
    pub(crate) fn multiply<A: Element, O: Element>(
        &self,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: &mut Vec<O>,
    ) {
        assert_eq!(a.len(), rows * self.k, "the input's size");
        out.clear();
        out.reserve(rows * self.n);
        self.multiply_to(a, rows, activation, Output(out.as_mut_ptr()));
        // SAFETY: every row and every column of every panel was written.
        unsafe { out.set_len(rows * self.n) };
    }

    /// Writes `rows · n` numbers.
    fn multiply_to<A: Element, O: Element>(&self, a: &[A], rows: usize, activation: Activation, out: Output<O>) {
        let panels = self.bias.len() / self.width;
        let row_blocks = rows.div_ceil(ROW_BLOCK);
        let parallel = rows * self.n * self.k >= SERIAL && rayon::current_num_threads() > 1;
        // Few rows: the panels are shared out instead.
        let wanted = if parallel { 4 * rayon::current_num_threads() } else { 1 };
        let groups = wanted.div_ceil(row_blocks.max(1)).min(panels).max(1);
        let group = panels.div_ceil(groups);
        let run = |task: usize| {
            let (block, part) = (task / groups, task % groups);
            let job = Job {
                weights: self,
                a,
                out,
                from: block * ROW_BLOCK,
                to: rows.min((block + 1) * ROW_BLOCK),
                first: (part * group).min(panels),
                last: ((part + 1) * group).min(panels),
                activation,
            };
            match &self.panels {
                Panels::Floats(panels) => {
                    WIDE.with_borrow_mut(|wide| self.isa.run(FloatJob { job, panels, wide }));
                }
                Panels::Pairs(panels) => pair_job(self.isa, job, panels),
            }
        };
        match parallel {
            true => (0..row_blocks * groups).into_par_iter().for_each(run),
            false => (0..row_blocks * groups).for_each(run),
        }
    }
}

/// Rows `from .. to` of the product, panels `first .. last`.
#[derive(Clone, Copy)]
pub(super) struct Job<'a, A, O> {
    pub weights: &'a Packed,
    pub a: &'a [A],
    pub out: Output<O>,
    pub from: usize,
    pub to: usize,
    pub first: usize,
    pub last: usize,
    pub activation: Activation,
}

impl<A, O: Element> Job<'_, A, O> {
    /// Stores `sums`, a panel of row `row`, plus the bias, activated.
    ///
    /// # Safety
    /// The row exists and belongs to this job alone; `sums` are `width` numbers.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, s: S, panel: usize, row: usize, sums: &[S::V]) {
        let Packed { n, width, bias, .. } = self.weights;
        let bias = &bias[panel * width..][..*width];
        let columns = (*width).min(n - panel * width);
        let at = row * n + panel * width;
        let mut aside = [0.0f32; 48];
        let direct = O::IS_F32 && columns == *width;
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: `bias` has `width` numbers; `multiply` made room for the output, and where it is no f32 or the
            // panel is not full, it is stored aside first.
            unsafe {
                let sum = self.activation.apply(s, s.add(*sum, s.load(bias.as_ptr().add(v * S::LANES))));
                let to = if direct { self.out.0.cast::<f32>().add(at) } else { aside.as_mut_ptr() };
                s.store(to.add(v * S::LANES), sum);
            }
        }
        if !direct {
            // SAFETY: `columns` numbers are left of this row of the output, which is the job's own.
            O::narrow(&aside[..columns], unsafe { self.out.places(at, columns) });
        }
    }
}

thread_local! {
    static WIDE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

struct FloatJob<'a, A, O> {
    job: Job<'a, A, O>,
    panels: &'a [f32],
    wide: &'a mut Vec<f32>,
}

impl<A: Element, O: Element> Kernel for FloatJob<'_, A, O> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { job, panels, wide } = self;
        let (k, width) = (job.weights.k, job.weights.width);
        debug_assert_eq!(width, NR * S::LANES);
        let rows = job.to - job.from;
        if !A::IS_F32 && wide.len() < rows * k {
            wide.resize(rows * k, 0.0);
        }
        let a = A::floats(&job.a[job.from * k..job.to * k], wide);
        for panel in job.first..job.last {
            let terms = &panels[panel * width * k..][..width * k];
            let mut row = 0;
            while row + MR <= rows {
                tile::<S, A, O, MR, NR>(s, &job, &a[row * k..], terms, (panel, row));
                row += MR;
            }
            // The rows that are left, in fours and ones.
            while MR > 4 && row + 4 <= rows {
                tile::<S, A, O, 4, NR>(s, &job, &a[row * k..], terms, (panel, row));
                row += 4;
            }
            while row < rows {
                tile::<S, A, O, 1, NR>(s, &job, &a[row * k..], terms, (panel, row));
                row += 1;
            }
        }
    }
}

/// `MR` rows of a job, from `row`.
#[inline(always)]
fn tile<S: Simd, A: Element, O: Element, const MR: usize, const NR: usize>(
    s: S,
    job: &Job<A, O>,
    a: &[f32],
    terms: &[f32],
    (panel, row): (usize, usize),
) {
    let (k, width) = (job.weights.k, NR * S::LANES);
    assert!(a.len() >= MR * k && terms.len() == width * k);
    let a = Rows { at: a.as_ptr(), row: k, column: 1 };
    // SAFETY: the slices have the lengths that `product` asks for.
    let sums = unsafe { product::<S, MR, NR>(s, k, a, terms.as_ptr(), width) };
    for (r, sums) in sums.into_iter().enumerate() {
        // SAFETY: rows `row .. row + MR` are the job's own.
        unsafe { job.store(s, panel, job.from + row + r, &sums) };
    }
}

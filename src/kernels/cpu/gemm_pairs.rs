//! Products with packed bf16 weights.

use std::cell::RefCell;

use super::element::Element;
use super::gemm::Job;
use super::isa::Isa;
use super::pairs::{COLUMNS, Pair, PairDot, PairKernel, Tile, pair};
use super::simd::Simd;

/// Weights `(n, k)`, bf16 widened to f32, as panels of `width` columns: in each the first two terms of every column, then
/// the next two. Terms that fill up to `step` pairs and columns that fill up the last panel are zero.
pub(super) fn pack_weights(weight: &[f32], k: usize, width: usize, step: usize) -> Vec<Pair> {
    let rows = weight.len() / k.max(1);
    let pairs = k.div_ceil(2).next_multiple_of(step);
    let mut panels = vec![0; rows.next_multiple_of(width) * pairs];
    for (row, weights) in weight.chunks_exact(k.max(1)).enumerate() {
        let (panel, column) = (row / width, row % width);
        let panel = &mut panels[panel * width * pairs..][..width * pairs];
        for (to, terms) in panel.chunks_exact_mut(width).zip(weights.chunks(2)) {
            to[column] = pair(terms[0], terms.get(1).copied().unwrap_or(0.0));
        }
    }
    panels
}

thread_local! {
    static ROUNDED: RefCell<(Vec<Pair>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Runs a job with weights of [`pack_weights`].
pub(super) fn pair_job<A: Element, O: Element>(isa: Isa, job: Job<A, O>, panels: &[Pair]) {
    ROUNDED.with_borrow_mut(|(rounded, wide)| isa.run_pairs(PairJob { job, panels, rounded, wide }));
}

struct PairJob<'a, A, O> {
    job: Job<'a, A, O>,
    panels: &'a [Pair],
    rounded: &'a mut Vec<Pair>,
    /// A row in f32.
    wide: &'a mut Vec<f32>,
}

/// The floats of the largest tile that an instruction set has.
const LARGEST: usize = 32 * 48;

impl<A: Element, O: Element> PairKernel for PairJob<'_, A, O> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, s: S, d: D) {
        const { assert!(D::ROWS * D::VECTORS * COLUMNS <= LARGEST && D::VECTORS * COLUMNS <= 6 * S::LANES) };
        let Self { job, panels, rounded, wide } = self;
        let (k, width) = (job.weights.k, D::VECTORS * COLUMNS);
        let pairs = k.div_ceil(2).next_multiple_of(D::STEP);
        let rows = job.to - job.from;
        // A tile may read more rows than it has: whatever they hold, it does not reach the others.
        let size = rows.next_multiple_of(D::ROWS) * pairs;
        if rounded.len() < size {
            rounded.resize(size, 0);
        }
        wide.resize(k, 0.0);
        for row in 0..rows {
            A::to_pairs(d, &job.a[(job.from + row) * k..][..k], wide, &mut rounded[row * pairs..][..pairs]);
        }
        let rounded = &rounded[..size];
        let mut sums = [0.0; LARGEST];
        for panel in job.first..job.last {
            let terms = &panels[panel * width * pairs..][..width * pairs];
            for first in (0..rows).step_by(D::ROWS) {
                let rows = D::ROWS.min(rows - first);
                let tile =
                    Tile { rows, vectors: D::VECTORS, pairs, a_row: pairs, b_row: width, c_row: width, add: false };
                // SAFETY: `rounded` has `ROWS` rows of `pairs` from `first`, `terms` has `pairs` rows of `width`, `sums`
                // room for a whole tile; `run_pairs` has begun.
                unsafe { d.tile(tile, rounded[first * pairs..].as_ptr(), terms.as_ptr(), sums.as_mut_ptr()) };
                for (r, sums) in sums.chunks_exact(width).take(rows).enumerate() {
                    let mut vectors = [s.splat(0.0); 6];
                    // SAFETY: each chunk holds `LANES` numbers; the row is in `from .. to`, the job's own.
                    unsafe {
                        for (vector, sums) in vectors.iter_mut().zip(sums.chunks_exact(S::LANES)) {
                            *vector = s.load(sums.as_ptr());
                        }
                        job.store(s, panel, job.from + first + r, &vectors[..width / S::LANES]);
                    }
                }
            }
        }
    }
}

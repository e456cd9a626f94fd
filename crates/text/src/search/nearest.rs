//! Nearest neighbors of a vector among the rows of a matrix, by exhaustive search.

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

/// Number of rows per parallel task.
const BLOCK: usize = 512;

/// The dot product of each row of `vectors` `(n, query.len())` with `query`, in f32.
pub(super) fn scores(vectors: &[f16], query: &[f32]) -> Vec<f32> {
    let size = query.len();
    let block = |rows: &[f16]| {
        let mut wide = vec![0.0; size];
        let score = |row: &[f16]| {
            row.convert_to_f32_slice(&mut wide);
            dot(&wide, query)
        };
        rows.chunks_exact(size).map(score).collect::<Vec<_>>()
    };
    vectors.par_chunks(size * BLOCK).flat_map_iter(block).collect()
}

/// A dot product in sixteen partial sums, which the compiler vectorizes and which round less than a single sum.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut sums = [0.0; 16];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// The first `count` of `items` in the order of `by`, sorted; the rest is only partitioned, not sorted.
pub(super) fn top_k<T>(mut items: Vec<T>, count: usize, by: impl Fn(&T, &T) -> std::cmp::Ordering) -> Vec<T> {
    if count == 0 {
        return Vec::new();
    }
    if count < items.len() {
        items.select_nth_unstable_by(count - 1, &by);
        items.truncate(count);
    }
    items.sort_unstable_by(by);
    items
}

/// `vector` scaled to length 1; a zero vector stays zero. `None` if it is not finite.
pub(super) fn unit(vector: &[f32]) -> Option<Vec<f32>> {
    let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let divide = |x: &f32| (f64::from(*x) / length.max(f64::MIN_POSITIVE)) as f32;
    length.is_finite().then(|| vector.iter().map(divide).collect())
}

//! What hidden keys and values hold has no influence.

use candle_attention_kernels::{AttentionProblem, Element, Mask};

use super::reference::{Sizes, mask_term, problem};
use super::{downcast, upcast};

/// Compares outputs of `run` with NaN and an infinity in the keys or values `spoiled` of every sequence and head with
/// the output without them: equal bits for a query that sees none of those keys.
pub fn check<T: Element>(
    sizes: Sizes,
    mask: &Mask,
    [q, k, v]: [&[T]; 3],
    spoiled: &[usize],
    what: &str,
    mut run: impl FnMut(AttentionProblem<T>) -> Vec<T>,
) {
    let Sizes { b: sequences, s_q, s_kv, appended, h: heads, h_kv, d, d_v } = sizes;
    let keys = s_kv + appended;
    let spoil = |data: &[T], size: usize| {
        let mut data = upcast(data);
        for (row, token) in data.chunks_exact_mut(h_kv * size).enumerate() {
            if spoiled.contains(&(row % keys)) {
                for head in token.chunks_exact_mut(size) {
                    (head[0], head[size / 2]) = (f32::NAN, f32::NEG_INFINITY);
                }
            }
        }
        downcast::<T>(&data)
    };
    let (bad_keys, bad_values) = (spoil(k, d), spoil(v, d_v));
    let mut of = |k: &[T], v: &[T]| upcast(&run(problem(sizes, [q, k, v], mask.clone())));
    let (clean, with_keys, with_values) = (of(k, v), of(&bad_keys, v), of(k, &bad_values));
    let rows = (0..sequences).flat_map(|b| (0..s_q).flat_map(move |i| (0..heads).map(move |h| [b, i, h])));
    for (row, [b, i, h]) in rows.enumerate() {
        let sees = |j: usize| j >= s_kv || mask_term(mask, [b, h, i, j], s_q, s_kv) != f64::NEG_INFINITY;
        let sees = spoiled.iter().any(|j| *j < keys && sees(*j));
        for column in 0..d_v {
            let at = row * d_v + column;
            let bad = sees && [0, d_v / 2].contains(&column);
            let same = |other: f32| other.to_bits() == clean[at].to_bits();
            let right = [
                if sees { with_keys[at].is_nan() } else { same(with_keys[at]) },
                if bad { !with_values[at].is_finite() } else { same(with_values[at]) },
            ];
            assert_eq!(right, [true; 2], "{what}, {b} {i} {h} {column}, {:?}", mask.structure);
        }
    }
}

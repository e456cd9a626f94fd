//! The view that the page opens on: the head with the sharpest pattern between words.

use rayon::prelude::*;

use crate::maps::{AttentionMaps, LayerMaps};
use crate::tokens::Axis;

/// A head and a query, as places in the lists of layers, heads and queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(super) struct View {
    pub layer: usize,
    pub head: usize,
    pub token: usize,
}

/// A head's sharpness and its sharpest weight.
struct Sharpness {
    sum: f32,
    largest: f32,
    query: usize,
}

impl AttentionMaps {
    /// The layer and the head that the HTML page opens on: the one with the sharpest pattern between words, or else the
    /// first; `None` without a head.
    pub fn telling_head(&self) -> Option<[usize; 2]> {
        let View { layer, head, .. } = self.telling_view().unwrap_or(View { layer: 0, head: 0, token: 0 });
        let LayerMaps { layer, heads, .. } = self.layers.get(layer)?;
        Some([*layer, *heads.get(head)?])
    }

    /// The sharpest head and the query of its sharpest weight; `None` without two words.
    ///
    /// Many heads look at the next token, or all tokens look at the same one. Both are strong, and tell nothing about a
    /// word. So a weight counts as far as neither explains it: by what it exceeds the larger of two means, of the other
    /// queries' weights at the same distance, and of the other queries' weights for the same key. Only words count: no
    /// special tokens, no punctuation, no pieces that continue a word; and, where queries and keys are the same tokens,
    /// no word and its neighbors, if there are others. The sharpness of a head is the sum of the squares, times the
    /// share of its weights between words that are no neighbors: in a long text a head that looks at the next token
    /// has a few weights elsewhere, which alone would make it the sharpest.
    pub(super) fn telling_view(&self) -> Option<View> {
        if self.queries == self.keys { self.sharpest(2).or_else(|| self.sharpest(1)) } else { self.sharpest(0) }
    }

    /// The view for keys that are at least so many tokens from the query.
    fn sharpest(&self, apart: usize) -> Option<View> {
        let (queries, keys) = (words(&self.queries), words(&self.keys));
        let places = self.layers.iter().enumerate().flat_map(|(i, l)| (0..l.heads.len()).map(move |head| (i, head)));
        let heads = places.collect::<Vec<_>>();
        let sharpest = heads
            .par_iter()
            .map(|&(layer, head)| {
                let weights = self.head_weights(&self.layers[layer], head);
                (layer, head, sharpness(weights, self.keys.len(), &queries, &keys, apart))
            })
            // Of equal ones the first.
            .reduce_with(|a, b| if b.2.sum > a.2.sum { b } else { a })?;
        let (layer, head, Sharpness { sum, query, .. }) = sharpest;
        (sum > 0.0).then_some(View { layer, head, token: query })
    }
}

/// The places of whole words and of the first pieces of words.
fn words(axis: &Axis) -> Vec<usize> {
    let is_word = |&place: &usize| {
        let marks = axis.marks[place];
        !marks.special && !marks.continues && axis.names[place].chars().any(char::is_alphanumeric)
    };
    (0..axis.len()).filter(is_word).collect()
}

/// The sharpness of a head, whose weights have `width` keys per query.
fn sharpness(weights: &[f32], width: usize, queries: &[usize], keys: &[usize], apart: usize) -> Sharpness {
    let height = weights.len() / width;
    let weight = |query: usize, key: usize| weights[query * width + key];
    let distance = |query: usize, key: usize| height + key - query;
    // The sum of the weights at each distance, and their number; the sum for each key.
    let (mut by_distance, mut by_key) = (vec![(0.0, 0); height + width], vec![0.0; width]);
    for &query in queries {
        for &key in keys {
            let (sum, count) = &mut by_distance[distance(query, key)];
            *sum += weight(query, key);
            *count += 1;
            by_key[key] += weight(query, key);
        }
    }
    let (mut found, mut far) = (Sharpness { sum: 0.0, largest: 0.0, query: 0 }, 0.0);
    for &query in queries {
        for &key in keys.iter().filter(|key| key.abs_diff(query) >= apart) {
            let weight = weight(query, key);
            far += weight;
            let mean_of_others = |sum: f32, count: usize| (sum - weight) / (count.max(2) - 1) as f32;
            let (sum, count) = by_distance[distance(query, key)];
            let explained = mean_of_others(sum, count).max(mean_of_others(by_key[key], queries.len()));
            let rest = (weight - explained).max(0.0);
            found.sum += rest * rest;
            if rest > found.largest {
                (found.largest, found.query) = (rest, query);
            }
        }
    }
    found.sum *= far / by_key.iter().sum::<f32>().max(f32::MIN_POSITIVE);
    found
}

//! Shaw's relative positions in a window, of keys and of values (VITS).

use candle_core::Tensor;
use candle_nn::Init;

use super::scheme::{EmbeddingCall, LayerSizes, PositionScheme, PositionState, SchemeTraits};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::DistanceEmbeddings;
use crate::ops::accumulate_dtype;
use crate::weights::Parameter;

const KEYS: &str = "emb_rel_k";
const VALUES: &str = "emb_rel_v";

/// The widest window. Each distance takes a pass over the attention weights; published models have 4.
const MAX_WINDOW: usize = 1 << 10;

/// Relative positions added to keys and values ([Shaw 2018](https://arxiv.org/abs/1803.02155); VITS, [Kim
/// 2021](https://arxiv.org/abs/2106.06103)): within a window around the query, keys and values come with a learned
/// embedding of their distance. Farther ones have none, but are seen.
///
/// The embeddings `emb_rel_k` `(1, 2 window + 1, head_dim)` and `emb_rel_v` `(1, 2 window + 1, value_head_dim)` are
/// weights of the layer ([`Parameters`](crate::weights::Parameters)), shared by all heads, those of keys
/// before the query first. No fused kernel multiplies attention weights by distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelativeKeyValue {
    /// The most tokens between a query and a key with an embedding; at most 1024.
    pub window: usize,
}

impl RelativeKeyValue {
    /// Embeddings of distances up to `window`.
    pub fn new(window: usize) -> Self {
        Self { window }
    }

    crate::setters! {
        /// Sets the most tokens between a query and a key with an embedding.
        with_window, window: usize = window;
    }

    fn embeddings(&self) -> usize {
        // Saturating, because the window may not have been validated yet.
        self.window.saturating_mul(2).saturating_add(1)
    }

    /// The embeddings of keys for each head, those after the query first, between two of zeros for farther keys:
    /// `(embeddings + 2, h · d)`.
    fn for_heads(&self, call: &EmbeddingCall) -> Result<Tensor> {
        let table = call.state.weights.require(KEYS)?.to_dtype(accumulate_dtype(call.qkv.like()))?.squeeze(0)?;
        let (n, d) = table.dims2()?;
        let reversed = table.index_select(&Tensor::new((0..n as u32).rev().collect::<Vec<_>>(), table.device())?, 0)?;
        let all = reversed.pad_with_zeros(0, 1, 1)?;
        Ok(all.unsqueeze(1)?.broadcast_as((n + 2, call.heads, d))?.contiguous()?.reshape((n + 2, call.heads * d))?)
    }
}

impl PositionScheme for RelativeKeyValue {
    fn validate(&self, _: &LayerSizes) -> Result<()> {
        let allowed = format!("at most {MAX_WINDOW}");
        ensure!(self.window <= MAX_WINDOW, Error::config("window_size", self.window, allowed));
        Ok(())
    }

    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        let parameter = |name, size: usize| {
            let init = Init::Randn { mean: 0.0, stdev: (1.0 / size.max(1) as f64).sqrt() };
            Parameter::new(name, [1, self.embeddings(), size], init)
        };
        vec![parameter(KEYS, sizes.head_dim), parameter(VALUES, sizes.value_head_dim)]
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { needs_full_sequence: true, ..SchemeTraits::default() }
    }

    fn distance_embeddings(&self, call: &EmbeddingCall) -> Result<Option<DistanceEmbeddings>> {
        let fixed = !call.state.weights.tracks_gradient();
        let [c2p, p2c] = call.state.derived(fixed, || Ok([Some(self.for_heads(call)?), None]))?;
        let (first, far) = (1 - call.s_kv as i64, self.window as i64 + 1);
        let indices = (first..call.s_q as i64).map(|distance| (far - distance.clamp(-far, far)) as u32).collect();
        Ok(Some(DistanceEmbeddings { c2p, p2c, bias: None, count: self.embeddings() + 2, indices, first }))
    }

    fn distance_embedding_count(&self, _: usize) -> [usize; 2] {
        [self.embeddings().saturating_add(2), 0]
    }

    fn value_distances(&self, state: &PositionState) -> Result<Option<Tensor>> {
        Ok(Some(state.weights.require(VALUES)?.squeeze(0)?))
    }

    fn describe(&self) -> String {
        format!("relative key and value(window {})", self.window)
    }
}

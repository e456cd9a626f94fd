//! The weights of multi-head latent attention.

use candle_core::Tensor;

use crate::weights::{LinearWeights, NormWeights};

/// The projections of queries, keys and values of [latent attention](crate::LatentAttention), with `d =
/// qk_nope_head_dim + qk_rope_head_dim`. Each head of a projection has its elements one after the other.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LatentWeights {
    /// `q_a_proj` `(q_lora_rank, query_size)` and the norm of its outputs, `(q_lora_rank)`; `None` if queries come from
    /// one projection.
    pub q_a: Option<(LinearWeights, NormWeights)>,
    /// `q_b_proj` `(h · d, q_lora_rank)`, or `q_proj` `(h · d, query_size)`: per head first `qk_nope_head_dim` rows.
    pub q: LinearWeights,
    /// `kv_a_proj_with_mqa` `(kv_lora_rank + qk_rope_head_dim, key_size)`.
    pub kv_a: LinearWeights,
    /// The norm of the latents, `(kv_lora_rank)`, or with [`multi_query`](crate::LatentAttention::multi_query) of all
    /// elements of `kv_a`.
    pub kv_a_norm: NormWeights,
    /// `kv_b_proj` `(h · (qk_nope_head_dim + v_head_dim), kv_lora_rank)`: per head first `qk_nope_head_dim` rows.
    /// `None` with [`multi_query`](crate::LatentAttention::multi_query).
    pub kv_b: Option<LinearWeights>,
}

impl LatentWeights {
    /// The weights of all projections; `q_a` is the first of the queries and its norm, if they have two.
    pub fn new(
        q_a: Option<(LinearWeights, NormWeights)>,
        q: LinearWeights,
        kv_a: LinearWeights,
        kv_a_norm: NormWeights,
        kv_b: impl Into<Option<LinearWeights>>,
    ) -> Self {
        Self { q_a, q, kv_a, kv_a_norm, kv_b: kv_b.into() }
    }

    /// Whether the projection of the layer's input to queries, and that to latents, have a bias.
    pub(crate) fn has_biases(&self) -> [bool; 2] {
        let first = self.q_a.as_ref().map_or(&self.q, |(q_a, _)| q_a);
        [first.bias.is_some(), self.kv_a.bias.is_some()]
    }

    /// Whether a gradient of the weights is asked for.
    pub fn tracks_gradient(&self) -> bool {
        let optional = [self.kv_b.as_ref(), self.q_a.as_ref().map(|(linear, _)| linear)];
        let linears = [&self.q, &self.kv_a].into_iter().chain(optional.into_iter().flatten());
        let norms = [&self.kv_a_norm].into_iter().chain(self.q_a.as_ref().map(|(_, norm)| norm));
        linears.into_iter().any(LinearWeights::tracks_gradient)
            || norms.flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten().any(Tensor::track_op)
    }
}

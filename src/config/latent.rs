//! Multi-head latent attention: keys and values that are made of one small vector per token.

use crate::config::{AttentionConfig, KeyValueSource, MAX_SIZE, Scoring, Step};
use crate::ensure;
use crate::error::{Error, Result};
use crate::ops::LatentSizes;
use crate::ops::expected_factor;
use crate::position::Position;
use crate::setters;

/// Multi-head latent attention ([DeepSeek-V2](https://arxiv.org/abs/2405.04434)): per token one vector `c` of
/// `kv_lora_rank` elements, of which a projection makes the keys and values of all heads, and one rotated key of
/// `qk_rope_head_dim` elements that all heads share.
///
/// ```text
/// q = q_b_proj(rms_norm(q_a_proj(x)))              (h, qk_nope_head_dim + qk_rope_head_dim)
/// c, k_rope = kv_a_proj_with_mqa(x)                kv_lora_rank, qk_rope_head_dim
/// k_nope, v = kv_b_proj(rms_norm(c))               (h, qk_nope_head_dim), (h, v_head_dim)
/// q = [q_nope, rotate(q_rope)]; k = [k_nope, rotate(k_rope)]
/// ```
///
/// Scores are divided by `(qk_nope_head_dim + qk_rope_head_dim)^0.5` unless
/// [`scale`](AttentionConfig::scale) is set. A [`KvCache`](crate::KvCache) holds `c` after its norm and the rotated
/// key: `kv_lora_rank + qk_rope_head_dim` elements per token, whatever the number of heads. Few queries against many
/// cached tokens run in the absorbed form, in which the queries are projected into the space of `c` and attend to the
/// cache as to one key-value head; its result differs by rounding. The keys and values of a call are one tensor. The
/// position scheme sees heads of `qk_rope_head_dim` elements.
///
/// With [`multi_query`](Self::multi_query) there is no `kv_b_proj` (DeepSeek V4): the latent and the rotated key, with
/// one norm over both, are the one key of all heads, and also their value. So values are rotated, and the last
/// elements of the context of each head are rotated back by the position of its query.
///
/// ```
/// use candle_attention::{AttentionConfig, LatentAttention};
/// let config = AttentionConfig::new(64, 4).with_latent(LatentAttention::new(16, 12, 4, 8).with_q_lora_rank(24));
/// assert_eq!((config.resolved_head_dim(), config.resolved_value_head_dim()), (16, 8));
/// # config.validate().unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LatentAttention {
    /// Elements between the two projections of the queries; `None`, the default, is a single projection `q_proj`.
    pub q_lora_rank: Option<usize>,
    /// Elements of the latent vector of a token.
    pub kv_lora_rank: usize,
    /// Elements of a query and key head that are not rotated.
    pub qk_nope_head_dim: usize,
    /// Elements of a query head, and of the key that all heads share, that the position scheme rotates; 0 is none.
    pub qk_rope_head_dim: usize,
    /// Elements of a value head.
    pub v_head_dim: usize,
    /// Added to the mean square in both norms; default 1e-6.
    pub eps: f64,
    /// Factor on the normalized latents of queries, or on the queries without `q_lora_rank`; default 1. LongCat has
    /// `(hidden_size / q_lora_rank)^0.5`.
    pub q_lora_scale: f64,
    /// Factor on the normalized latents; default 1. LongCat has `(hidden_size / kv_lora_rank)^0.5`.
    pub kv_lora_scale: f64,
    /// How many keys a query attends to at most (DeepSeek-V3.2), chosen by an indexer that this version does not run.
    /// Up to so many keys the indexer chooses all; a call with more is an error. Default: no limit.
    pub index_topk: Option<usize>,
    /// Whether all heads share the latents and rotated keys as their one key and value; default no.
    pub multi_query: bool,
}

impl LatentAttention {
    /// Latent attention with these sizes, and queries from a single projection.
    pub fn new(kv_lora_rank: usize, qk_nope_head_dim: usize, qk_rope_head_dim: usize, v_head_dim: usize) -> Self {
        Self {
            q_lora_rank: None,
            kv_lora_rank,
            qk_nope_head_dim,
            qk_rope_head_dim,
            v_head_dim,
            eps: 1e-6,
            q_lora_scale: 1.0,
            kv_lora_scale: 1.0,
            index_topk: None,
            multi_query: false,
        }
    }

    /// Latents and rotated keys that all heads share as their one key and value, of as many elements as heads have.
    pub fn new_multi_query(qk_nope_head_dim: usize, qk_rope_head_dim: usize) -> Self {
        let head_dim = qk_nope_head_dim.saturating_add(qk_rope_head_dim);
        let latent = Self::new(qk_nope_head_dim, qk_nope_head_dim, qk_rope_head_dim, head_dim);
        Self { multi_query: true, ..latent }
    }

    setters! {
        /// Sets the elements between the two projections of the queries.
        with_q_lora_rank, q_lora_rank: usize = Some(q_lora_rank);
        /// Sets what both norms add to the mean square.
        with_eps, eps: f64 = eps;
        /// Sets the factor on the normalized latents of queries.
        with_q_lora_scale, q_lora_scale: f64 = q_lora_scale;
        /// Sets the factor on the normalized latents.
        with_kv_lora_scale, kv_lora_scale: f64 = kv_lora_scale;
        /// Sets how many keys a query attends to at most.
        with_index_topk, index_topk: usize = Some(index_topk);
    }

    /// Elements of a query or key head.
    pub(crate) fn head_dim(&self) -> usize {
        self.qk_nope_head_dim.saturating_add(self.qk_rope_head_dim)
    }

    /// Elements of the latent vector and the rotated key of a token.
    pub(crate) fn cached_size(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// The number of key-value heads: one, or as many as there are heads.
    pub(crate) fn key_value_heads(&self, config: &AttentionConfig) -> usize {
        if self.multi_query { config.num_attention_heads.min(1) } else { config.num_attention_heads }
    }

    /// Checks the sizes, and that `config` asks for nothing that keys and values of latents do not have.
    pub(super) fn validate(&self, config: &AttentionConfig) -> Result<()> {
        let sizes = [
            ("kv_lora_rank", self.kv_lora_rank, 1),
            ("q_lora_rank", self.q_lora_rank.unwrap_or(1), 1),
            ("qk_nope_head_dim", self.qk_nope_head_dim, 1),
            ("qk_rope_head_dim", self.qk_rope_head_dim, 0),
            ("v_head_dim", self.v_head_dim, 1),
            ("index_topk", self.index_topk.unwrap_or(1), 1),
        ];
        for (field, size, least) in sizes {
            if size < least || size > MAX_SIZE {
                return Err(Error::config(field, size, format!("from {least} to {MAX_SIZE}")));
            }
        }
        let whole = [
            ("kv_lora_rank", self.kv_lora_rank, self.qk_nope_head_dim, "qk_nope_head_dim"),
            ("v_head_dim", self.v_head_dim, self.head_dim(), "qk_nope_head_dim + qk_rope_head_dim"),
        ];
        for (field, size, expected, source) in whole.into_iter().filter(|_| self.multi_query) {
            ensure!(size == expected, Error::config(field, size, format!("{expected} with `multi_query`, {source}")));
        }
        for (field, factor) in [("q_lora_scale", self.q_lora_scale), ("kv_lora_scale", self.kv_lora_scale)] {
            if let Some(expected) = expected_factor(factor) {
                return Err(Error::config(field, factor, expected));
            }
        }
        if !((self.eps as f32).is_finite() && self.eps >= 0.0) {
            return Err(Error::config("eps of latent attention", self.eps, "a finite number from 0"));
        }
        let follows = [
            ("num_key_value_heads", config.num_key_value_heads, self.key_value_heads(config), "num_attention_heads"),
            ("head_dim", config.head_dim, self.head_dim(), "qk_nope_head_dim + qk_rope_head_dim"),
            ("value_head_dim", config.value_head_dim, self.v_head_dim, "v_head_dim"),
            ("value_size", config.value_size, config.resolved_key_size(), "key_size: one input makes both"),
        ];
        for (field, stated, expected, source) in follows {
            if let Some(stated) = stated.filter(|stated| *stated != expected) {
                return Err(Error::config(field, stated, format!("{expected} with latent attention, {source}")));
            }
        }
        let is_learned = |step: &Step| matches!(step, Step::Norm(norm) if norm.weighted);
        let norms_fit = !config.steps.queries.iter().any(is_learned);
        let learned = config.steps.has_learned_factor(0);
        let steps_fit = norms_fit && !learned && config.steps.keys == [Step::Rotate] && config.steps.values.is_empty();
        let others = [
            ("scoring", config.scoring != Scoring::ScaledDotProduct, "the scaled dot product"),
            (
                "steps",
                !steps_fit,
                "a rotation, and of queries factors and norms without weights: other norms are those of the latents",
            ),
            ("key_value_source", config.key_value_source != KeyValueSource::Projections, "projections"),
            ("kv_lora_scale", self.multi_query && self.kv_lora_scale != 1.0, "1 and `multi_query`"),
            (
                "position",
                self.multi_query && !matches!(config.position, Position::None | Position::Rotary(_)),
                "rotary",
            ),
            ("position", config.position.scheme().distance_embedding_count(1) != [0; 2], "rotary or another scheme"),
        ];
        match others.into_iter().find(|(_, set, _)| *set) {
            Some((field, _, expected)) => Err(Error::config(field, "set", format!("{expected} with latent attention"))),
            None => Ok(()),
        }
    }

    /// The sizes of the projections.
    pub(crate) fn sizes(&self, config: &AttentionConfig) -> LatentSizes {
        LatentSizes {
            inputs: [config.resolved_query_size(), config.resolved_key_size()],
            heads: config.num_attention_heads,
            nope: self.qk_nope_head_dim,
            rope: self.qk_rope_head_dim,
            value: self.v_head_dim,
            rank: self.kv_lora_rank,
            q_rank: self.q_lora_rank,
            eps: self.eps,
            q_scale: self.q_lora_scale,
            kv_scale: self.kv_lora_scale,
            multi_query: self.multi_query,
        }
    }
}

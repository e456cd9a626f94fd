//! DeBERTa's disentangled attention: queries and keys are also compared with embeddings of their distance.

use candle_core::{D, Tensor};
use candle_nn::Init;

use super::scheme::{EmbeddingCall, LayerSizes, NORMAL, PositionScheme, SchemeTraits};
use crate::error::{Error, Result};
use crate::mask::DistanceEmbeddings;
use crate::ops::{Linear, NormParameters, accumulate_dtype};
use crate::setters;
use crate::weights::{LinearWeights, Parameter, Presence};

const EMBEDDINGS: &str = "rel_embeddings.weight";
const NORM: [&str; 2] = ["rel_embeddings.LayerNorm.weight", "rel_embeddings.LayerNorm.bias"];
const KEY_PROJECTION: [&str; 2] = ["pos_key_proj.weight", "pos_key_proj.bias"];
const QUERY_PROJECTION: [&str; 2] = ["pos_query_proj.weight", "pos_query_proj.bias"];

/// Upper bound of the number of distances.
const MAX_POSITIONS: usize = 1 << 20;

/// Disentangled attention (DeBERTa, [He 2021](https://arxiv.org/abs/2006.03654)): a score is the sum of query · key,
/// query · distance (`c2p`) and key · distance (`p2c`), where distances are embedded and projected like tokens.
///
/// All terms have one scale: one over the square root of `head_dim` times the number of terms. The embeddings
/// `rel_embeddings.weight` `(n, hidden_size)`, where `n` is [`embeddings`](Self::embeddings), and the projections
/// `pos_key_proj` and `pos_query_proj` are weights of the layer ([`Parameters`](crate::weights::Parameters)).
/// It needs as many key-value heads as query heads.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Disentangled {
    /// Whether queries are compared with distances; default true.
    pub c2p: bool,
    /// Whether keys are compared with distances; default true.
    pub p2c: bool,
    /// The distance in tokens from which on all share an embedding.
    pub max_relative_positions: usize,
    /// The number of buckets: distances beyond half of it share buckets by their logarithm (DeBERTa v2). `None`, the
    /// default, gives every distance an embedding of its own.
    pub position_buckets: Option<usize>,
    /// Whether the layer's own query and key projections also project distances (DeBERTa v3); default false.
    pub share_att_key: bool,
    /// The epsilon of a LayerNorm of the embeddings (`norm_rel_ebd`); default no norm.
    pub norm_eps: Option<f64>,
}

impl Disentangled {
    /// Both terms for distances up to `max_relative_positions`, one embedding per distance, projections of their own,
    /// no norm.
    pub fn new(max_relative_positions: usize) -> Self {
        Self {
            c2p: true,
            p2c: true,
            max_relative_positions,
            position_buckets: None,
            share_att_key: false,
            norm_eps: None,
        }
    }

    setters! {
        /// Sets whether queries are compared with distances.
        with_c2p, c2p: bool = c2p;
        /// Sets whether keys are compared with distances.
        with_p2c, p2c: bool = p2c;
        /// Sets the number of buckets.
        with_position_buckets, position_buckets: usize = Some(position_buckets);
        /// Sets whether the layer's own projections project distances, too.
        with_share_att_key, share_att_key: bool = share_att_key;
        /// Sets the epsilon of a LayerNorm of the embeddings.
        with_norm_eps, norm_eps: f64 = Some(norm_eps);
    }

    /// The number of embeddings.
    pub fn embeddings(&self) -> usize {
        self.span().saturating_mul(2)
    }

    /// The factor on the scores: `1 / sqrt(head_dim · terms)`.
    pub fn scale(&self, head_dim: usize) -> f64 {
        let terms = 1 + usize::from(self.c2p) + usize::from(self.p2c);
        (head_dim as f64 * terms as f64).powf(-0.5)
    }

    fn span(&self) -> usize {
        self.position_buckets.unwrap_or(self.max_relative_positions)
    }

    /// The embedding of a query that stands `ahead` tokens after the key.
    fn embedding_index(&self, ahead: i64) -> u32 {
        let span = self.span() as i64;
        let bucket = if self.position_buckets.is_some() { self.bucket(ahead) } else { ahead };
        (bucket + span).clamp(0, 2 * span - 1) as u32
    }

    fn bucket(&self, ahead: i64) -> i64 {
        let middle = self.span() as i64 / 2;
        let distance = ahead.abs();
        if distance <= middle {
            return ahead;
        }
        // In f32, as in the reference: if the logarithm is next to a whole number, rounding decides the bucket.
        let farthest = (self.max_relative_positions - 1) as f32 / middle as f32;
        let log = (distance as f32 / middle as f32).ln() / farthest.ln() * (middle - 1) as f32;
        (log.ceil() as i64 + middle) * ahead.signum()
    }

    /// The embeddings projected as keys `(embeddings, h · d)`, for `c2p`, and as queries, for `p2c`.
    fn project(&self, call: &EmbeddingCall) -> Result<[Option<Tensor>; 2]> {
        let weights = &call.state.weights;
        let dtype = accumulate_dtype(call.qkv.like());
        let mut embeddings = weights.require(EMBEDDINGS)?.to_dtype(dtype)?.unsqueeze(0)?; // (1, embeddings, hidden)
        if let (Some(eps), Some(weight)) = (self.norm_eps, weights.get(NORM[0])) {
            let norm = NormParameters { weight, bias: weights.get(NORM[1]), eps, rms: false, offset: 0.0 };
            embeddings = norm.forward(&embeddings)?;
        }
        let width = embeddings.dim(D::Minus1)?;
        // `shared`: the layer's own projection of queries (0) or keys (1).
        let project = |needed: bool, names: [&str; 2], shared: usize| -> Result<Option<Tensor>> {
            if !needed {
                return Ok(None);
            }
            let projected = match weights.get(names[0]) {
                Some(weight) => {
                    let own = LinearWeights { weight: weight.clone(), bias: weights.get(names[1]).cloned() };
                    Linear::new(names[0], own, weight.dim(0)?, width)?.forward_in_dtype(&embeddings, dtype)?
                }
                None => call.qkv.project(shared, &embeddings, dtype)?,
            };
            Ok(Some(projected.squeeze(0)?.contiguous()?))
        };
        Ok([project(self.c2p, KEY_PROJECTION, 1)?, project(self.p2c, QUERY_PROJECTION, 0)?])
    }
}

impl PositionScheme for Disentangled {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        if !(1..=MAX_POSITIONS).contains(&self.max_relative_positions) {
            let allowed = format!("1 to {MAX_POSITIONS}");
            return Err(Error::config("max_relative_positions", self.max_relative_positions, allowed));
        }
        if let Some(buckets) = self.position_buckets
            && !(2..2 * self.max_relative_positions.saturating_sub(1)).contains(&buckets)
        {
            let allowed = format!("2 or more, and half of it less than {} - 1", self.max_relative_positions);
            return Err(Error::config("position_buckets", buckets, allowed));
        }
        if let Some(eps) = self.norm_eps.filter(|eps| !(eps.is_finite() && *eps >= 0.0)) {
            return Err(Error::config("layer_norm_eps", eps, "a finite number from 0"));
        }
        // Distances are compared per head.
        if sizes.num_key_value_heads != sizes.num_attention_heads {
            let allowed = "num_attention_heads for disentangled attention";
            return Err(Error::config("num_key_value_heads", sizes.num_key_value_heads, allowed));
        }
        // If tokens and distances share projections, both have the same width.
        let inputs = [("query_size", sizes.query_size), ("key_size", sizes.key_size)];
        match inputs.into_iter().find(|(_, size)| self.share_att_key && *size != sizes.hidden_size) {
            Some((field, size)) => {
                let allowed = format!("hidden_size = {} if share_att_key is set", sizes.hidden_size);
                Err(Error::config(field, size, allowed))
            }
            None => Ok(()),
        }
    }

    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        let (width, rows) = (sizes.hidden_size, sizes.num_attention_heads * sizes.head_dim);
        let mut all = vec![Parameter::new(EMBEDDINGS, [self.embeddings(), width], NORMAL)];
        if self.norm_eps.is_some() {
            all.extend(
                NORM.into_iter().zip([1.0, 0.0]).map(|(name, value)| Parameter::new(name, [width], Init::Const(value))),
            );
        }
        all = all.into_iter().map(|row| row.with_presence(Presence::Shared)).collect();
        let bound = (6.0 / (rows + width) as f64).sqrt();
        for ([weight, bias], needed) in [(KEY_PROJECTION, self.c2p), (QUERY_PROJECTION, self.p2c)] {
            if needed && !self.share_att_key {
                let uniform = Init::Uniform { lo: -bound, up: bound };
                all.push(Parameter::new(weight, [rows, width], uniform).with_head_axis(0));
                let bias = Parameter::new(bias, [rows], Init::Const(0.0));
                all.push(bias.with_head_axis(0).with_presence(Presence::Optional));
            }
        }
        all
    }

    fn default_scale(&self, head_dim: usize) -> Option<f64> {
        Some(self.scale(head_dim))
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { needs_full_sequence: true, runs_rows: true, ..SchemeTraits::default() }
    }

    fn distance_embeddings(&self, call: &EmbeddingCall) -> Result<Option<DistanceEmbeddings>> {
        let fixed = !call.state.weights.tracks_gradient() && !call.qkv.tracks_gradient();
        let [c2p, p2c] = call.state.derived(fixed, || self.project(call))?;
        // Query 0 stands at the key `s_kv - s_q`, the last query at the last key.
        let first = 1 - call.s_kv as i64;
        let distances = first..call.s_q as i64;
        let indices = distances.map(|distance| self.embedding_index(-distance)).collect();
        Ok(Some(DistanceEmbeddings { c2p, p2c, bias: None, count: self.embeddings(), indices, first }))
    }

    fn distance_embedding_count(&self, _: usize) -> [usize; 2] {
        [self.c2p, self.p2c].map(|needed| if needed { self.embeddings() } else { 0 })
    }

    fn describe(&self) -> String {
        format!("disentangled({} embeddings)", self.embeddings())
    }
}

//! WavLM's relative position bias: a learned bias per head and bucket of distances, times a gate that is computed from
//! the input of the query.

use candle_core::{D, Tensor};
use candle_nn::Init;

use super::scheme::{LayerSizes, NORMAL, PositionScheme, QueryCall, SchemeTraits};
use super::t5_relative_bias::MAX_BUCKETS;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, RelativeBias};
use crate::ops::Linear;
use crate::tensor::{compute_dtype, select};
use crate::weights::{LinearWeights, Parameter, Presence};

const TABLE: &str = "rel_attn_embed.weight";
const GATE: [&str; 2] = ["gru_rel_pos_linear.weight", "gru_rel_pos_linear.bias"];
const GATE_FACTOR: &str = "gru_rel_pos_const";

/// Gated relative position bias (WavLM, [Chen 2021](https://arxiv.org/abs/2110.13900)): distances are sorted into
/// buckets as in T5, in both directions, and the bias of a bucket and head is multiplied with a gate of the query.
///
/// The table `rel_attn_embed.weight` `(num_buckets, h)`, the projection of the gate `gru_rel_pos_linear.weight` `(8,
/// head_dim)` with its bias `(8)`, and a factor per head `gru_rel_pos_const` `(1, h, 1, 1)` are weights of the layer
/// ([`Parameters`](crate::weights::Parameters)). The gate of a head reads the head's part of the layer's
/// input, which so is as wide as all heads.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GatedRelativeBias {
    /// The number of buckets; 4 to 1,048,576.
    pub num_buckets: usize,
    /// The distance in tokens from which on all share the last bucket; more than a quarter of `num_buckets`.
    pub max_distance: usize,
    /// The number of parts of the input and those of the heads, if the layer has lost some of them.
    kept: Option<(usize, Vec<usize>)>,
}

impl GatedRelativeBias {
    /// `num_buckets` buckets for distances up to `max_distance`.
    pub fn new(num_buckets: usize, max_distance: usize) -> Self {
        Self { num_buckets, max_distance, kept: None }
    }

    crate::setters! {
        /// Sets the number of buckets.
        with_num_buckets, num_buckets: usize = num_buckets;
        /// Sets the distance from which on all share the last bucket.
        with_max_distance, max_distance: usize = max_distance;
    }

    /// The bucket of a key that stands `ahead` tokens after the query.
    fn bucket(&self, ahead: i64) -> usize {
        let buckets = self.num_buckets / 2;
        let start = if ahead > 0 { buckets } else { 0 };
        let (distance, exact) = (ahead.unsigned_abs() as usize, buckets / 2);
        if distance < exact {
            return start + distance;
        }
        // In f32, as in the reference: if the logarithm is next to a whole number, rounding decides the bucket.
        let farthest = (self.max_distance as f64 / exact as f64).ln() as f32;
        let log = (distance as f32 / exact as f32).ln() / farthest * (buckets - exact) as f32;
        start + ((exact as f32 + log) as usize).min(buckets - 1)
    }

    /// The number of parts of the layer's input, one for each head of the layer before any was pruned.
    fn parts(&self, heads: usize) -> usize {
        self.kept.as_ref().map_or(heads, |(parts, _)| *parts)
    }

    /// The gates of the inputs `xs` `(b, s, parts · d)`: `(b, h, s, 1)`.
    fn gates(&self, call: &QueryCall, heads: usize) -> Result<Tensor> {
        let weights = &call.state.weights;
        let dtype = compute_dtype(call.xs.dtype());
        let (b, s, width) = call.xs.dims3()?;
        let parts = self.parts(heads);
        let xs = call.xs.reshape((b, s, parts, width / parts))?;
        let xs = match &self.kept {
            Some((_, kept)) => select(&xs, kept, 2)?,
            None => xs,
        };
        let gate = LinearWeights::new(weights.require(GATE[0])?.clone(), Some(weights.require(GATE[1])?.clone()));
        let gate = Linear::new(GATE[0], gate, 8, width / parts)?;
        let projected = gate.forward_in_dtype(&xs.reshape((b, s * heads, width / parts))?, dtype)?;
        let projected = projected.reshape((b, s, heads, 2, 4))?.sum(D::Minus1)?;
        let gates = candle_nn::ops::sigmoid(&projected)?; // (b, s, h, 2)
        let gate = |i: usize| gates.narrow(3, i, 1)?.transpose(1, 2);
        let factor = (gate(1)?.broadcast_mul(&weights.require(GATE_FACTOR)?.to_dtype(dtype)?)? - 1.0)?;
        Ok(((gate(0)? * factor)? + 2.0)?)
    }
}

impl PositionScheme for GatedRelativeBias {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        if !(4..=MAX_BUCKETS).contains(&self.num_buckets) {
            return Err(Error::config("num_buckets", self.num_buckets, format!("4 to {MAX_BUCKETS}")));
        }
        if self.max_distance <= self.num_buckets / 4 {
            let allowed = format!("more than a quarter of {}, the number of buckets", self.num_buckets);
            return Err(Error::config("max_bucket_distance", self.max_distance, allowed));
        }
        let parts = self.parts(sizes.num_attention_heads);
        if parts * sizes.head_dim != sizes.query_size {
            let allowed = format!("{}, that of {parts} heads, whose gates read it", parts * sizes.head_dim);
            return Err(Error::config("query_size", sizes.query_size, allowed));
        }
        Ok(())
    }

    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        let (h, d) = (sizes.num_attention_heads, sizes.head_dim);
        let bound = (1.0 / d.max(1) as f64).sqrt();
        let uniform = Init::Uniform { lo: -bound, up: bound };
        vec![
            Parameter::new(TABLE, [self.num_buckets, h], NORMAL).with_head_axis(1).with_presence(Presence::Shared),
            Parameter::new(GATE[0], [8, d], uniform),
            Parameter::new(GATE[1], [8], uniform),
            Parameter::new(GATE_FACTOR, [1, h, 1, 1], Init::Const(1.0)).with_head_axis(1),
        ]
    }

    fn prune(&mut self, kept: &[usize], heads: usize) {
        self.kept = Some(match self.kept.take() {
            Some((parts, before)) => (parts, kept.iter().map(|&head| before[head]).collect()),
            None => (heads, kept.to_vec()),
        });
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { needs_full_sequence: true, ..SchemeTraits::default() }
    }

    fn distance_embedding_count(&self, _: usize) -> [usize; 2] {
        [self.num_buckets, 0]
    }

    fn query_term(&self, call: &QueryCall) -> Result<Option<AttentionMask>> {
        let (b, s_q, h, _) = call.q.dims4()?;
        if b * s_q * h * call.s_kv == 0 {
            return Ok(None);
        }
        let table = call.state.weights.require(TABLE)?;
        let table = table.to_dtype(compute_dtype(table.dtype()))?;
        // Query 0 stands at the key `s_kv - s_q`, the last query at the last key.
        let first = 1 - call.s_kv as i64;
        let buckets: Vec<u32> = (first..s_q as i64).map(|ahead| self.bucket(ahead) as u32).collect();
        let table = table.index_select(&Tensor::new(buckets, table.device())?, 0)?; // (distances, h)
        let factors = Some(self.gates(call, h)?);
        Ok(Some(AttentionMask::from_term(RelativeBias { table, first, factors })))
    }

    fn describe(&self) -> String {
        format!("gated relative({} buckets)", self.num_buckets)
    }
}

//! T5's relative position bias: a learned bias per head and bucket of distances.

use candle_core::{DType, Tensor, TensorId};

use super::scheme::{BiasCall, LayerSizes, NORMAL, PositionScheme, SchemeTraits};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, RelativeBias};
use crate::weights::{Parameter, Presence};

const TABLE: &str = "relative_attention_bias.weight";

/// The most buckets. Rows of the table are indexed by 32 bits; published models have up to 64.
pub(super) const MAX_BUCKETS: usize = 1 << 20;

/// T5's relative position bias ([Raffel 2020](https://arxiv.org/abs/1910.10683)): distances are sorted into buckets,
/// short ones exactly, long ones by their logarithm, and each bucket and head has a learned bias.
///
/// The table `relative_attention_bias.weight` `(num_buckets, num_attention_heads)` is a weight of the layer
/// ([`Parameters`](crate::weights::Parameters)).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct T5RelativeBias {
    /// The number of buckets; 4 to 1,048,576.
    pub num_buckets: usize,
    /// The distance in tokens from which on all share the last bucket; more than half of `num_buckets`.
    pub max_distance: usize,
    /// Whether keys after the query have buckets of their own; otherwise they share that of distance 0.
    pub bidirectional: bool,
}

impl T5RelativeBias {
    /// `num_buckets` buckets for distances up to `max_distance`.
    pub fn new(num_buckets: usize, max_distance: usize, bidirectional: bool) -> Self {
        Self { num_buckets, max_distance, bidirectional }
    }

    crate::setters! {
        /// Sets the number of buckets.
        with_num_buckets, num_buckets: usize = num_buckets;
        /// Sets the distance from which on all share the last bucket.
        with_max_distance, max_distance: usize = max_distance;
        /// Sets whether keys after the query have buckets of their own.
        with_bidirectional, bidirectional: bool = bidirectional;
    }

    /// The bucket of a key that stands `ahead` tokens after the query.
    fn bucket(&self, ahead: i64) -> usize {
        let buckets = if self.bidirectional { self.num_buckets / 2 } else { self.num_buckets };
        let start = if self.bidirectional && ahead > 0 { buckets } else { 0 };
        let distance = match (self.bidirectional, usize::try_from(-ahead)) {
            (true, _) => ahead.unsigned_abs() as usize,
            (false, Ok(behind)) => behind,
            (false, Err(_)) => 0,
        };
        let exact = buckets / 2;
        if distance < exact {
            return start + distance;
        }
        // In f32, as in the reference: if the logarithm is next to a whole number, rounding decides the bucket.
        let log = (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        let far = exact.saturating_add((log * (buckets - exact) as f32) as usize);
        start + far.min(buckets - 1)
    }

    /// The bias of a call from a table `(num_buckets, h)`. `starts`: the key at which query 0 of each sequence stands.
    fn relative_bias(&self, table: &Tensor, starts: &[i64], s_q: usize, s_kv: usize) -> Result<AttentionMask> {
        let last = starts.iter().max().copied().unwrap_or(0) + s_q as i64 - 1;
        let end = s_kv as i64 - starts.iter().min().copied().unwrap_or(0);
        // Each distance only once: a logarithm per query and key takes longer than a GPU needs for the whole layer.
        let buckets: Vec<u32> = (-last..end).map(|ahead| self.bucket(ahead) as u32).collect();
        let by_distance = table.index_select(&Tensor::new(buckets, table.device())?, 0)?; // (distances, h)
        let bias = RelativeBias { table: by_distance, first: -last, factors: None };
        if table.device().is_cpu() {
            return Ok(AttentionMask::from_term(bias));
        }
        AttentionMask::additive(&bias.tensor(starts, s_q, s_kv)?)
    }
}

impl PositionScheme for T5RelativeBias {
    fn validate(&self, _: &LayerSizes) -> Result<()> {
        if !(4..=MAX_BUCKETS).contains(&self.num_buckets) {
            let allowed = format!("4 to {MAX_BUCKETS}");
            return Err(Error::config("relative_attention_num_buckets", self.num_buckets, allowed));
        }
        if self.max_distance <= self.num_buckets / 2 {
            let allowed = format!("more than half of {}, the number of buckets", self.num_buckets);
            return Err(Error::config("relative_attention_max_distance", self.max_distance, allowed));
        }
        Ok(())
    }

    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        let table = Parameter::new(TABLE, [self.num_buckets, sizes.num_attention_heads], NORMAL);
        vec![table.with_head_axis(1).with_presence(Presence::Shared)]
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { runs_ragged: true, runs_rows: true, ..SchemeTraits::default() }
    }

    fn bias(&self, call: &BiasCall) -> Result<Option<AttentionMask>> {
        let table = call.state.weights.require(TABLE)?;
        let (s_q, s_kv) = (call.s_q, call.s_kv);
        let bias = match call.cache {
            // One key per table, so that a stack whose layers have tables of their own keeps one bias at a time.
            Some(cache) => cache.get_or_compute(
                1,
                |key: &(TensorId, usize)| *key == (table.id(), s_kv),
                || Ok(((table.id(), s_kv), self.relative_bias(&table.to_dtype(DType::F32)?, &[0], s_q, s_kv)?)),
            )?,
            None => {
                let end = [s_kv as i64 - s_q as i64];
                let starts: Vec<i64> =
                    call.starts.map_or_else(|| end.to_vec(), |starts| starts.iter().map(|&s| s as i64).collect());
                self.relative_bias(table, &starts, s_q, s_kv)?
            }
        };
        Ok(Some(bias))
    }

    fn describe(&self) -> String {
        format!("relative({} buckets)", self.num_buckets)
    }
}

//! Statistics of attention weights, computed beside the output of a call.
//!
//! `observe` returns statistics instead of matrices. The attention weights of a layer have `b · h · s_q · s_kv`
//! elements, which for long texts is more than the memory of most machines. Entropy, mean distance and the top keys are
//! what analyses of attention mostly use, and they can be computed from a few queries at a time. The matrices are
//! available, too, for selected heads and queries.

use std::borrow::Cow;

use candle_core::{D, DType, Device, Tensor};

use crate::attention::call::OpenCall;
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::mask::AttnShape;
use crate::ops::accumulate_dtype;
use crate::sdpa;
use crate::sdpa::{Backend, Plan, SdpaOptions};
use crate::setters;
use crate::tensor::{compute_dtype, select, wide};
use crate::weights::{SCORE, SINKS};

/// Attention weights that are in memory at a time.
const BLOCK: usize = 1 << 21;

/// Selects which attention statistics [`MultiHeadAttention::observe`] returns. Default: none, of all heads and queries.
///
/// ```
/// # use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions};
/// # use candle_attention::{MultiHeadAttention, ObserveOptions};
/// # use candle_core::{DType, Device, Tensor};
/// # let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
/// # let attention = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
/// let xs = Tensor::zeros((1, 5, 8), DType::F32, &Device::Cpu)?;
/// let mask = AttentionMask::causal();
/// let inputs = AttentionInputs::self_attention(&xs, &mask);
/// let what = ObserveOptions::default().with_heads(&[1]).with_entropy(true).with_top_k(2);
/// let observed = attention.observe(&inputs, &AttentionOptions::default(), &what)?;
/// assert_eq!(observed.entropy.unwrap().dims(), [1, 1, 5]);
/// assert_eq!(observed.top_keys.unwrap().keys.dims(), [1, 1, 5, 2]);
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ObserveOptions {
    /// The heads, in this order; `None` is all.
    pub heads: Option<Vec<usize>>,
    /// The queries, in this order; `None` is all.
    pub queries: Option<Vec<usize>>,
    /// Whether the attention weights themselves are returned.
    pub attention_weights: bool,
    /// Whether the entropy per query is returned.
    pub entropy: bool,
    /// Whether the mean query-key distance is returned.
    pub mean_distance: bool,
    /// How many keys with the largest attention weights are returned per query.
    pub top_k: Option<usize>,
}

impl ObserveOptions {
    setters! {
        /// Sets whether the attention weights are returned.
        with_attention_weights, attention_weights: bool = attention_weights;
        /// Sets whether the entropy is returned.
        with_entropy, entropy: bool = entropy;
        /// Sets whether the mean distance is returned.
        with_mean_distance, mean_distance: bool = mean_distance;
        /// Sets how many keys are returned.
        with_top_k, top_k: usize = Some(top_k);
        /// Sets the heads.
        with_heads, heads: &[usize] = Some(heads.to_vec());
        /// Sets the queries.
        with_queries, queries: &[usize] = Some(queries.to_vec());
    }
}

/// The output of a call and the statistics that [`ObserveOptions`] selects, heads and queries in the selected order.
/// f64 for an f64 layer, f32 for others.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttentionStats {
    /// The output of [`MultiHeadAttention::attend_with`], `(b, s_q, output_size)`.
    pub output: Tensor,
    /// The attention weights `(b, heads, queries, s_kv)`, before any dropout; a learned or zero extra key adds a
    /// column.
    pub attention_weights: Option<Tensor>,
    /// The entropy `-Σ w ln w` over the keys, in nats, `(b, heads, queries)`: 0 if one key has all the weight, `ln n`
    /// if `n` keys share it evenly, 0 for fully masked queries.
    pub entropy: Option<Tensor>,
    /// The mean distance `Σ w · |position of the query - position of the key|` in tokens, `(b, heads, queries)`. The
    /// last query stands at the last key. Extra keys have no position and do not count.
    pub mean_distance: Option<Tensor>,
    /// The keys with the largest attention weights.
    pub top_keys: Option<TopKeys>,
}

/// The keys with the largest attention weights of each query, largest first; of equal ones the first key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TopKeys {
    /// Indices of the keys, `(b, heads, queries, k)` u32, on the CPU.
    pub keys: Tensor,
    /// Their attention weights, of the same shape, on the CPU.
    pub attention_weights: Tensor,
}

impl MultiHeadAttention {
    /// The output of [`attend_with`](Self::attend_with), and the selected statistics of its attention weights.
    ///
    /// Queries are processed in blocks: unless the attention weights themselves are selected, memory grows with `s_kv`,
    /// not with `s_q · s_kv`. A ragged batch is padded to its longest sequence, and the queries are those of the padded
    /// batch. Inputs with a cache add their keys and values to it.
    ///
    /// # Errors
    /// The errors of [`attend_with`](Self::attend_with), a head, a query or a number of keys that does not exist, a
    /// ragged batch without tokens, or mean distances of sequences of unequal length in a cache or of keys of blocks.
    pub fn observe(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
        what: &ObserveOptions,
    ) -> Result<AttentionStats> {
        let options = &options.with_return_attention_weights(false);
        self.for_call(inputs, options).open(inputs, options)?.observe(what)
    }
}

impl OpenCall<'_> {
    /// The output of the call and the selected statistics of its attention weights. After an error, a cache is as it
    /// was.
    pub(super) fn observe(mut self, what: &ObserveOptions) -> Result<AttentionStats> {
        if let Some((lengths, _)) = self.tokens.ragged() {
            return self.observe_padded(lengths, what);
        }
        let stats = self.or_undone(|call| call.observe_tensors(what))?;
        self.layer.mechanisms.iter().try_fold(stats, |stats, mechanism| mechanism.finish_stats(&self, stats, what))
    }

    fn observe_tensors(&mut self, what: &ObserveOptions) -> Result<AttentionStats> {
        let (layer, AttnShape { b, h, s_q, s_kv }) = (self.layer, self.sizes.shape);
        let heads = chosen("head", what.heads.as_deref(), h)?;
        let queries = chosen("query", what.queries.as_deref(), s_q)?;
        if h == 0 {
            let (output, empty) = (layer.without_heads(&self.xs[0])?, [b, 0, queries.len()]);
            return StatBlocks::default().concatenated(output, what, empty, s_kv, DType::F32, self.xs[0].device());
        }
        // The statistics are of queries and keys, which the absorbed form does not have.
        self.absorbed = None;
        if what.mean_distance && (self.counted.starts().is_some() || s_kv != self.counted.s_kv) {
            let allowed = "false for sequences of unequal length in a cache, and beside keys of blocks of tokens";
            return Err(Error::config("mean_distance", true, allowed));
        }
        // The dtype in which the eager backend computes; a cache has its own.
        let is_stored = self.counted.stored.is_some();
        let wide_dtype = if is_stored { self.sizes.dtype } else { accumulate_dtype(layer.qkv.like()) };
        let qkv = self.keys(wide_dtype)?;
        let (call, sdpa) = (self.sizes, &self.sdpa);
        let output = if call.dtype == wide_dtype {
            let attended = sdpa::attend_call(Plan::choose(&call, sdpa)?, qkv.each_ref(), None, &call, sdpa)?;
            self.finish(attended, &qkv[2])?.output
        } else {
            let [query, key, value] = &self.xs;
            let inputs = AttentionInputs::new(query, key, value, self.mask);
            layer.open_given(&inputs, self.options)?.run()?.output
        };
        let [q, k, _] = wide(qkv, wide_dtype)?;
        let keys = k.dim(1)?;
        if let Some(k) = what.top_k.filter(|k| !(1..=keys).contains(k)) {
            return Err(Error::config("top_k", k, format!("1 to {keys}, the keys")));
        }

        let all = what.heads.is_none();
        let select_heads = |t: &Tensor, dim: usize, group: usize| {
            if all {
                return Ok(t.clone());
            }
            select(t, &heads.iter().map(|head| head / group).collect::<Vec<_>>(), dim)
        };
        let group = h / layer.config.resolved_num_key_value_heads();
        let (q, k) = (select_heads(&q, 2, 1)?, select_heads(&k, 2, group)?);
        // The output is not needed here, so values of one element are enough.
        let v = k.narrow(3, 0, 1)?;
        let mask = if all {
            sdpa.mask.clone()
        } else {
            Cow::Owned(sdpa.mask.select_heads(&heads, AttnShape { b, h, s_q, s_kv })?)
        };
        let sinks = layer.parameters.get(SINKS).map(|sinks| select_heads(sinks, 0, 1)).transpose()?;
        let score = layer.parameters.get(SCORE).map(|score| select_heads(score, 0, 1)).transpose()?;
        let call = AttnShape { b, h: heads.len(), s_q, s_kv };

        // A half type would round entropies and distances to a few digits.
        let stat_dtype = compute_dtype(q.dtype());
        let mut blocks = StatBlocks::default();
        let step = (BLOCK / (b * heads.len() * keys).max(1)).max(1);
        let observed: &[usize] = if heads.is_empty() { &[] } else { &queries };
        for run in runs(observed, step) {
            let mask = mask.select_queries(run.clone(), call)?;
            let sdpa = SdpaOptions {
                mask: Cow::Owned(mask),
                sinks: sinks.as_ref(),
                additive: score.as_ref(),
                value_distances: None,
                return_attention_weights: true,
                backend: Some(Backend::Eager),
                dropout: 0.0,
                ..sdpa.clone()
            };
            let weights = sdpa::attend_bshd(&q.narrow(1, run.start, run.len())?, &k, &v, &sdpa)?.attention_weights;
            let Some(weights) = weights else { continue };
            let weights = weights.to_dtype(stat_dtype)?;
            blocks.add(&weights, run.start, s_kv as i64 - s_q as i64, s_kv, what)?;
        }
        let empty = [b, heads.len(), queries.len()];
        blocks.concatenated(output, what, empty, keys, stat_dtype, q.device())
    }
}

/// Statistics of the blocks of queries processed so far.
#[derive(Default)]
struct StatBlocks {
    attention_weights: Vec<Tensor>,
    entropy: Vec<Tensor>,
    mean_distance: Vec<Tensor>,
    top: [Vec<Tensor>; 2],
}

impl StatBlocks {
    /// Adds the attention weights `(b, heads, rows, keys)` of the queries from `first` on. Query `i` stands at key
    /// `i + offset`.
    fn add(&mut self, weights: &Tensor, first: usize, offset: i64, s_kv: usize, what: &ObserveOptions) -> Result<()> {
        let rows = weights.dim(2)?;
        if what.entropy {
            // `0 · ln 0` is 0 here.
            let logs = weights.maximum(f64::from(f32::MIN_POSITIVE))?.log()?;
            self.entropy.push((weights * logs)?.sum(D::Minus1)?.neg()?);
        }
        if what.mean_distance {
            let positions = (first..first + rows).map(|i| i as i64 + offset);
            let distances = positions.flat_map(|p| (0..s_kv as i64).map(move |j| (p - j).abs() as f64));
            let distances = Tensor::from_vec(distances.collect::<Vec<_>>(), (1, 1, rows, s_kv), &Device::Cpu)?;
            let distances = distances.to_dtype(weights.dtype())?.to_device(weights.device())?;
            let placed = weights.narrow(D::Minus1, 0, s_kv)?;
            self.mean_distance.push(placed.broadcast_mul(&distances)?.sum(D::Minus1)?);
        }
        if let Some(k) = what.top_k {
            let [keys, largest] = top(weights, k)?;
            self.top[0].push(keys);
            self.top[1].push(largest);
        }
        if what.attention_weights {
            self.attention_weights.push(weights.clone());
        }
        Ok(())
    }

    /// The statistics of all queries.
    fn concatenated(
        self,
        output: Tensor,
        what: &ObserveOptions,
        [b, heads, queries]: [usize; 3],
        keys: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<AttentionStats> {
        let join = |blocks: &[Tensor], last: Option<usize>, dtype: DType| {
            if blocks.is_empty() {
                let shape: Vec<usize> = [b, heads, queries].into_iter().chain(last).collect();
                return Tensor::zeros(shape, dtype, device);
            }
            Tensor::cat(blocks, 2)
        };
        let asked = |asked: bool, parts: &[Tensor], last| asked.then(|| join(parts, last, dtype)).transpose();
        let top_keys = |k: usize| -> Result<TopKeys> {
            let [indices, weights] = &self.top;
            Ok(TopKeys { keys: join(indices, Some(k), DType::U32)?, attention_weights: join(weights, Some(k), dtype)? })
        };
        Ok(AttentionStats {
            output,
            attention_weights: asked(what.attention_weights, &self.attention_weights, Some(keys))?,
            entropy: asked(what.entropy, &self.entropy, None)?,
            mean_distance: asked(what.mean_distance, &self.mean_distance, None)?,
            top_keys: what.top_k.map(top_keys).transpose()?,
        })
    }
}

/// Indices and values of the `k` largest attention weights of each row.
fn top(weights: &Tensor, k: usize) -> Result<[Tensor; 2]> {
    let (b, h, rows, keys) = weights.dims4()?;
    let values: Vec<f64> = weights.detach().to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let (mut indices, mut largest) = (Vec::new(), Vec::new());
    let mut order: Vec<u32> = Vec::with_capacity(keys);
    for row in values.chunks_exact(keys) {
        order.clear();
        order.extend(0..keys as u32);
        let before = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
        if k < keys {
            order.select_nth_unstable_by(k, before);
        }
        order[..k].sort_unstable_by(before);
        indices.extend_from_slice(&order[..k]);
        largest.extend(order[..k].iter().map(|&key| row[key as usize]));
    }
    let shape = (b, h, rows, k);
    let largest = Tensor::from_vec(largest, shape, &Device::Cpu)?.to_dtype(weights.dtype())?;
    Ok([Tensor::from_vec(indices, shape, &Device::Cpu)?, largest])
}

/// The selected heads or queries, or all.
fn chosen(what: &str, asked: Option<&[usize]>, count: usize) -> Result<Vec<usize>> {
    let Some(asked) = asked else { return Ok((0..count).collect()) };
    match asked.iter().find(|i| **i >= count) {
        Some(i) => Err(Error::value(format!("a {what} to observe"), i, format!("less than {count}"))),
        None => Ok(asked.to_vec()),
    }
}

/// Ranges of consecutive queries, each of at most `limit`.
pub(super) fn runs(queries: &[usize], limit: usize) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for &query in queries {
        match runs.last_mut() {
            Some(run) if run.end == query && run.len() < limit => run.end += 1,
            _ => runs.push(query..query + 1),
        }
    }
    runs
}

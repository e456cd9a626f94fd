//! Attention weights, or what they come to, beside the output that a call gives anyway.

use std::borrow::Cow;

use candle_core::{D, DType, Device, Tensor};

use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::macros::setters;
use crate::mask::AttnShape;
use crate::ops::accumulate_dtype;
use crate::sdpa;
use crate::sdpa::{Backend, SdpaOptions};
use crate::tensor::{compute_dtype, select};

/// Weights that are alive at a time: what bounds the memory of summaries.
const BLOCK: usize = 1 << 21;

/// What of its weights [`MultiHeadAttention::observe`] is to tell. The default: nothing, of all heads and queries.
///
/// ```
/// # use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, MultiHeadAttention, Observe};
/// # use candle_core::{DType, Device, Tensor};
/// # let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
/// # let attention = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
/// let xs = Tensor::zeros((1, 5, 8), DType::F32, &Device::Cpu)?;
/// let mask = AttentionMask::causal();
/// let inputs = AttentionInputs::self_attention(&xs, &mask);
/// let what = Observe::default().with_heads(&[1]).with_entropy(true).with_top_k(2);
/// let observed = attention.observe(&inputs, &AttentionOptions::default(), &what)?;
/// assert_eq!(observed.entropy.unwrap().dims(), [1, 1, 5]);
/// assert_eq!(observed.top_keys.unwrap().keys.dims(), [1, 1, 5, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Observe {
    /// Of which heads, in this order; `None` is all.
    pub heads: Option<Vec<usize>>,
    /// Of which queries, in this order; `None` is all.
    pub queries: Option<Vec<usize>>,
    /// The weights themselves.
    pub weights: bool,
    /// How widely each query looks.
    pub entropy: bool,
    /// How far.
    pub mean_distance: bool,
    /// At which keys most, and how much: this many.
    pub top_k: Option<usize>,
}

impl Observe {
    setters! {
        /// Sets whether the weights are told.
        with_weights, weights: bool = weights;
        /// Sets whether the entropy is told.
        with_entropy, entropy: bool = entropy;
        /// Sets whether the mean distance is told.
        with_mean_distance, mean_distance: bool = mean_distance;
        /// Sets how many keys are told.
        with_top_k, top_k: usize = Some(top_k);
        /// Sets the heads.
        with_heads, heads: &[usize] = Some(heads.to_vec());
        /// Sets the queries.
        with_queries, queries: &[usize] = Some(queries.to_vec());
    }
}

/// What was asked for: `heads` and `queries` in the order asked for. f64 for an f64 layer, f32 for others.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Observed {
    /// As [`MultiHeadAttention::attend_with`] gives it.
    pub output: Tensor,
    /// `(b, heads, queries, s_kv)`, before any dropout; a learned or zero extra key is one column more.
    pub weights: Option<Tensor>,
    /// `-Σ w ln w` over the keys, in nats, `(b, heads, queries)`: 0 where one key has it all, `ln n` where `n` share it
    /// evenly. 0 where nothing is seen.
    pub entropy: Option<Tensor>,
    /// `Σ w · |position of the query - position of the key|` in tokens, `(b, heads, queries)`; the last query stands at
    /// the last key. Extra keys stand nowhere and do not count.
    pub mean_distance: Option<Tensor>,
    /// The keys with the largest weights.
    pub top_keys: Option<TopKeys>,
}

/// The keys at which each query looks most, the largest weight first; of equal weights the first key.
#[derive(Debug, Clone)]
pub struct TopKeys {
    /// Their places, `(b, heads, queries, k)` u32, on the CPU.
    pub keys: Tensor,
    /// Their weights, of the same shape, on the CPU.
    pub weights: Tensor,
}

impl MultiHeadAttention {
    /// The output of [`attend_with`](Self::attend_with), made as there, and of its weights what is asked for. Queries are
    /// taken some at a time: but for the weights themselves, memory grows with `s_kv`, not with `s_q · s_kv`.
    ///
    /// # Errors
    /// As [`attend_with`](Self::attend_with); a head, a query or a number of keys that there is not.
    pub fn observe(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
        what: &Observe,
    ) -> candle_core::Result<Observed> {
        Ok(self.observed(inputs, options, what)?)
    }

    fn observed(&self, inputs: &AttentionInputs, options: &AttentionOptions, what: &Observe) -> Result<Observed> {
        self.check(inputs, options)?;
        let (b, s_q, _) = inputs.query.dims3()?;
        let s_kv = inputs.key.dim(1)?;
        let h = self.config.num_attention_heads;
        let heads = chosen("head", what.heads.as_deref(), h)?;
        let queries = chosen("query", what.queries.as_deref(), s_q)?;

        if h == 0 {
            let output = self.without_heads(inputs.query)?.output;
            return Parts::default().joined(
                output,
                what,
                [b, 0, queries.len()],
                s_kv,
                DType::F32,
                inputs.query.device(),
            );
        }
        let options = &options.with_return_attention_weights(false);
        let positioned = self.mask_with_bias(inputs, inputs.query.dim(1)?, s_kv, None, None)?;
        let inputs_by_position = AttentionInputs { mask: &positioned, ..*inputs };
        let sdpa = self.sdpa_options(&inputs_by_position, options);
        let call = self.call(&inputs_by_position, &sdpa, s_kv)?;
        positioned.check(call.shape)?;
        // As the plain path makes them.
        let wide = accumulate_dtype(self.qkv.weight());
        let compared = self.compared(&inputs_by_position, wide, options.grid)?;
        let output = match call.dtype == wide {
            true => {
                let sdpa = SdpaOptions { mask: &compared.mask, ..sdpa };
                self.finish(sdpa::attend_bshd(&compared.q, &compared.k, &compared.v, &sdpa)?, inputs, options)?.output
            }
            false => self.run(inputs, options)?.output,
        };
        let keys = compared.k.dim(1)?;
        if let Some(k) = what.top_k.filter(|k| !(1..=keys).contains(k)) {
            return Err(Error::config("top_k", k, format!("1 to {keys}, the keys")));
        }

        let all = what.heads.is_none();
        let select = |t: &Tensor, dim: usize, group: usize| match all {
            true => Ok(t.clone()),
            false => select(t, &heads.iter().map(|head| head / group).collect::<Vec<_>>(), dim),
        };
        let group = h / self.config.num_key_value_heads();
        let (q, k) = (select(&compared.q, 2, 1)?, select(&compared.k, 2, group)?);
        // Only the weights are wanted: a value of one number will do.
        let v = k.narrow(3, 0, 1)?;
        let mask = if all { compared.mask } else { Cow::Owned(compared.mask.of_heads(&heads)?) };
        let sinks = self.sinks.as_ref().map(|sinks| select(sinks, 0, 1)).transpose()?;
        let score = self.score.as_ref().map(|score| select(score, 0, 1)).transpose()?;
        let call = AttnShape { b, h: heads.len(), s_q, s_kv };

        // On a GPU, a half type would round entropies and distances away.
        let told = compute_dtype(q.dtype());
        let mut parts = Parts::default();
        let step = (BLOCK / (b * heads.len() * keys).max(1)).max(1);
        let seen: &[usize] = if heads.is_empty() { &[] } else { &queries };
        for run in runs(seen, step) {
            let mask = mask.of_queries(run.start, run.len(), call)?;
            let sdpa = SdpaOptions {
                sinks: sinks.as_ref(),
                additive: score.as_ref(),
                return_attention_weights: true,
                backend: Some(Backend::Eager),
                dropout: 0.0,
                ..self.sdpa_options(&AttentionInputs { mask: &mask, ..*inputs }, options)
            };
            let weights = sdpa::attend_bshd(&q.narrow(1, run.start, run.len())?, &k, &v, &sdpa)?.attention_weights;
            let Some(weights) = weights else { continue };
            let weights = weights.to_dtype(told)?;
            parts.add(&weights, run.start, s_kv as i64 - s_q as i64, s_kv, what)?;
        }
        let empty = [b, heads.len(), queries.len()];
        parts.joined(output, what, empty, keys, told, q.device())
    }
}

/// What has been seen of each run of queries.
#[derive(Default)]
struct Parts {
    weights: Vec<Tensor>,
    entropy: Vec<Tensor>,
    mean_distance: Vec<Tensor>,
    top: [Vec<Tensor>; 2],
}

impl Parts {
    /// `weights` `(b, heads, rows, keys)` of the queries from `first` on. Query `i` stands at key `i + offset`.
    fn add(&mut self, weights: &Tensor, first: usize, offset: i64, s_kv: usize, what: &Observe) -> Result<()> {
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
        if what.weights {
            self.weights.push(weights.clone());
        }
        Ok(())
    }

    fn joined(
        self,
        output: Tensor,
        what: &Observe,
        [b, heads, queries]: [usize; 3],
        keys: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Observed> {
        let join = |parts: &[Tensor], last: Option<usize>, dtype: DType| match parts.is_empty() {
            true => {
                let shape: Vec<usize> = [b, heads, queries].into_iter().chain(last).collect();
                Tensor::zeros(shape, dtype, device)
            }
            false => Tensor::cat(parts, 2),
        };
        let asked = |asked: bool, parts: &[Tensor], last| asked.then(|| join(parts, last, dtype)).transpose();
        let top_keys = |k: usize| -> Result<TopKeys> {
            let [places, weights] = &self.top;
            Ok(TopKeys { keys: join(places, Some(k), DType::U32)?, weights: join(weights, Some(k), dtype)? })
        };
        Ok(Observed {
            output,
            weights: asked(what.weights, &self.weights, Some(keys))?,
            entropy: asked(what.entropy, &self.entropy, None)?,
            mean_distance: asked(what.mean_distance, &self.mean_distance, None)?,
            top_keys: what.top_k.map(top_keys).transpose()?,
        })
    }
}

/// Places and values of the `k` largest weights of each row.
fn top(weights: &Tensor, k: usize) -> Result<[Tensor; 2]> {
    let (b, h, rows, keys) = weights.dims4()?;
    let numbers: Vec<f64> = weights.detach().to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    let (mut places, mut largest) = (Vec::new(), Vec::new());
    let mut order: Vec<u32> = Vec::with_capacity(keys);
    for row in numbers.chunks_exact(keys) {
        order.clear();
        order.extend(0..keys as u32);
        let before = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
        if k < keys {
            order.select_nth_unstable_by(k, before);
        }
        order[..k].sort_unstable_by(before);
        places.extend_from_slice(&order[..k]);
        largest.extend(order[..k].iter().map(|&place| row[place as usize]));
    }
    let shape = (b, h, rows, k);
    let largest = Tensor::from_vec(largest, shape, &Device::Cpu)?.to_dtype(weights.dtype())?;
    Ok([Tensor::from_vec(places, shape, &Device::Cpu)?, largest])
}

/// The heads or queries asked for, or all.
fn chosen(what: &str, asked: Option<&[usize]>, count: usize) -> Result<Vec<usize>> {
    let Some(asked) = asked else { return Ok((0..count).collect()) };
    match asked.iter().find(|i| **i >= count) {
        Some(i) => Err(Error::value(format!("a {what} to observe"), i, format!("less than {count}"))),
        None => Ok(asked.to_vec()),
    }
}

/// Consecutive ones together, at most `most` of them.
fn runs(queries: &[usize], most: usize) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for &query in queries {
        match runs.last_mut() {
            Some(run) if run.end == query && run.len() < most => run.end += 1,
            _ => runs.push(query..query + 1),
        }
    }
    runs
}

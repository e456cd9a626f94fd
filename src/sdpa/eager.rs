//! Attention by candle's own tensor operations. All of them are differentiable, whatever the inputs: a fused softmax
//! would drop the gradient without an error.

use candle_attention_kernels::Dropout;
use candle_core::{D, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape, DenseMask, lowest_finite};
use crate::sdpa::non_finite::Asking;
use crate::sdpa::{AttentionOutput, Call, DeviceKind, SdpaOptions, heads_first, non_finite, score_functions};
use crate::tensor::{check_allocation, compute_dtype, element_count};

/// Elements of the tensor `(b, h, queries, s_kv, d)` that additive scoring computes at a time.
const ADDITIVE_CHUNK: usize = 1 << 22;

pub(super) fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    call: &Call,
    options: &SdpaOptions,
) -> Result<AttentionOutput> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let keys = s_kv + options.appended_keys;
    let (h_kv, group) = (call.h_kv, h / call.h_kv);
    check_memory(call, options)?;
    let compute = compute_dtype(call.dtype);
    // Upcasting first costs memory, but keeps scores and softmax out of the half types.
    let wide = |t: &Tensor| heads_first(&t.to_dtype(compute)?);
    let (q, k, v) = (wide(q)?, wide(k)?, wide(v)?); // (b, h|h_kv, s, d)
    let changes = options.mask.has_score_functions();
    let mask = if changes { &options.mask.without_score_functions() } else { &*options.mask };
    let dense = |mask: &AttentionMask| mask.dense(call.shape, options.appended_keys, compute, k.device());
    // The products of queries with distances are a part of what is capped.
    let (capped_bias, mut mask) = if options.softcap.is_some() {
        let [products, others] = mask.split_products();
        (dense(&products)?.bias, dense(&others)?)
    } else {
        (None, dense(mask)?)
    };
    let asking = Asking::from_device(k.device());

    let scores_of = |q: &Tensor, k: &Tensor| match options.additive {
        None => {
            let scale = options.dot_product_scale(call.d);
            // The query heads of a group are more rows of one matrix, so that their key-value head is not repeated.
            let q = (q * scale)?.reshape((b, h_kv, group * s_q, call.d))?;
            Ok(q.matmul(&k.t()?)?.reshape((b, h, s_q, keys))?)
        }
        Some(w) => {
            let scores = additive_scores(q, &repeat_heads(k, group)?, &w.to_dtype(compute)?)?;
            Ok((scores * options.scale.unwrap_or(1.0))?)
        }
    };
    let scores = if mask.keep.is_some() || changes {
        non_finite::scores(asking, &q, &k, scores_of)?
    } else {
        scores_of(&q, &k)?
    };
    let scores = match options.softcap {
        Some(cap) => {
            let scores = if let Some(products) = capped_bias { scores.broadcast_add(&products)? } else { scores };
            ((scores / cap)?.tanh()? * cap)?
        }
        None => scores,
    };
    let scores = if changes { score_functions::apply(&scores, &options.mask, call.shape)? } else { scores };
    if changes {
        // A function hides keys, too.
        mask = mask.and(DenseMask::keep(scores.detach().ne(f64::NEG_INFINITY)?))?;
    }
    let sinks = options.sinks.map(|sinks| sinks.to_dtype(compute)?.reshape((1, h, 1, 1))).transpose()?;
    let weights = masked_softmax(&scores, &mask, sinks.as_ref())?; // (b, h, s_q, keys)

    let dropped = match options.dropout {
        p if p > 0.0 => dropout(&weights, p, options.dropout_seed)?,
        _ => weights.clone(),
    };
    let context_of = |weights: &Tensor, v: &Tensor| {
        let context = weights.reshape((b, h_kv, group * s_q, keys))?.matmul(v)?; // (b, h_kv, group * s_q, d_v)
        Ok(context.reshape((b, h, s_q, call.d_v))?)
    };
    let output = match &mask.keep {
        Some(keep) => non_finite::context(asking, &dropped, &v, keep, context_of)?,
        None => context_of(&dropped, &v)?,
    };
    let output = match &options.value_distances {
        Some(embeddings) => (output + by_distance(&dropped, s_kv, &embeddings.to_dtype(compute)?)?)?,
        None => output,
    };
    let output = output.transpose(1, 2)?.contiguous()?.to_dtype(call.dtype)?;
    let attention_weights = options.return_attention_weights.then(|| weights.to_dtype(call.dtype)).transpose()?;
    Ok(AttentionOutput { output, attention_weights })
}

/// The products of attention weights `(b, h, s_q, s_kv)` with the embeddings `(2 n + 1, d_v)` of the distances up to
/// `n` of their keys: `(b, h, s_q, d_v)`. The last query stands at the last of `s_kv` keys; those after it have no
/// distance.
fn by_distance(weights: &Tensor, s_kv: usize, embeddings: &Tensor) -> Result<Tensor> {
    let weights = weights.narrow(D::Minus1, 0, s_kv)?;
    let (b, h, s_q, _) = weights.dims4()?;
    let (count, d_v) = embeddings.dims2()?;
    let near = count as i64 / 2;
    let mut sums = Vec::with_capacity(count);
    for distance in -near..=near {
        let key = |i: usize| (s_kv + i) as i64 - s_q as i64 + distance;
        let places = (0..s_q).flat_map(|i| (0..s_kv).map(move |j| f32::from(u8::from(j as i64 == key(i)))));
        let places = Tensor::from_iter(places, weights.device())?.reshape((s_q, s_kv))?.to_dtype(weights.dtype())?;
        sums.push(weights.broadcast_mul(&places)?.sum(D::Minus1)?);
    }
    let sums = Tensor::stack(&sums, 3)?; // (b, h, s_q, count)
    Ok(sums.reshape((b * h * s_q, count))?.matmul(embeddings)?.reshape((b, h, s_q, d_v))?)
}

/// Rejects score tensors that cannot be allocated on the CPU, where candle would abort or wrap around, and those that
/// candle's CUDA kernels would loop over forever, because they count elements in 32 bits.
fn check_memory(call: &Call, options: &SdpaOptions) -> Result<()> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let scores = element_count("the scores", &[b, h, s_q, s_kv.saturating_add(options.appended_keys)])?;
    match call.device {
        DeviceKind::Cuda(_) if scores > u32::MAX as usize - 1024 => {
            Err(Error::value("the number of scores", scores, "less than 2^32 on an NVIDIA GPU (use a smaller batch)"))
        }
        DeviceKind::Cpu => Ok(check_allocation::<u8>("the eager backend", scratch_bytes(call, options))?),
        _ => Ok(()),
    }
}

/// Bytes of temporary memory: at the peak of the softmax three score matrices, a fourth with a mask, and the contiguous
/// copies of q, k and v. An estimate, which saturates.
pub(super) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let product = |sizes: &[usize]| sizes.iter().fold(1, |product: usize, size| product.saturating_mul(*size));
    let keys = s_kv.saturating_add(options.appended_keys);
    let matrices = if options.mask.is_full() && call.distance_embeddings == [0; 2] { 3 } else { 4 };
    let scores = product(&[b, h, s_q, keys]);
    let features = if options.additive.is_some() { ADDITIVE_CHUNK.min(product(&[scores, call.d])) * 2 } else { 0 };
    let elements = [
        product(&[scores, matrices]),
        product(&[b, s_q, h, call.d]),
        product(&[b, keys, call.h_kv, call.d.saturating_add(call.d_v)]),
        features,
    ];
    product(&[elements.into_iter().fold(0, usize::saturating_add), compute_dtype(call.dtype).size_in_bytes()])
}

/// Softmax over the last dimension, over the keys that `mask` keeps and the sinks `(1, h, 1, 1)`, which get no column.
/// A fully masked row is all zeros.
fn masked_softmax(scores: &Tensor, mask: &DenseMask, sinks: Option<&Tensor>) -> Result<Tensor> {
    let scores = match &mask.bias {
        Some(bias) => scores.broadcast_add(bias)?,
        None => scores.clone(),
    };
    let scores = match &mask.keep {
        Some(keep) => {
            let masked = Tensor::new(f32::NEG_INFINITY, scores.device())?.to_dtype(scores.dtype())?;
            keep.broadcast_as(scores.shape())?.where_cond(&scores, &masked.broadcast_as(scores.shape())?)?
        }
        None => scores,
    };
    let mut max = scores.detach().max_keepdim(D::Minus1)?;
    if let Some(sinks) = sinks {
        max = max.broadcast_maximum(&sinks.detach())?;
    }
    if mask.keep.is_none() && sinks.is_none() {
        let exp = scores.broadcast_sub(&max)?.exp()?;
        return Ok(exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)?);
    }
    // The maximum of a fully masked row is -inf. A finite value in its place makes the exponentials 0 instead of NaN,
    // and a divisor of 1 keeps them 0.
    let max = max.maximum(lowest_finite(scores.dtype()))?;
    let exp = scores.broadcast_sub(&max)?.exp()?;
    let mut sum = exp.sum_keepdim(D::Minus1)?;
    if let Some(sinks) = sinks {
        sum = (sum + sinks.broadcast_sub(&max)?.exp()?)?;
    }
    let empty = sum.detach().eq(0f64)?.to_dtype(sum.dtype())?;
    Ok(exp.broadcast_div(&(sum + empty)?)?)
}

/// `w · tanh(q + k)` per query and key: q `(b, h, s_q, d)`, k `(b, h, s_kv, d)`, w `(h, d)` → `(b, h, s_q, s_kv)`.
fn additive_scores(q: &Tensor, k: &Tensor, w: &Tensor) -> Result<Tensor> {
    let (b, h, s_q, d) = q.dims4()?;
    let s_kv = k.dim(2)?;
    let keys = k.unsqueeze(2)?; // (b, h, 1, s_kv, d)
    let w = w.reshape((1, h, d, 1))?.broadcast_as((b, h, d, 1))?.contiguous()?;
    let step = (ADDITIVE_CHUNK / (b * h * s_kv * d).max(1)).clamp(1, s_q);
    let mut chunks = Vec::with_capacity(s_q.div_ceil(step));
    for start in (0..s_q).step_by(step) {
        let rows = step.min(s_q - start);
        let queries = q.narrow(2, start, rows)?.unsqueeze(3)?; // (b, h, rows, 1, d)
        let features = queries.broadcast_add(&keys)?.tanh()?; // (b, h, rows, s_kv, d)
        let scores = features.reshape((b, h, rows * s_kv, d))?.matmul(&w)?;
        chunks.push(scores.reshape((b, h, rows, s_kv))?);
    }
    Ok(Tensor::cat(&chunks, 2)?)
}

/// `(b, h_kv, s, d)` → `(b, h_kv * group, s, d)`, each head `group` times.
fn repeat_heads(k: &Tensor, group: usize) -> Result<Tensor> {
    if group == 1 {
        return Ok(k.clone());
    }
    let (b, h_kv, s, d) = k.dims4()?;
    Ok(k.unsqueeze(2)?.broadcast_as((b, h_kv, group, s, d))?.reshape((b, h_kv * group, s, d))?)
}

/// `weights` with each element dropped with probability `p`, the others divided by `1 - p`
/// ([Srivastava 2014](https://jmlr.org/papers/v15/srivastava14a.html)).
///
/// Without a seed the generator of the device decides, which on the CPU cannot be seeded. With one, each element is
/// decided by a hash of the seed and its index ([`Dropout`]), on the CPU: the same on every device, with any number of
/// threads and in every version.
pub(super) fn dropout(weights: &Tensor, p: f64, seed: Option<u64>) -> Result<Tensor> {
    let Some(seed) = seed else { return Ok(candle_nn::ops::dropout(weights, p as f32)?) };
    let mut factors = vec![0.0; weights.elem_count()];
    Dropout::new(p, seed)?.factors(0, &mut factors);
    let factors = Tensor::from_vec(factors, weights.shape(), &Device::Cpu)?;
    Ok((weights * factors.to_dtype(weights.dtype())?.to_device(weights.device())?)?)
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::mask::AttentionMask;

    #[test]
    fn score_counts_beyond_32_bits_are_rejected_on_cuda() {
        let of = |device, b| {
            let shape = AttnShape { b, h: 16, s_q: 4096, s_kv: 4096 };
            let (d, dtype) = (64, DType::F32);
            let call =
                Call { shape, h_kv: 16, d, d_v: d, dtype, device, distance_embeddings: [0; 2], tracks_gradient: false };
            check_memory(&call, &SdpaOptions::new(AttentionMask::full()))
        };
        let cuda = DeviceKind::Cuda(crate::kernels::cuda::Gpu::default());
        assert!(of(cuda, 15).is_ok() && of(DeviceKind::Metal, 16).is_ok());
        assert!(of(cuda, 16).unwrap_err().to_string().contains("4294967296"));
    }
}

//! Attention by candle's own tensor operations. Only differentiable ones run here, whatever the inputs: a fused softmax
//! would cut the gradient without a word.

use candle_core::{D, Tensor};

use crate::error::{Error, Result};
use crate::mask::AttnShape;
use crate::mask::{DenseMask, lowest_finite};
use crate::sdpa::{AttentionOutput, Call, DeviceKind, SdpaOptions};
use crate::tensor::compute_dtype;

/// Elements of the `(b, h, queries, s_kv, d)` tensor that additive scoring makes at a time.
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
    within_a_launch(call, keys)?;
    let compute = compute_dtype(call.dtype);
    // Widening first costs memory but keeps the scores and the sum of the softmax out of the narrow dtype.
    let heads_first = |t: &Tensor| t.to_dtype(compute)?.transpose(1, 2)?.contiguous();
    let (q, k, v) = (heads_first(q)?, heads_first(k)?, heads_first(v)?); // (b, h|h_kv, s, d)

    let scores = match options.additive {
        None => {
            let scale = options.dot_product_scale(call.d);
            // The queries of a group share their key head: as more rows of one matrix, no key is repeated.
            let q = (q * scale)?.reshape((b, h_kv, group * s_q, call.d))?;
            q.matmul(&k.t()?)?.reshape((b, h, s_q, keys))?
        }
        Some(w) => {
            let scores = additive_scores(&q, &repeat_heads(&k, group)?, &w.to_dtype(compute)?)?;
            (scores * options.scale.unwrap_or(1.0))?
        }
    };
    let scores = match options.softcap {
        Some(cap) => ((scores / cap)?.tanh()? * cap)?,
        None => scores,
    };
    let sinks = options.sinks.map(|sinks| sinks.to_dtype(compute)?.reshape((1, h, 1, 1))).transpose()?;
    let mask = options.mask.dense(call.shape, options.appended_keys, compute, k.device())?;
    let weights = masked_softmax(&scores, &mask, sinks.as_ref())?; // (b, h, s_q, keys)

    let dropped = match options.dropout {
        p if p > 0.0 => candle_nn::ops::dropout(&weights, p as f32)?,
        _ => weights.clone(),
    };
    let output = dropped.reshape((b, h_kv, group * s_q, keys))?.matmul(&v)?; // (b, h_kv, group * s_q, d_v)
    let output = output.reshape((b, h, s_q, call.d_v))?.transpose(1, 2)?.contiguous()?.to_dtype(call.dtype)?;
    let attention_weights = options.return_attention_weights.then(|| weights.to_dtype(call.dtype)).transpose()?;
    Ok(AttentionOutput { output, attention_weights })
}

/// candle's kernels for NVIDIA GPUs count elements in 32 bits: past those they would never end.
fn within_a_launch(call: &Call, keys: usize) -> Result<()> {
    let AttnShape { b, h, s_q, .. } = call.shape;
    let scores = [b, h, s_q, keys].into_iter().fold(1usize, usize::saturating_mul);
    match call.device {
        DeviceKind::Cuda(_) if scores > u32::MAX as usize - 1024 => {
            Err(Error::value("the number of scores", scores, "less than 2^32 on an NVIDIA GPU: a smaller batch"))
        }
        _ => Ok(()),
    }
}

/// Three score matrices are alive at the peak of the softmax, a fourth with a mask; beside them lie the contiguous
/// copies of q, k and v.
pub(super) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let keys = s_kv + options.appended_keys;
    let matrices = if options.mask.is_full() { 3 } else { 4 };
    let scores = b * h * s_q * keys;
    let copies = b * s_q * h * call.d + b * keys * call.h_kv * (call.d + call.d_v);
    let features = if options.additive.is_some() { ADDITIVE_CHUNK.min(scores * call.d) * 2 } else { 0 };
    (scores * matrices + copies + features) * compute_dtype(call.dtype).size_in_bytes()
}

/// Softmax over the last dimension among the keys that `mask` keeps and a sink `(1, h, 1, 1)`, which gets no column; all
/// zeros where there is nothing.
fn masked_softmax(scores: &Tensor, mask: &DenseMask, sinks: Option<&Tensor>) -> Result<Tensor> {
    let scores = match &mask.bias {
        Some(bias) => scores.broadcast_add(bias)?,
        None => scores.clone(),
    };
    let scores = match &mask.keep {
        Some(keep) => {
            let hidden = Tensor::new(f32::NEG_INFINITY, scores.device())?.to_dtype(scores.dtype())?;
            keep.broadcast_as(scores.shape())?.where_cond(&scores, &hidden.broadcast_as(scores.shape())?)?
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
    // A row that sees nothing has the maximum -inf; a finite stand-in makes its exponentials 0 instead of NaN, and
    // a divisor of 1 keeps them so.
    let max = max.maximum(lowest_finite(scores.dtype()))?;
    let exp = scores.broadcast_sub(&max)?.exp()?;
    let mut sum = exp.sum_keepdim(D::Minus1)?;
    if let Some(sinks) = sinks {
        sum = (sum + sinks.broadcast_sub(&max)?.exp()?)?;
    }
    let empty = sum.detach().eq(0f64)?.to_dtype(sum.dtype())?;
    Ok(exp.broadcast_div(&(sum + empty)?)?)
}

/// `w · tanh(q + k)` for each pair: q `(b, h, s_q, d)`, k `(b, h, s_kv, d)`, w `(h, d)` → `(b, h, s_q, s_kv)`.
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

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn scores_that_a_launch_cannot_count_are_refused() {
        let of = |device, b| {
            let shape = AttnShape { b, h: 16, s_q: 4096, s_kv: 4096 };
            let (d, dtype) = (64, DType::F32);
            within_a_launch(&Call { shape, h_kv: 16, d, d_v: d, dtype, device, tracks_gradient: false }, 4096)
        };
        let cuda = DeviceKind::Cuda(crate::kernels::cuda::Gpu::default());
        assert!(of(cuda, 15).is_ok() && of(DeviceKind::Cpu, 16).is_ok());
        assert!(of(cuda, 16).unwrap_err().to_string().contains("4294967296"));
    }
}

//! Attention on an Apple GPU: candle's `sdpa`, kept to the calls for which its kernels are right.
//!
//! What is ruled out, and why, was read from the sources of candle 0.11.1: `sdpa` itself checks little of it. Everything
//! else takes the composite path.

use std::f64::consts::{LN_2, LOG2_E};

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::mask::DenseMask;
use crate::sdpa::unsupported::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions};

#[cfg(test)]
mod tests;

/// The head sizes that the kernel is compiled for.
const HEAD_SIZES: [usize; 8] = [32, 64, 72, 80, 96, 128, 256, 512];

/// What the threads of a group share on an Apple GPU, in bytes.
const THREADGROUP_MEMORY: usize = 32 << 10;

/// Why this backend cannot run a call, `None` if it can.
pub(crate) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let (s_q, keys) = (call.shape.s_q, keys(call, options));
    let (masked, grouped) = (!options.mask.is_full() && !masks_by_itself(call, options), call.shape.h != call.h_kv);
    let half = call.dtype != DType::F32;
    let needed = threadgroup_bytes(call.d, call.dtype);
    let elsewhere = [
        (call.device != DeviceKind::Metal, "the tensors are not on an Apple GPU"),
        (cfg!(not(any(test, feature = "metal"))), "the crate was built without its feature `metal`"),
    ];
    let own = [
        (options.softcap.is_some(), "it does not cap scores"),
        (options.sinks.is_some(), "it has no sinks"),
        (call.d_v != call.d, "keys and values differ in head size"),
        (!HEAD_SIZES.contains(&call.d), "it is not compiled for this head size"),
        (needed > THREADGROUP_MEMORY, "this head size needs more threadgroup memory in this dtype than there is"),
        (s_q == 1, "a single query takes another kernel, which ignores masks"),
        (masked && s_q > keys, "it takes no mask where queries outnumber keys"),
        // https://github.com/huggingface/candle/issues/3388
        (masked && grouped && s_q != keys, "under a mask that is not square, grouped heads give NaN"),
        (
            masked && half && options.mask.adds_to_scores(),
            "it would round what is added to the scores to the half type",
        ),
        (masked && s_q.saturating_mul(keys) > i32::MAX as usize, "it counts the places of a mask in 32 bits"),
    ];
    first_reason(elsewhere).or_else(|| no_fused_kernel(call, options)).or_else(|| first_reason(own))
}

/// Queries, keys and values with heads first, the output likewise, and the mask; beside queries of a half type lie the
/// same in f32 while they are scaled.
pub(crate) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let (queries, keys) =
        (call.shape.b * call.shape.s_q * call.shape.h, call.shape.b * keys(call, options) * call.h_kv);
    let size = call.dtype.size_in_bytes();
    let copies = (2 * queries * call.d + keys * (call.d + call.d_v)) * size;
    let scaled = if call.dtype == DType::F32 { 0 } else { queries * call.d * DType::F32.size_in_bytes() };
    let mask = match masks_by_itself(call, options) {
        true => 0,
        false => options.mask.dense_elements(call.shape, options.appended_keys) * (size + DType::U8.size_in_bytes()),
    };
    copies + scaled + mask
}

/// The attention of q `(b, s_q, h, d)`, k and v to `(b, s_q, h, d_v)`.
pub(crate) fn attend(qkv: [&Tensor; 3], call: &Call, options: &SdpaOptions) -> Result<Tensor> {
    attend_by(candle, qkv, call, options)
}

/// Arguments: q, k, v, mask, causal, scale.
type Kernel = fn(&Tensor, &Tensor, &Tensor, Option<&Tensor>, bool, f32) -> candle_core::Result<Tensor>;

fn candle(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f32,
) -> candle_core::Result<Tensor> {
    const NO_CAP: f32 = 1.0;
    candle_nn::ops::sdpa(q, k, v, mask, causal, scale, NO_CAP)
}

fn attend_by(kernel: Kernel, [q, k, v]: [&Tensor; 3], call: &Call, options: &SdpaOptions) -> Result<Tensor> {
    let heads_first = |t: &Tensor| t.transpose(1, 2)?.contiguous();
    let (q, scale) = scaled(q, options.dot_product_scale(call.d))?;
    let (q, k, v) = (heads_first(&q)?, heads_first(k)?, heads_first(v)?); // (b, h|h_kv, s, d)
    let causal = masks_by_itself(call, options);
    let (mut mask, mut seeing) = (None, None);
    if !causal {
        let shape = [call.shape.b, call.shape.h, call.shape.s_q, keys(call, options)];
        let dense = options.mask.dense(call.shape, options.appended_keys, DType::F32, q.device())?;
        mask = additive(&dense, shape, call.dtype)?;
        // An appended key is seen by all.
        seeing = dense.keep.filter(|_| options.appended_keys == 0).map(|keep| keep.max_keepdim(3)).transpose()?;
    }
    let output = kernel(&q, &k, &v, mask.as_ref(), causal, scale)?; // (b, h, s_q, d)
    let output = match seeing {
        // The kernel gives a query that sees nothing the mean of all values.
        Some(seeing) => {
            let zeros = Tensor::new(0f32, output.device())?.to_dtype(output.dtype())?.broadcast_as(output.shape())?;
            seeing.broadcast_as(output.shape())?.where_cond(&output, &zeros)?
        }
        None => output,
    };
    Ok(output.transpose(1, 2)?.contiguous()?)
}

fn keys(call: &Call, options: &SdpaOptions) -> usize {
    call.shape.s_kv + options.appended_keys
}

/// The queries and keys that a group of threads takes at a time, by head size.
fn tiles(d: usize) -> (usize, usize) {
    match d {
        512 => (8, 8),
        128.. => (32, 16),
        _ => (32, 32),
    }
}

/// What a group of threads shares: a tile of queries, and one of keys or of values, with 16 bytes after each row.
fn threadgroup_bytes(d: usize, dtype: DType) -> usize {
    let ((queries, keys), size) = (tiles(d), dtype.size_in_bytes());
    let gap = 16 / size;
    (queries * (d + gap) + ((keys + gap) * d).max(keys * (d + gap))) * size
}

/// Whether the mask is a causal one that the kernel applies without a tensor. It is aligned as ours, the last query at
/// the last key. But with another number of keys than queries it leaves keys of a query's first tile unmasked, and where
/// the tile of the last queries, filled up, reaches past the tiles of keys it reads memory after the last key.
fn masks_by_itself(call: &Call, options: &SdpaOptions) -> bool {
    let (s, (queries, keys)) = (call.shape.s_q, tiles(call.d));
    let inside = s.next_multiple_of(queries) <= s.next_multiple_of(keys);
    options.mask.is_causal() && options.appended_keys == 0 && s == call.shape.s_kv && inside
}

/// The kernel rounds `scale · log2 e` to the dtype of the tensors, in bf16 by up to 0.2 % of every score. So half types
/// are scaled in f32 here, and the kernel is given the scale that makes its own factor 1.
fn scaled(q: &Tensor, scale: f64) -> Result<(Tensor, f32)> {
    Ok(match q.dtype() {
        DType::F32 => (q.clone(), scale as f32),
        half => ((q.to_dtype(DType::F32)? * (scale * LOG2_E))?.to_dtype(half)?, LN_2 as f32),
    })
}

/// What is added to the score of a hidden key: low enough for a weight of 0 beside any that is seen, and finite, also
/// times `log2 e`: the kernel makes NaN of -inf.
fn hidden(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => half::f16::MIN.to_f32(),
        _ => -1e30,
    }
}

/// The mask as the kernel reads it, `(b, h, s_q, keys)` in `dtype`: it starts where its memory does and its last numbers
/// lie side by side; over rows, heads and queries that are alike it may be broadcast.
fn additive(mask: &DenseMask, shape: [usize; 4], dtype: DType) -> Result<Option<Tensor>> {
    let Some(like) = mask.keep.as_ref().or(mask.bias.as_ref()) else { return Ok(None) };
    let number = |x: f32| Tensor::new(x, like.device());
    let bias = match &mask.bias {
        Some(bias) => bias.clone(),
        None => number(0.0)?.reshape((1, 1, 1, 1))?,
    };
    let low = number(hidden(dtype))?;
    // Not `maximum`: a NaN is to be seen in the result.
    let bias = bias.lt(f64::from(hidden(dtype)))?.where_cond(&low.broadcast_as(bias.shape())?, &bias)?;
    let numbers = match &mask.keep {
        Some(keep) => {
            let both = keep.shape().broadcast_shape_binary_op(bias.shape(), "mask")?;
            keep.broadcast_as(&both)?.where_cond(&bias.broadcast_as(&both)?, &low.broadcast_as(&both)?)?
        }
        None => bias,
    };
    let (rows, heads, queries, _) = numbers.dims4()?;
    // Made by `where_cond`, the numbers start where their memory does.
    let numbers = numbers.to_dtype(dtype)?.broadcast_as((rows, heads, queries, shape[3]))?.contiguous()?;
    Ok(Some(numbers.broadcast_as(&shape)?))
}

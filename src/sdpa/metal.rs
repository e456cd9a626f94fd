//! Attention on Apple GPUs by candle's `sdpa`, limited to the calls for which its kernels are correct.
//!
//! The limits and their reasons come from the sources of candle 0.11.1 and from its kernels on an emulated Apple GPU
//! (`docs/candle-metal.md`); `sdpa` itself checks few of them. All other calls run on the eager backend.

use std::f64::consts::{LN_2, LOG2_E};
use std::ops::Range;

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::mask::{AttnShape, DenseMask};
use crate::sdpa::hidden_values::{finite_parts, marked_in_ranges, marked_under, with_nan};
use crate::sdpa::reasons::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions, heads_first};

#[cfg(test)]
#[path = "../../tests/unit/metal/mod.rs"]
mod tests;

/// The head dimensions that the kernel is compiled for.
const HEAD_DIMS: [usize; 8] = [32, 64, 72, 80, 96, 128, 256, 512];

/// The most launches of the kernel for one query in a call. The eager backend has some twenty, and moves three times as
/// many bytes of keys and values.
const MAX_LAUNCHES: usize = 64;

/// The most sequences of a call with one query each, whose ranges of keys are a list: views have any number of them.
const MAX_SEQUENCES: usize = 1 << 20;

/// Whether grouped heads run under a mask that is not square. A Mac gave NaN for some
/// (<https://github.com/huggingface/candle/issues/3388>); the kernel got guards since then, and emulated it is right.
const MASKS_GROUPED_HEADS: bool = true;

/// Memory of a threadgroup on an Apple GPU, in bytes.
const THREADGROUP_MEMORY: usize = 32 << 10;

/// Why this backend cannot run a call; `None` if it can.
pub(crate) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let elsewhere = [
        (call.device != DeviceKind::Metal, "the tensors are not on an Apple GPU"),
        (cfg!(not(any(test, feature = "metal"))), "the crate was built without its feature `metal`"),
    ];
    let own = [
        (options.sinks.is_some(), "it does not support sinks"),
        (call.d_v != call.d, "keys and values differ in head dimension"),
        (!HEAD_DIMS.contains(&call.d), "it is not compiled for this head dimension"),
    ];
    let limits = if call.shape.s_q == 1 { limits_of_one_query } else { limits };
    let reason = first_reason(elsewhere).or_else(|| no_fused_kernel(call, options)).or_else(|| first_reason(own));
    reason.or_else(|| limits(call, options))
}

/// Why the kernel for several queries cannot run a call.
fn limits(call: &Call, options: &SdpaOptions) -> Option<String> {
    let (s_q, keys) = (call.shape.s_q, keys(call, options));
    let products = call.distance_embeddings != [0; 2];
    let masked = products || !options.mask.is_full() && !uses_causal_flag(call, options);
    let grouped = call.shape.h != call.h_kv;
    let dtype = kernel_dtype(call);
    let half = dtype != DType::F32;
    let needed = threadgroup_bytes(call.d, dtype);
    first_reason([
        (options.softcap.is_some(), "it does not support softcap for several queries"),
        (needed > THREADGROUP_MEMORY, "this head dimension and dtype need more threadgroup memory than there is"),
        (masked && s_q > keys, "it supports no mask where queries outnumber keys"),
        (
            masked && grouped && s_q != keys && !MASKS_GROUPED_HEADS,
            "with a mask that is not square, grouped heads give NaN",
        ),
        (
            masked && half && (products || options.mask.adds_to_scores()),
            "it would round the bias of the scores to the half type",
        ),
        (masked && s_q.saturating_mul(keys) > i32::MAX as usize, "it counts the elements of a mask in 32 bits"),
    ])
}

/// Why the kernel for one query, which has no mask, cannot run a call.
fn limits_of_one_query(call: &Call, options: &SdpaOptions) -> Option<String> {
    const NO_RANGE: &str = "for a single query it ignores masks, and this one does not leave each sequence one range \
                            of keys, at most 64 different ones";
    let reason = first_reason([
        (!call.d.is_multiple_of(32), "for a single query it has no kernel for this head dimension"),
        (options.softcap.map(|cap| cap as f32) == Some(NO_CAP), "a softcap of 1 means none to it"),
        (call.shape.b > MAX_SEQUENCES, "for a single query it takes at most 2^20 sequences"),
    ]);
    reason.or_else(|| first_reason([(visible_ranges(call, options).is_none(), NO_RANGE)]))
}

/// The keys that the one query of each sequence sees, if the mask does no more than to leave it a range of them.
fn visible_ranges(call: &Call, options: &SdpaOptions) -> Option<Vec<Range<usize>>> {
    let AttnShape { b, s_kv, .. } = call.shape;
    if options.mask.is_full() && call.distance_embeddings == [0; 2] {
        return Some(vec![0..keys(call, options); b]);
    }
    // Appended keys are visible whatever the mask, and no range reaches over hidden ones.
    let structure = options.mask.structure().filter(|mask| mask.distances.is_empty() && options.appended_keys == 0)?;
    let ranges: Vec<_> = (0..b).map(|b| structure.range(b, 0, 1, s_kv)).collect();
    (ranges.chunk_by(|a, b| a == b).count() <= MAX_LAUNCHES).then_some(ranges)
}

/// Bytes of temporary memory: q, k, v and the output with heads first, the same in the type of the kernel if they have
/// another, and scaled queries in f32. Under a mask for several queries, the finite keys and values and the mask.
pub(crate) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let product = |numbers: [usize; 4]| numbers.into_iter().fold(1, usize::saturating_mul);
    let queries = product([call.shape.b, call.shape.s_q, call.shape.h, call.d]);
    let keys = product([call.shape.b, keys(call, options), call.h_kv, call.d.saturating_add(call.d_v)]);
    let copies = queries.saturating_mul(2).saturating_add(keys);
    let bytes = |elements: usize, dtype: DType| elements.saturating_mul(dtype.size_in_bytes());
    if call.shape.s_q == 1 {
        return bytes(copies, call.dtype);
    }
    let dtype = kernel_dtype(call);
    let finite = if options.mask.is_full() { 0 } else { keys };
    let masked = !uses_causal_flag(call, options);
    let mask = if masked { options.mask.dense_elements(call.shape, options.appended_keys) } else { 0 };
    [
        bytes(copies.saturating_add(finite).saturating_add(mask), dtype),
        if dtype == call.dtype { 0 } else { bytes(copies, dtype) },
        if dtype == DType::F32 { 0 } else { bytes(queries, DType::F32) },
        mask,
    ]
    .into_iter()
    .fold(0, usize::saturating_add)
}

/// Runs a call: q `(b, s_q, h, d)`, k and v to `(b, s_q, h, d_v)`.
pub(crate) fn attend([q, k, v]: [&Tensor; 3], call: &Call, options: &SdpaOptions) -> Result<Tensor> {
    if call.shape.s_q == 1 {
        return attend_one_query([q, k, v], call, options);
    }
    let dtype = kernel_dtype(call);
    if dtype != call.dtype {
        let [q, k, v] = [q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?];
        return Ok(attend([&q, &k, &v], &Call { dtype, ..*call }, options)?.to_dtype(call.dtype)?);
    }
    let causal = uses_causal_flag(call, options);
    let shape = [call.shape.b, call.shape.h, call.shape.s_q, keys(call, options)];
    let dense = if causal {
        DenseMask::default()
    } else {
        options.mask.dense(call.shape, options.appended_keys, DType::F32, q.device())?
    };
    // The kernel adds the mask to the scores, so that keys have to be finite, too.
    let (mut k, mut v, mut spoiled) = (k.clone(), v.clone(), None);
    if causal || dense.keep.is_some() {
        let ([keys, key_marks], [values, value_marks]) = (finite_parts(&k)?, finite_parts(&v)?);
        let marked = (key_marks + value_marks)?;
        spoiled = Some(match &dense.keep {
            Some(keep) => marked_under(&marked, keep)?,
            None => marked_in_ranges(&marked, &(0..call.shape.s_q).map(|i| 0..i + 1).collect::<Vec<_>>())?,
        });
        (k, v) = (keys, values);
    }
    let (q, scale) = scaled(q, options.dot_product_scale(call.d))?;
    let (q, k, v) = (heads_first(&q)?, heads_first(&k)?, heads_first(&v)?); // (b, h|h_kv, s, d)
    let (mut mask, mut sees_a_key) = (None, None);
    if !causal {
        mask = additive(&dense, shape, call.dtype)?;
        // With appended keys, every query sees a key.
        sees_a_key = dense.keep.filter(|_| options.appended_keys == 0).map(|keep| keep.max_keepdim(3)).transpose()?;
    }
    let output = candle_nn::ops::sdpa(&q, &k, &v, mask.as_ref(), causal, scale, NO_CAP)?; // (b, h, s_q, d)
    let output = match sees_a_key {
        // For a fully masked row the kernel returns the mean of all values.
        Some(sees_a_key) => {
            let zeros = Tensor::new(0f32, output.device())?.to_dtype(output.dtype())?.broadcast_as(output.shape())?;
            sees_a_key.broadcast_as(output.shape())?.where_cond(&output, &zeros)?
        }
        None => output,
    };
    let output = output.transpose(1, 2)?.contiguous()?;
    spoiled.map_or(Ok(output.clone()), |spoiled| with_nan(&output, &spoiled))
}

/// The softcap that means none to candle.
const NO_CAP: f32 = 1.0;

/// [`attend`] for one query of each sequence, whose mask leaves it one range of keys. The kernel gets no other keys, so
/// that what they hold has no influence; it is launched once for consecutive sequences with the same range.
fn attend_one_query([q, k, v]: [&Tensor; 3], call: &Call, options: &SdpaOptions) -> Result<Tensor> {
    let ranges = visible_ranges(call, options).unwrap_or_default(); // never none in a call that the plan allows
    let (scale, cap) = (options.dot_product_scale(call.d) as f32, options.softcap.map_or(NO_CAP, |cap| cap as f32));
    let q = heads_first(q)?; // (b, h, 1, d)
    let mut first = 0;
    let outputs = ranges.chunk_by(|a, b| a == b).map(|same| {
        let (from, count, range) = (first, same.len(), same[0].clone());
        first += count;
        let q = q.narrow(0, from, count)?;
        let visible = |t: &Tensor| heads_first(&t.narrow(0, from, count)?.narrow(1, range.start, range.len())?);
        if range.is_empty() {
            return q.zeros_like();
        }
        candle_nn::ops::sdpa(&q, &visible(k)?, &visible(v)?, None, false, scale, cap)
    });
    let outputs = outputs.collect::<candle_core::Result<Vec<_>>>()?;
    Ok(Tensor::cat(&outputs, 0)?.transpose(1, 2)?.contiguous()?)
}

/// The type in which the kernel for several queries computes. It rounds the scaled queries to the type of the tensors,
/// which in bf16 changes a score by up to 0.4 %: where f32 fits, bf16 runs in f32.
fn kernel_dtype(call: &Call) -> DType {
    let fits = threadgroup_bytes(call.d, DType::F32) <= THREADGROUP_MEMORY;
    if call.dtype == DType::BF16 && fits { DType::F32 } else { call.dtype }
}

fn keys(call: &Call, options: &SdpaOptions) -> usize {
    call.shape.s_kv.saturating_add(options.appended_keys)
}

/// Queries and keys per tile for a head dimension.
fn tile_sizes(d: usize) -> (usize, usize) {
    match d {
        512 => (8, 8),
        128.. => (32, 16),
        _ => (32, 32),
    }
}

/// Bytes of threadgroup memory: a tile of queries, and one of keys or of values, with 16 bytes of padding per row. The
/// sum saturates.
fn threadgroup_bytes(d: usize, dtype: DType) -> usize {
    let ((queries, keys), size) = (tile_sizes(d), dtype.size_in_bytes());
    let gap = 16 / size;
    let row_elements = |rows: usize| d.saturating_add(gap).saturating_mul(rows);
    let key_elements = (keys + gap).saturating_mul(d).max(row_elements(keys));
    row_elements(queries).saturating_add(key_elements).saturating_mul(size)
}

/// Whether the mask is causal and the kernel's causal flag applies it correctly, without a mask tensor. The flag aligns
/// the last query with the last key, as we do. But if the numbers of queries and keys differ, it leaves keys of a
/// query's first tile unmasked, and if the padded tile of the last queries reaches past the key tiles, it reads memory
/// after the last key.
fn uses_causal_flag(call: &Call, options: &SdpaOptions) -> bool {
    let (s, (queries, keys)) = (call.shape.s_q, tile_sizes(call.d));
    // `None` if a multiple wraps around, which is outside.
    let ends = (s.checked_next_multiple_of(queries), s.checked_next_multiple_of(keys));
    let inside = matches!(ends, (Some(queries), Some(keys)) if queries <= keys);
    options.mask.is_causal() && options.appended_keys == 0 && s == call.shape.s_kv && inside
}

/// Scaled queries, and the scale to pass to the kernel, which rounds `scale · log2 e` to the type of the tensors. Half
/// types are therefore scaled here in f32, and the kernel gets the scale that makes its own factor 1.
fn scaled(q: &Tensor, scale: f64) -> Result<(Tensor, f32)> {
    Ok(match q.dtype() {
        DType::F32 => (q.clone(), scale as f32),
        half => ((q.to_dtype(DType::F32)? * (scale * LOG2_E))?.to_dtype(half)?, LN_2 as f32),
    })
}

/// The value added to the score of a masked key: low enough for an attention weight of 0 beside any visible key, and
/// finite, also after multiplication by `log2 e`, because -inf becomes NaN in the kernel.
fn masked_score(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => half::f16::MIN.to_f32(),
        _ => -1e30,
    }
}

/// The mask as the kernel reads it, `(b, h, s_q, keys)` in `dtype`: it starts at the start of its memory and is
/// contiguous in its last dimension; the other dimensions may be broadcast.
fn additive(mask: &DenseMask, shape: [usize; 4], dtype: DType) -> Result<Option<Tensor>> {
    let Some(like) = mask.keep.as_ref().or(mask.bias.as_ref()) else { return Ok(None) };
    let scalar = |x: f32| Tensor::new(x, like.device());
    let bias = match &mask.bias {
        Some(bias) => bias.clone(),
        None => scalar(0.0)?.reshape((1, 1, 1, 1))?,
    };
    let low = scalar(masked_score(dtype))?;
    // Not `maximum`, so that a NaN in the bias reaches the output.
    let bias = bias.lt(f64::from(masked_score(dtype)))?.where_cond(&low.broadcast_as(bias.shape())?, &bias)?;
    let mask = match &mask.keep {
        Some(keep) => {
            let both = keep.shape().broadcast_shape_binary_op(bias.shape(), "mask")?;
            keep.broadcast_as(&both)?.where_cond(&bias.broadcast_as(&both)?, &low.broadcast_as(&both)?)?
        }
        None => bias,
    };
    let (batch, heads, queries, _) = mask.dims4()?;
    // `where_cond` allocated the mask, so it starts at the start of its memory.
    let mask = mask.to_dtype(dtype)?.broadcast_as((batch, heads, queries, shape[3]))?.contiguous()?;
    Ok(Some(mask.broadcast_as(&shape)?))
}

//! Attention by the names, arguments and shapes of candle's functions, for models that have layers of their own.

use candle_core::{DType, Device, Tensor};

use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape, check_integers};
use crate::sdpa::{Call, SdpaOptions, attend_bshd, attend_call, ragged_backend};
use crate::tensor::{check_allocation, element_count};

/// The mask of [`sdpa`]: candle's, an optional tensor that broadcasts to `(b, h, s_q, s_kv)`, or an [`AttentionMask`].
/// A tensor of a floating dtype is added to the scores, one of integers is nonzero for keys that are seen.
pub trait SdpaMask {
    /// The mask as one of this crate.
    ///
    /// # Errors
    /// The tensor does not have four dimensions.
    fn into_mask(self) -> Result<AttentionMask>;
}

impl SdpaMask for Option<&Tensor> {
    fn into_mask(self) -> Result<AttentionMask> {
        match self {
            None => Ok(AttentionMask::full()),
            Some(mask) if mask.dtype().is_float() => AttentionMask::additive(mask),
            Some(mask) => AttentionMask::keep(mask),
        }
    }
}

impl SdpaMask for AttentionMask {
    fn into_mask(self) -> Result<AttentionMask> {
        Ok(self)
    }
}

impl SdpaMask for &AttentionMask {
    fn into_mask(self) -> Result<AttentionMask> {
        Ok(self.clone())
    }
}

/// `candle_nn::ops::sdpa`, on the CPU and NVIDIA GPUs, too, with gradients and any mask: [`attend_bshd`] with heads
/// before tokens. Queries `(b, h, s_q, d)`, keys `(b, h_kv, s_kv, d)`, values `(b, h_kv, s_kv, d_v)` →
/// `(b, h, s_q, d_v)`, which is a view of `(b, s_q, h, d_v)`.
///
/// With `do_causal` the last query stands at the last key. A `softcapping` of 1 is none, as in candle.
///
/// ```
/// use candle_attention::AttentionMask;
/// use candle_attention::sdpa::sdpa;
/// # use candle_core::{Device, Tensor};
/// # let random = |dims: [usize; 4]| Tensor::randn(0f32, 1., &dims, &Device::Cpu);
/// let (q, k, v) = (random([2, 4, 5, 8])?, random([2, 2, 5, 8])?, random([2, 2, 5, 8])?);
/// assert_eq!(sdpa(&q, &k, &v, None, true, 0.354, 1.0)?.dims(), [2, 4, 5, 8]);
/// let padding = AttentionMask::lengths(&[5, 3]);
/// assert_eq!(sdpa(&q, &k, &v, padding, true, 0.354, 1.0)?.dims(), [2, 4, 5, 8]);
/// # Ok::<(), candle_attention::Error>(())
/// ```
///
/// # Errors
/// The errors of [`attend_bshd`], whose shapes have tokens before heads.
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: impl SdpaMask,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    let mask = mask.into_mask()?;
    let mask = if do_causal { mask.and(AttentionMask::causal()) } else { mask };
    let softcap = (softcapping != 1.0).then_some(f64::from(softcapping));
    let options = SdpaOptions::new(mask).with_scale(f64::from(scale)).with_softcap(softcap);
    let tokens_first = |name: &str, t: &Tensor| {
        ensure!(t.rank() == 4, Error::shape(name, t.dims(), "(b, heads, s, d)"));
        Ok(t.transpose(1, 2)?)
    };
    let [q, k, v] = [tokens_first("q", q)?, tokens_first("k", k)?, tokens_first("v", v)?];
    Ok(attend_bshd(&q, &k, &v, &options)?.output.transpose(1, 2)?)
}

/// `candle_flash_attn::flash_attn` on any device and in any dtype: [`attend_bshd`] with a factor on the scores.
/// Queries `(b, s_q, h, d)`, keys and values `(b, s_kv, h_kv, d)` → `(b, s_q, h, d)`.
///
/// # Errors
/// The errors of [`attend_bshd`].
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    flash_attn_windowed(q, k, v, softmax_scale, None, causal.then_some(0))
}

/// [`flash_attn`] where a query sees `window_size_left` keys before its own place and `window_size_right` after it, as
/// under [`AttentionMask::window`]; `None` is no limit.
///
/// # Errors
/// The errors of [`attend_bshd`].
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    Ok(attend_bshd(q, k, v, &windowed(softmax_scale, window_size_left, window_size_right))?.output)
}

/// [`flash_attn`] for sequences one after another: queries `(tokens, h, d)`, keys and values `(tokens, h_kv, d)` →
/// `(tokens, h, d)`. `seqlens_q` and `seqlens_k` `(b + 1)` hold the index at which each sequence starts and the end of
/// the last one, in any integer dtype. The longest lengths are read from them; `max_seqlen_q` and `max_seqlen_k` are
/// there to keep candle's signature, and not used.
///
/// # Errors
/// The errors of [`attend_bshd`]; the indices do not rise from 0 to the number of tokens.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let (right, longest) = (causal.then_some(0), [max_seqlen_q, max_seqlen_k]);
    flash_attn_varlen_windowed(q, k, v, seqlens_q, seqlens_k, longest[0], longest[1], softmax_scale, None, right)
}

/// [`flash_attn_varlen`] with the windows of [`flash_attn_windowed`].
///
/// # Errors
/// The errors of [`flash_attn_varlen`].
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    _max_seqlen_q: usize,
    _max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let options = windowed(softmax_scale, window_size_left, window_size_right);
    let batch = |name: &str, t: &Tensor| {
        ensure!(t.rank() == 3, Error::shape(name, t.dims(), "(tokens, heads, d)"));
        Ok(t.unsqueeze(0)?)
    };
    let qkv = [batch("q", q)?, batch("k", k)?, batch("v", v)?];
    let queries = starts("seqlens_q", seqlens_q, q.dim(0)?)?;
    let keys = starts("seqlens_k", seqlens_k, k.dim(0)?)?;
    if queries.len() != keys.len() {
        let expected = format!("{}, as of seqlens_q", queries.len());
        return Err(Error::value("the number of elements of seqlens_k", keys.len(), expected));
    }
    let [q, k, v] = qkv.each_ref();
    let call = Call::new(q, k, v, &options)?;
    if queries == keys {
        let longest = queries.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
        let shape = AttnShape { b: queries.len() - 1, h: call.shape.h, s_q: longest, s_kv: longest };
        let call = Call { shape, ..call };
        if let Some(backend) = ragged_backend(&call, &options)? {
            return Ok(attend_call(backend, [q, k, v], Some(&queries), &call, &options)?.output.squeeze(0)?);
        }
    }
    // A kernel for sequences that all have as many keys as queries, or none: one sequence after another.
    let sequences = queries.windows(2).zip(keys.windows(2)).map(|(queries, keys)| {
        let [k, v] = [k, v].map(|t| t.narrow(1, keys[0], keys[1] - keys[0]));
        let q = q.narrow(1, queries[0], queries[1] - queries[0])?;
        Ok(attend_bshd(&q, &k?, &v?, &options)?.output)
    });
    let outputs = sequences.collect::<Result<Vec<_>>>()?;
    if outputs.is_empty() {
        return Ok(attend_bshd(q, k, v, &options)?.output.squeeze(0)?);
    }
    Ok(Tensor::cat(&outputs, 1)?.squeeze(0)?)
}

fn windowed(softmax_scale: f32, left: Option<usize>, right: Option<usize>) -> SdpaOptions<'static> {
    SdpaOptions::new(AttentionMask::window(left, right)).with_scale(f64::from(softmax_scale))
}

/// Where sequences of `tokens` tokens in all start, and the last one ends.
fn starts(name: &str, seqlens: &Tensor, tokens: usize) -> Result<Vec<usize>> {
    check_integers(name, seqlens)?;
    check_allocation::<i64>(name, element_count(name, seqlens.dims())?)?;
    let indices = seqlens.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
    let ends = [indices.first().copied(), indices.last().copied()];
    if seqlens.rank() != 1 || ends != [Some(0), Some(tokens as i64)] || !indices.is_sorted() {
        let expected = format!("(b + 1) indices that rise from 0 to {tokens}, the number of tokens");
        return Err(Error::value(name, format!("{ends:?} at its ends, of shape {:?}", seqlens.dims()), expected));
    }
    Ok(indices.into_iter().map(|index| index as usize).collect())
}

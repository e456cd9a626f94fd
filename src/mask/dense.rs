//! Masks as tensors that broadcast to the scores.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::tensor::{element_count, try_reserve};

/// A mask as tensors that broadcast to `(b, h, s_q, s_kv)`, both 4-D. An absent tensor hides nothing or adds nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct DenseMask {
    /// u8, 1 = visible.
    pub keep: Option<Tensor>,
    /// Finite values to be added to the scores, in their dtype.
    pub bias: Option<Tensor>,
}

impl DenseMask {
    /// A mask that only hides keys.
    pub(crate) fn keep(keep: Tensor) -> Self {
        Self { keep: Some(keep), bias: None }
    }

    /// A mask under which query `i` of sequence `b` sees the keys `range(b, i)`. `sequences` or `queries` of 1 stand
    /// for all of them.
    pub(crate) fn ranges(
        [sequences, queries, s_kv]: [usize; 3],
        device: &Device,
        range: impl Fn(usize, usize) -> Range<usize>,
    ) -> Result<Self> {
        let size = element_count("a mask", &[sequences, queries, s_kv])?;
        let mut keep = Vec::new();
        try_reserve("a mask", &mut keep, size)?;
        keep.resize(size, 0u8);
        let each = (0..sequences).flat_map(|b| (0..queries).map(move |i| (b, i)));
        for ((b, i), row) in each.zip(keep.chunks_mut(s_kv.max(1))) {
            let Range { start, end } = range(b, i);
            if start < end {
                row[start..end].fill(1);
            }
        }
        Ok(Self::keep(Tensor::from_vec(keep, (sequences, 1, queries, s_kv), device)?))
    }

    /// The mask that both masks make together: a key is visible if both keep it, and biases add up.
    pub(crate) fn and(self, other: Self) -> Result<Self> {
        let keep = match (self.keep, other.keep) {
            // Both are 0 or 1.
            (Some(a), Some(b)) => Some(a.broadcast_mul(&b)?),
            (a, b) => a.or(b),
        };
        let bias = match (self.bias, other.bias) {
            (Some(a), Some(b)) => Some(a.broadcast_add(&b)?),
            (a, b) => a.or(b),
        };
        Ok(Self { keep, bias })
    }

    /// The mask with `appended` more keys after the `s_kv` ones, visible to every query.
    pub(crate) fn append_visible(self, s_kv: usize, appended: usize) -> Result<Self> {
        if appended == 0 {
            return Ok(self);
        }
        Ok(Self {
            keep: self.keep.map(|keep| append(&keep, 1.0, s_kv, appended)).transpose()?,
            bias: self.bias.map(|bias| append(&bias, 0.0, s_kv, appended)).transpose()?,
        })
    }
}

/// `(b|1, h|1, s_q|1, s_kv|1)` → `(b|1, h|1, s_q|1, s_kv + appended)`, the appended elements being `value`.
fn append(mask: &Tensor, value: f32, s_kv: usize, appended: usize) -> Result<Tensor> {
    let mut dims = mask.dims().to_vec();
    dims[3] = s_kv;
    let mask = mask.broadcast_as(&dims[..])?.contiguous()?;
    dims[3] = appended;
    let more = Tensor::full(value, dims, mask.device())?.to_dtype(mask.dtype())?;
    Ok(Tensor::cat(&[mask, more], 3)?)
}

/// The lowest finite value of a floating dtype, which Hugging Face writes into masks to hide a key.
pub(crate) fn lowest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        // Written exactly: f32's would round to -inf in bf16.
        DType::BF16 => -3.389_531_389_251_535_5e38,
        DType::F64 => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}

//! The new tokens of a call, and sizes of what a cache holds of them.

use candle_attention_kernels::SCALE_BYTES;
use candle_core::{DType, Device, Tensor};

use super::layer_id::LayerId;
use crate::error::Result;
use crate::position::ExplicitPositions;
use crate::tensor::{check_tensor_memory, is_int8};

/// The new tokens of a call with a cache.
#[derive(Debug, Clone)]
pub(in crate::attention) struct NewTokens {
    /// The layer that makes the keys; `None` for keys and values of one's own.
    pub layer: Option<LayerId>,
    /// Tokens of each sequence that are not padding.
    pub counts: Vec<usize>,
    /// The key at which the new tokens start, and the number of keys that they attend to, per sequence; `None` if they
    /// end at the last key in every sequence.
    pub unequal: Option<[Vec<usize>; 2]>,
    /// The position of the first new token of each sequence.
    pub starts: Vec<usize>,
    /// The length of each sequence with its new tokens, for which the new keys are rotated.
    pub rotated_for: Vec<usize>,
    /// The positions that the call gives.
    pub explicit: Option<ExplicitPositions>,
}

/// The sizes and the dtype of a layer's cached tensors, without the number of tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::attention) struct TokenShape {
    pub b: usize,
    pub h_kv: usize,
    pub d: usize,
    /// 0 for latents, of which keys and values are made.
    pub d_v: usize,
    pub dtype: DType,
}

impl TokenShape {
    /// The sizes of keys and values, or of latents alone.
    pub(super) fn from_tokens(tokens: &[Tensor]) -> Result<Self> {
        let (b, _, h_kv, d) = tokens[0].dims4()?;
        let d_v = tokens.get(1).map(|values| values.dim(3)).transpose()?;
        let scale = if is_int8(&tokens[0]) { SCALE_BYTES } else { 0 };
        Ok(Self { b, h_kv, d: d - scale, d_v: d_v.map_or(0, |d_v| d_v - scale), dtype: tokens[0].dtype() })
    }

    pub(super) fn describe(&self) -> String {
        let Self { b, h_kv, d, d_v, dtype } = self;
        let dtype = if *dtype == DType::U8 { "int8" } else { dtype.as_str() };
        if *d_v == 0 {
            return format!("a batch of {b} with latents of {d} elements, in {dtype}");
        }
        format!("a batch of {b} with {h_kv} key-value heads, keys of {d} and values of {d_v} elements, in {dtype}")
    }
}

/// Most tokens per sequence of a fixed cache: as many keys as the kernels count. It refuses a capacity that was read
/// from a damaged configuration before memory is requested for it. The longest published contexts have 10 million
/// tokens.
pub(super) const MAX_CAPACITY: usize = 1 << 30;

/// Checks that there is memory for `columns` tokens.
pub(super) fn check_memory(shape: &TokenShape, columns: usize, device: &Device) -> Result<()> {
    let what = format!("the capacity of a cache for {}", shape.describe());
    let scales = if shape.dtype == DType::U8 { 2 * SCALE_BYTES } else { 0 };
    let head_size = shape.d.saturating_add(shape.d_v).saturating_add(scales);
    check_tensor_memory(&what, columns, &[shape.b, shape.h_kv, head_size, columns], shape.dtype, device)
}

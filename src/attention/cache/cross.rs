//! Cross-attention to a memory whose keys and values are projected once.

use std::borrow::Cow;

use candle_core::{Tensor, TensorId};

use super::edit::check_rows;
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::sdpa;
use crate::sdpa::AttentionOutput;
use crate::tensor::select;

/// Keys and values of one memory, projected by one layer: cross-attention in decoding, where only the queries are new.
///
/// [`MultiHeadAttention::cross_cache`] makes it and
/// [`attend_cross_cached`](MultiHeadAttention::attend_cross_cached) uses it. The memory cannot be exchanged: another one
/// is another cache. A clone shares the tensors.
///
/// ```
/// use candle_attention::{AttentionConfig, AttentionMask, AttentionOptions, MultiHeadAttention};
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
/// let memory = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?;
/// let cache = layer.cross_cache(&memory)?;
/// let mask = AttentionMask::lengths(&[5, 3]);
/// for _ in 0..4 {
///     let query = Tensor::randn(0f32, 1., (2, 1, 8), &Device::Cpu)?;
///     let attended = layer.attend_cross_cached(&query, &mask, &cache, &AttentionOptions::default())?;
///     assert_eq!(attended.output.dims(), [2, 1, 8]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CrossCache {
    /// `(b, s_kv, h_kv, d)`, with the learned and zero keys of the layer at the end.
    pub(super) keys: Tensor,
    pub(super) values: Tensor,
    /// Tokens of the memory.
    len: usize,
    /// The id of the projections that made the keys.
    layer: TensorId,
}

impl CrossCache {
    /// Tokens of the memory, which are the columns of a mask.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sequences of the memory.
    pub fn batch_size(&self) -> usize {
        self.keys.dims()[0]
    }

    /// The cache of the sequences `rows`, in this order. A sequence may be repeated: `&[0, 0, 0]` gives three beams the
    /// same memory.
    ///
    /// # Errors
    /// No sequence at all, or one that is not in the cache.
    pub fn select_rows(&self, rows: &[usize]) -> Result<Self> {
        check_rows(rows, self.batch_size())?;
        Ok(Self { keys: select(&self.keys, rows, 0)?, values: select(&self.values, rows, 0)?, ..*self })
    }
}

impl MultiHeadAttention {
    /// Projects the keys and values of `memory` `(b, s_kv, key_size)` for cross-attention.
    ///
    /// # Errors
    /// Those of [`cross_cache_with`](Self::cross_cache_with).
    pub fn cross_cache(&self, memory: &Tensor) -> Result<CrossCache> {
        self.cross_cache_with(memory, memory)
    }

    /// [`cross_cache`](Self::cross_cache) with different inputs: `keys` `(b, s_kv, key_size)` and `values`
    /// `(b, s_kv, value_size)`. Differentiable.
    ///
    /// # Errors
    /// A tensor has the wrong shape, dtype or device, or the layer has positions: those of the queries relative to
    /// another sequence follow only from all of them.
    pub fn cross_cache_with(&self, keys: &Tensor, values: &Tensor) -> Result<CrossCache> {
        if !self.config.position.is_none() {
            return Err(Error::config("position", &self.config.position, "none with a cache for cross-attention"));
        }
        self.check_memory(keys, values)?;
        let [k, v] = self.project_memory(keys, values, self.dtype())?;
        let layer = self.qkv.id();
        Ok(CrossCache { keys: k.contiguous()?, values: v.contiguous()?, len: keys.dim(1)?, layer })
    }

    /// Attention of `queries` `(b, s_q, query_size)` to the memory of `cache` under `mask`, which has one column per token
    /// of the memory → `(b, s_q, output_size)`. It is [`attend_with`](Self::attend_with) for this memory; for half types
    /// as described at [`KvCache`](crate::KvCache).
    ///
    /// # Errors
    /// Those of [`attend_with`](Self::attend_with), a cache of another layer, or one of another batch.
    pub fn attend_cross_cached<'a>(
        &self,
        queries: &'a Tensor,
        mask: impl Into<Cow<'a, AttentionMask>>,
        cache: &CrossCache,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        self.check_cross(queries, cache, options)?;
        if self.config.num_attention_heads == 0 {
            return self.without_heads(queries);
        }
        let mask = mask.into();
        let mask = self.with_own_mask(&mask);
        let inputs = AttentionInputs::self_attention(queries, &*mask);
        let q = self.project_queries(queries, self.dtype())?;
        let attended = sdpa::attend_bshd(&q, &cache.keys, &cache.values, &self.sdpa_options(&inputs, options))?;
        self.finish(attended, &inputs, options)
    }

    /// Checks queries and options against the layer and the cache.
    pub(super) fn check_cross(&self, queries: &Tensor, cache: &CrossCache, options: &AttentionOptions) -> Result<()> {
        self.check_options(queries, options)?;
        self.check_input("query", queries, self.config.resolved_query_size())?;
        if cache.layer != self.qkv.id() {
            return Err(Error::value(
                "the cache for cross-attention",
                "one of another layer",
                "one that this layer made",
            ));
        }
        let b = queries.dim(0)?;
        if b != cache.batch_size() {
            let expected = format!("{}, as in the cache for cross-attention", cache.batch_size());
            return Err(Error::value("the batch size", b, expected));
        }
        Ok(())
    }
}

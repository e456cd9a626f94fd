//! Caches in int8.

use candle_core::{DType, Device, Tensor};

use super::kv_cache::KvCache;
use super::new_tokens::{NewTokens, TokenShape};
use crate::error::{Error, Result};
use crate::tensor::quantize_heads;

impl KvCache {
    /// A cache of this kind that holds keys and values in 8 bits, with an f32 scale for each head of a token: `4 + d`
    /// bytes in place of `4 d` of f32. It is empty.
    ///
    /// The CPU kernel reads them as they are. Queries and new tokens are computed in f32, also of f16 and bf16 layers.
    /// Everything else of a cache stays the same; chunks of any size read the same rounded keys and have the same bits.
    /// Each call on the eager backend (returned attention weights, f64) widens keys and values, and so do
    /// [`append`](Self::append) and [`attend_sharing`](crate::MultiHeadAttention::attend_sharing), which return them.
    ///
    /// A call is an error if it tracks a gradient, on a GPU, and with a key or value that is not finite.
    ///
    /// ```
    /// use candle_attention::{AttentionConfig, AttentionMask, KvCache, MultiHeadAttention};
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    ///
    /// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    /// let config = AttentionConfig::new(8, 2).with_mask(AttentionMask::causal());
    /// let layer = MultiHeadAttention::new(&config, vb)?.frozen()?;
    /// let mut cache = KvCache::growing().with_int8();
    /// for s in [5, 1, 1] {
    ///     let xs = Tensor::randn(0f32, 1., (1, s, 8), &Device::Cpu)?;
    ///     assert_eq!(layer.step(&xs, &mut cache)?.dims(), [1, s, 8]);
    /// }
    /// assert_eq!(cache.len(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_int8(self) -> Self {
        Self { int8: true, buffers: None, sequences: Vec::new(), ..self }
    }

    /// The sizes and the dtype in which the cache holds tokens of `shape`.
    pub(in crate::attention) fn stored_shape(&self, shape: TokenShape) -> TokenShape {
        TokenShape { dtype: if self.int8 { DType::U8 } else { shape.dtype }, ..shape }
    }

    /// The dtype of a call's queries, keys and values: `wide` with a cache in int8, else `dtype`, that of the layer.
    pub(in crate::attention) fn call_dtype(&self, dtype: DType, wide: DType) -> DType {
        if self.int8 { wide } else { dtype }
    }

    /// Checks that tokens on this device can be rounded to what the cache holds.
    pub(super) fn check_device(&self, device: &Device) -> Result<()> {
        if self.int8 && !device.is_cpu() {
            let found = format!("tensors on {:?}", device.location());
            return Err(Error::value("a call with a cache in int8", found, "tensors on the CPU"));
        }
        Ok(())
    }

    /// Checks that a call need not track a gradient through rounded tokens.
    pub(in crate::attention) fn check_untracked(&self, tracked: bool) -> Result<()> {
        if self.int8 && tracked {
            let expected = "one of a layer without variables (`frozen`): integers have no gradient";
            return Err(Error::value("a call with a cache in int8", "one that tracks a gradient", expected));
        }
        Ok(())
    }

    /// New tokens as the cache holds them.
    pub(super) fn stored<const N: usize>(&self, chunk: [Tensor; N], new: &NewTokens) -> Result<[Tensor; N]> {
        if !self.int8 {
            return Ok(chunk);
        }
        let sequences = self.sequences_of(new.counts.len());
        let starts: Vec<usize> = sequences.iter().map(|sequence| sequence.seen()).collect();
        let names = if N == 1 { ["the latents", ""] } else { ["the keys", "the values"] };
        let mut stored = chunk;
        for (tokens, name) in stored.iter_mut().zip(names) {
            *tokens = quantize_heads(name, tokens, &new.counts, &starts)?;
        }
        Ok(stored)
    }
}

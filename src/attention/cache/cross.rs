//! Cross-attention to a memory whose keys and values are projected once.

use candle_core::Tensor;

use super::kv_cache::check_sequences;
use super::layer_id::LayerId;
use crate::attention::MultiHeadAttention;
use crate::config::CallInput;
use crate::ensure;
use crate::error::{Error, Result};
use crate::tensor::select;

/// Keys and values of one memory, projected by one layer: cross-attention in decoding, where only the queries are new.
///
/// [`MultiHeadAttention::cross_cache`] makes it; [`cross_step`](MultiHeadAttention::cross_step) and
/// [`AttentionInputs::cross_cached`](crate::AttentionInputs::cross_cached) use it. The memory cannot be exchanged:
/// another one is another cache. Nor can the weights: after a change of variables the cache is an error, and the layer
/// makes another one. A clone shares the tensors.
///
/// ```
/// use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
/// let memory = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?;
/// let cache = layer.cross_cache(&memory, &memory)?;
/// let mask = AttentionMask::lengths(&[5, 3]);
/// for _ in 0..4 {
///     let query = Tensor::randn(0f32, 1., (2, 1, 8), &Device::Cpu)?;
///     assert_eq!(layer.cross_step(&query, &cache, &mask)?.dims(), [2, 1, 8]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CrossCache {
    /// `(b, s_kv, h_kv, d)`, with the learned and zero keys of the layer at the end.
    pub(in crate::attention) keys: Tensor,
    pub(in crate::attention) values: Tensor,
    /// Tokens of the memory.
    len: usize,
    layer: LayerId,
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

    /// Whether a gradient flows into the memory.
    pub(in crate::attention) fn tracks_gradient(&self) -> bool {
        self.keys.track_op() || self.values.track_op()
    }

    /// Checks that the layer made the cache with its present weights.
    pub(in crate::attention) fn check_layer(&self, layer: &MultiHeadAttention) -> Result<()> {
        let expected = "one that this layer made with its present weights, by `cross_cache`";
        layer.present_id()?.check(Some(self.layer), "the cache for cross-attention", expected)
    }

    /// The cache of these sequences, in this order. A sequence may be repeated: `&[0, 0, 0]` gives three beams the
    /// same memory.
    ///
    /// # Errors
    /// No sequence at all, or one that is not in the cache.
    pub fn select_sequences(&self, sequences: &[usize]) -> Result<Self> {
        check_sequences(sequences, self.batch_size())?;
        Ok(Self { keys: select(&self.keys, sequences, 0)?, values: select(&self.values, sequences, 0)?, ..*self })
    }
}

impl MultiHeadAttention {
    /// Projects the memory of cross-attention once: `keys` `(b, s_kv, key_size)` and `values` `(b, s_kv, value_size)`,
    /// which are mostly the same tensor. Differentiable.
    ///
    /// # Errors
    /// A tensor has the wrong shape, dtype or device; a layer that requires position vectors has keys and values in one
    /// tensor; or the layer has positions: those of the queries relative to another sequence follow only from all of
    /// them. So has latent attention, which is self-attention. A layer with a causal mask or a window of its own: its
    /// queries would see the memory up to a place that follows from their number alone.
    pub fn cross_cache(&self, keys: &Tensor, values: &Tensor) -> Result<CrossCache> {
        ensure!(self.config.latent.is_none(), Error::config("latent", "set", "none with a cache for cross-attention"));
        self.check_own_keys()?;
        if !self.config.position.is_none() {
            return Err(Error::config("position", &self.config.position, "none with a cache for cross-attention"));
        }
        if self.config.steps.follow_positions() {
            let expected = "none that follows positions with a cache for cross-attention";
            return Err(Error::value("the steps of the layer", "a factor by position", expected));
        }
        if self.config.mask.follows_order() {
            let allowed = "one that does not go by the order of the tokens, for cross-attention: a decoder's layers over \
                           a memory have none, and the call gives that of padding";
            return Err(Error::config("mask", &self.config.mask, allowed));
        }
        self.check_memory(keys, values)?;
        let required = self.config.requires.contains(&CallInput::PositionVectors);
        ensure!(!required || keys.id() != values.id(), self.missing(CallInput::PositionVectors));
        let exact = self.exact_if(|| keys.track_op() || values.track_op());
        let [k, v] = exact.as_ref().unwrap_or(self).project_memory(keys, values, self.dtype())?;
        let layer = self.present_id()?;
        Ok(CrossCache { keys: k.contiguous()?, values: v.contiguous()?, len: keys.dim(1)?, layer })
    }
}

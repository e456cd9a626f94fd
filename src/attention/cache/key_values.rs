//! Keys and values of one call, for layers that have none of their own.

use candle_core::Tensor;

use super::append::NewTokens;
use crate::attention::MultiHeadAttention;
use crate::config::KeyValueSource;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::position::ExplicitPositions;
use crate::tensor::{check_float, same_dtype_and_device};

/// The keys and values that one call of a layer attended to, with the positions of its tokens, for later layers of the
/// same model that have none of their own (Gemma 3n, Gemma 4).
///
/// [`MultiHeadAttention::attend_sharing`] returns it, with and without a cache, and
/// [`AttentionInputs::shared`](crate::AttentionInputs::shared) uses it in the same pass. The cache of the layer that
/// made them is no substitute: one with a window forgets keys that the first of several new tokens still sees. A clone
/// shares the tensors.
///
/// ```
/// use candle_attention::{
///     AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KeyValueSource, KvCache, MultiHeadAttention,
/// };
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let config = AttentionConfig::new(8, 2).with_mask(AttentionMask::causal());
/// let first = MultiHeadAttention::new(&config, vb.pp("first"))?;
/// let config = config.with_key_value_source(KeyValueSource::Shared { layer: Some(0) });
/// let second = MultiHeadAttention::new(&config, vb.pp("second"))?;
///
/// let (options, mut cache) = (AttentionOptions::default(), KvCache::growing());
/// for s in [5, 1, 1] {
///     let xs = Tensor::randn(0f32, 1., (2, s, 8), &Device::Cpu)?;
///     let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
///     let (attended, key_values) = first.attend_sharing(&inputs.with_cache(&mut cache), &options)?;
///     let inputs = AttentionInputs::shared(&attended.output, &key_values, AttentionMask::full());
///     assert_eq!(second.attend_with(&inputs, &options)?.output.dims(), [2, s, 8]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct KeyValues {
    /// `(b, s_kv, h_kv, d)`.
    pub(in crate::attention) keys: Tensor,
    /// `(b, s_kv, h_kv, d_v)`.
    pub(in crate::attention) values: Tensor,
    /// The tokens of the call, which are the last of the keys.
    pub(in crate::attention) tokens: usize,
    /// The positions that the call gave.
    pub(in crate::attention) explicit: Option<ExplicitPositions>,
    /// The length of each sequence of a padded batch, if the mask of the call had it.
    pub(in crate::attention) lengths: Option<Vec<usize>>,
    /// Those of a call with a cache.
    pub(in crate::attention) new_tokens: Option<NewTokens>,
    /// What the cache adds to the mask of a call.
    pub(in crate::attention) mask: AttentionMask,
}

impl KeyValues {
    /// Keys `(b, s_kv, num_key_value_heads, head_dim)` after all steps, and values, that something else has made: the
    /// model that a model of its kind drafts for (Gemma 4's assistants).
    ///
    /// # Errors
    /// If they are not of one number of sequences, tokens and heads, of one dtype, and on one device.
    pub fn new(keys: &Tensor, values: &Tensor) -> Result<Self> {
        let (b, s, h_kv, _) = keys.dims4().map_err(|_| Error::shape("keys", keys.dims(), "(b, s_kv, h_kv, d)"))?;
        if values.rank() != 4 || values.dims()[..3] != keys.dims()[..3] {
            return Err(Error::shape("values", values.dims(), format!("({b}, {s}, {h_kv}, d_v)")));
        }
        check_float("keys", keys)?;
        same_dtype_and_device("values", values, keys)?;
        let (keys, values, mask) = (keys.clone(), values.clone(), AttentionMask::full());
        Ok(Self { keys, values, tokens: s, explicit: None, lengths: None, new_tokens: None, mask })
    }

    /// The number of keys, which are the columns of a mask.
    pub fn len(&self) -> usize {
        self.keys.dims()[1]
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys `(b, s_kv, num_key_value_heads, head_dim)` after all steps, and the values.
    pub fn tensors(&self) -> [&Tensor; 2] {
        [&self.keys, &self.values]
    }

    pub(in crate::attention) fn tracks_gradient(&self) -> bool {
        self.keys.track_op() || self.values.track_op()
    }
}

impl MultiHeadAttention {
    /// Checks that the layer makes keys of its own.
    pub(in crate::attention) fn check_own_keys(&self) -> Result<()> {
        let KeyValueSource::Shared { layer } = self.config.key_value_source else { return Ok(()) };
        let whose = layer.map_or("another layer".to_string(), |layer| format!("layer {layer}"));
        let expected =
            format!("those of {whose}, which its `attend_sharing` returns, by `AttentionInputs::shared`; padded");
        Err(Error::value("the keys and values of a call", "none", expected))
    }
}

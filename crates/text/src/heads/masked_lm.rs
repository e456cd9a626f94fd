//! `MaskedLm`: the masked language modeling head on token ids.

use std::fmt;

use candle_attention::checkpoint::WeightSource;
use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::tensor::{Freeze, Frozen, MapTensors, compute_dtype};
use candle_attention::weights::LinearWeights;
use candle_attention::{AttentionMask, Error, Result};
use candle_core::{Module, Tensor};
use candle_nn::Activation;

use crate::families::task_heads::HeadActivation;
use crate::model::bert::BertModel;
use crate::model::config::BertConfig;
use crate::model::feed_forward::read_linear;

/// A [`BertModel`] with a head that predicts the token at a position: `E norm(activation(first(x))) + b`, where `E` are the
/// word embeddings unless `tie_word_embeddings` is false.
#[derive(Clone)]
pub struct MaskedLm {
    pub(crate) model: BertModel,
    first: Linear,
    activation: Activation,
    norm: Norm,
    decoder: Linear,
    frozen: Frozen<Self>,
}

/// One line: the model.
impl fmt::Debug for MaskedLm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaskedLm").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Freeze for MaskedLm {
    fn frozen_state(&mut self) -> &mut Frozen<Self> {
        &mut self.frozen
    }

    fn pack(&mut self) -> Result<()> {
        self.first.pack()?;
        // Tied to the word embeddings, the decoder is packed all the same: a lookup reads rows and a product reads panels.
        // These are the only weights that a frozen model holds twice.
        self.decoder.pack()?;
        self.model.freeze_in_place()
    }
}

impl MapTensors for MaskedLm {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            model: self.model.map_tensors(f)?,
            first: self.first.map_tensors(f)?,
            activation: self.activation,
            norm: self.norm.map_tensors(f)?,
            decoder: self.decoder.map_tensors(f)?,
            frozen: Frozen::default(),
        })
    }
}

impl MaskedLm {
    /// Loads model and head from the root of a checkpoint.
    ///
    /// # Errors
    /// The errors of [`BertModel::load`]; a family or a checkpoint without such a head.
    pub fn load<S: WeightSource>(config: &BertConfig, source: S) -> Result<Self> {
        let Some(names) = config.row().masked_lm else {
            return Err(Error::config("model_type", &config.model_type, "one whose masked-language head is known"));
        };
        let (first, decoder) = (source.child(names.first), source.child(names.decoder));
        let missing = |name: String| {
            let why = "the checkpoint has no head for masked language modelling".to_string();
            Err(Error::MissingTensor { name, why })
        };
        if !first.contains("weight") {
            return missing(first.full_name("weight"));
        }
        let (vocabulary, width, hidden) = (config.vocab_size, config.embedding_size(), config.hidden_size);
        let optional = names.optional_bias;
        let weights = read_linear(&first, width, hidden, !optional || first.contains("bias"))?;
        let none = optional && config.key_flag("decoder_bias")? == Some(false);
        let bias = match (source.contains(names.bias), decoder.contains("bias")) {
            (true, _) => Some(source.get(names.bias, &[vocabulary])?),
            (false, true) => Some(decoder.get("bias", &[vocabulary])?),
            (false, false) if none => None,
            (false, false) => return missing(source.full_name(names.bias)),
        };
        let tied = config.key_flag("tie_word_embeddings")?.unwrap_or(true);
        let weight = if tied { None } else { Some(decoder.get("weight", &[vocabulary, width])?) };
        let norm = config.norm(&config.row().block, width, &source.child(names.norm))?;
        let own = source.gives_own_tensors();
        let model = BertModel::load(config, source)?;
        let weight = weight.unwrap_or_else(|| model.embeddings.words.clone());
        let mut head = Self {
            first: Linear::new(names.first, weights, width, hidden)?,
            activation: match names.activation {
                HeadActivation::Hidden => config.hidden_act,
                HeadActivation::Fixed(activation) => activation,
                HeadActivation::Tanh => return Err(Error::config("masked_lm activation", "tanh", "another")),
                HeadActivation::Stated(key) => config.stated_activation(key)?,
            },
            norm,
            decoder: Linear::new(names.decoder, LinearWeights::new(weight, bias), vocabulary, width)?,
            frozen: Frozen::default(),
            model,
        };
        if own {
            head.freeze_in_place()?;
        }
        Ok(head)
    }

    /// Model and head as they are now, for inference, with the copy of the last call if no weight has changed since: see
    /// [`BertModel::frozen`].
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn frozen(&self) -> Result<Self> {
        self.freeze(&self.frozen)
    }

    /// The model without the head.
    pub fn model(&self) -> &BertModel {
        &self.model
    }

    /// Token ids `(b, s)` u32 under `mask` → logits `(b, s, vocab_size)` in f32 (f64 for an f64 model).
    ///
    /// # Errors
    /// The errors of [`BertModel::forward`].
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, mask: &AttentionMask) -> Result<Tensor> {
        self.logits(&self.model.forward(ids, token_type_ids, mask)?)
    }

    /// xs `(b, s, hidden)` → `(b, s, vocab_size)`.
    pub(crate) fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let dtype = compute_dtype(xs.dtype());
        let xs = self.activation.forward(&self.first.forward(xs, dtype)?)?;
        self.decoder.forward(&self.norm.forward(&xs)?, dtype)
    }
}

//! `MaskedLm`: the masked language modeling head on token ids.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::tensor::{MapTensors, compute_dtype};
use candle_attention::weights::LinearWeights;
use candle_attention::{AttentionMask, Error, Result};
use candle_core::Tensor;

use crate::heads::head_model::{Head, HeadModel, Transform};
use crate::model::config::TextModelConfig;
use crate::model::feed_forward::read_linear;
use crate::model::text_model::TextModel;

/// A [`TextModel`] with a head that predicts the token at a position: `E norm(activation(first(x))) + b`, where `E` are
/// the word embeddings unless `tie_word_embeddings` is false.
pub type MaskedLm = HeadModel<MaskedHead>;

/// The head of a [`MaskedLm`].
#[derive(Clone)]
pub struct MaskedHead {
    first: Transform,
    decoder: Linear,
}

impl MapTensors for MaskedHead {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { first: self.first.map_tensors(f)?, decoder: self.decoder.map_tensors(f)? })
    }
}

impl Head for MaskedHead {
    const NAME: &'static str = "MaskedLm";

    fn load(
        config: &TextModelConfig,
        source: &AnySource,
        model: impl FnOnce() -> Result<TextModel>,
    ) -> Result<(Self, TextModel)> {
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
        let dense = Linear::new(names.first, weights, width, hidden)?;
        let first = Transform::new(config, dense, names.activation, Some(norm))?;
        let model = model()?;
        let weight = weight.unwrap_or_else(|| model.embeddings.words.clone());
        let decoder = Linear::new(names.decoder, LinearWeights::new(weight, bias), vocabulary, width)?;
        Ok((Self { first, decoder }, model))
    }

    fn pack(&mut self) -> Result<()> {
        self.first.pack()?;
        // Tied to the word embeddings, the decoder is packed all the same: a lookup reads rows and a product reads
        // panels. These are the only weights that a frozen model holds twice.
        self.decoder.pack()
    }

    fn labels(&self) -> Option<&[String]> {
        None
    }
}

impl MaskedLm {
    /// Token ids `(b, s)` u32 under `mask` → logits `(b, s, vocab_size)` in f32 (f64 for an f64 model).
    ///
    /// # Errors
    /// The errors of [`TextModel::forward`].
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, mask: &AttentionMask) -> Result<Tensor> {
        self.logits(&self.model.forward(ids, token_type_ids, mask)?)
    }

    /// xs `(b, s, hidden)` → `(b, s, vocab_size)`.
    pub(crate) fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        self.head.decoder.forward(&self.head.first.forward(xs)?, compute_dtype(xs.dtype()))
    }
}

use candle_core::{Module, Tensor};
use candle_nn::Activation;
use serde_json::Value;

use crate::checkpoint::WeightSource;
use crate::encoder::model::bert::BertModel;
use crate::encoder::model::config::BertConfig;
use crate::encoder::model::feed_forward::read_linear;
use crate::encoder::model::norm::LayerNorm;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ops::Linear;
use crate::tensor::compute_dtype;
use crate::weights::LinearWeights;

/// What stands between a hidden state and the logits of the vocabulary.
struct Names {
    first: &'static str,
    activation: Between,
    norm: &'static str,
    decoder: &'static str,
    /// The decoder's bias, where it does not lie under the decoder.
    bias: &'static str,
}

enum Between {
    /// That of the layers.
    Hidden,
    Gelu,
    /// `classifier_activation`.
    Stated,
}

const ROBERTA: Names = Names {
    first: "lm_head.dense",
    activation: Between::Gelu,
    norm: "lm_head.layer_norm",
    decoder: "lm_head.decoder",
    bias: "lm_head.bias",
};

/// The head of each family's `ForMaskedLM` in transformers.
fn names(family: &str) -> Option<Names> {
    Some(match family {
        "bert" => Names {
            first: "cls.predictions.transform.dense",
            activation: Between::Hidden,
            norm: "cls.predictions.transform.LayerNorm",
            decoder: "cls.predictions.decoder",
            bias: "cls.predictions.bias",
        },
        "roberta" | "xlm-roberta" | "camembert" | "mpnet" | "jina_embeddings_v3" => ROBERTA,
        "distilbert" => Names {
            first: "vocab_transform",
            activation: Between::Hidden,
            norm: "vocab_layer_norm",
            decoder: "vocab_projector",
            bias: "vocab_projector.bias",
        },
        "electra" => Names {
            first: "generator_predictions.dense",
            activation: Between::Gelu,
            norm: "generator_predictions.LayerNorm",
            decoder: "generator_lm_head",
            bias: "generator_lm_head.bias",
        },
        "albert" => Names {
            first: "predictions.dense",
            activation: Between::Hidden,
            norm: "predictions.LayerNorm",
            decoder: "predictions.decoder",
            bias: "predictions.bias",
        },
        "modernbert" => Names {
            first: "head.dense",
            activation: Between::Stated,
            norm: "head.norm",
            decoder: "decoder",
            bias: "decoder.bias",
        },
        _ => return None,
    })
}

/// A [`BertModel`] with a head that says which token stands at a place: `E norm(activation(first(x))) + b`, `E` being the
/// word embeddings unless `tie_word_embeddings` is false.
#[derive(Debug, Clone)]
pub struct MaskedLm {
    pub(crate) model: BertModel,
    first: Linear,
    activation: Activation,
    norm: LayerNorm,
    decoder: Linear,
}

impl MaskedLm {
    /// Reads model and head from the root of a checkpoint.
    ///
    /// # Errors
    /// Those of [`BertModel::load`]; a family without such a head; a checkpoint without one.
    pub fn load<S: WeightSource>(config: &BertConfig, source: &S) -> Result<Self> {
        let Some(names) = names(&config.model_type) else {
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
        let model = BertModel::load(config, source)?;
        let (vocabulary, width, hidden) = (config.vocab_size, config.embedding_size(), config.hidden_size);
        // ModernBERT's has biases only if `classifier_bias` and `decoder_bias` say so.
        let optional = config.model_type == "modernbert";
        let weights = read_linear(&first, width, hidden, !optional || first.contains("bias"))?;
        let none = optional && config.key("decoder_bias") == Some(&Value::Bool(false));
        let bias = match (source.contains(names.bias), decoder.contains("bias")) {
            (true, _) => Some(source.get(names.bias, &[vocabulary])?),
            (false, true) => Some(decoder.get("bias", &[vocabulary])?),
            (false, false) if none => None,
            (false, false) => return missing(source.full_name(names.bias)),
        };
        let tied = config.key("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(true);
        let weight = if tied { model.word_embeddings.clone() } else { decoder.get("weight", &[vocabulary, width])? };
        Ok(Self {
            first: Linear::new(names.first, weights, width, hidden)?,
            activation: match names.activation {
                Between::Hidden => config.hidden_act,
                Between::Gelu => Activation::Gelu,
                Between::Stated => config.stated_activation("classifier_activation")?,
            },
            norm: config.norm(width, &source.child(names.norm))?,
            decoder: Linear::new(names.decoder, LinearWeights { weight, bias }, vocabulary, width)?,
            model,
        })
    }

    /// The model below the head.
    pub fn model(&self) -> &BertModel {
        &self.model
    }

    /// Token ids `(b, s)` u32 under `mask` → logits `(b, s, vocab_size)` in f32 (f64 for an f64 model).
    ///
    /// # Errors
    /// As [`BertModel::forward`].
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

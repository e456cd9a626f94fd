use std::path::Path;

use candle_core::{DType, Module, Tensor};
use candle_nn::{Activation, ops::dropout};

use super::files::json;
use super::norm::LayerNorm;
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::checkpoint::{DenseWeights, WeightSource};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::projection::Dense;
use crate::slice::with_numbers;

/// The `config.json` of a BERT checkpoint.
#[derive(Debug, Clone, serde::Deserialize)]
#[non_exhaustive]
pub struct BertConfig {
    /// `bert`.
    pub model_type: String,
    /// Number of rows of the word embedding.
    pub vocab_size: usize,
    /// Width of the model.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of heads.
    pub num_attention_heads: usize,
    /// Width of the feed-forward part.
    pub intermediate_size: usize,
    /// Its activation.
    pub hidden_act: Activation,
    /// The longest input, in tokens.
    pub max_position_embeddings: usize,
    /// Number of segment types.
    pub type_vocab_size: usize,
    /// Added to the variance in layer normalisation.
    pub layer_norm_eps: f64,
    /// Dropout on hidden states when training.
    #[serde(default)]
    pub hidden_dropout_prob: f64,
    /// Dropout on attention weights when training.
    #[serde(default)]
    pub attention_probs_dropout_prob: f64,
    /// `absolute`.
    #[serde(default = "absolute")]
    pub position_embedding_type: String,
    /// The id that fills short rows.
    #[serde(default)]
    pub pad_token_id: u32,
}

const BERT: &str = "bert";

fn absolute() -> String {
    "absolute".to_string()
}

impl BertConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// If the file is missing, is of another family than BERT, or lacks a key; the error holds the path.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Family {
            model_type: Option<String>,
        }
        let path = path.as_ref();
        // Another family is named before its missing keys are.
        let found = json::<Family>(path)?.model_type.unwrap_or_else(|| "absent".to_string());
        if found != BERT {
            let reason = format!("model_type is {found}, expected {BERT}, the only one this version runs");
            return Err(Error::file(path, reason));
        }
        let config: Self = json(path)?;
        config.validate().map_err(|e| Error::file(path, e))?;
        Ok(config)
    }

    /// Checks what the model relies on.
    ///
    /// # Errors
    /// [`Error::Config`], with the field, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        if self.model_type != BERT {
            return Err(Error::config(
                "model_type",
                &self.model_type,
                format!("{BERT}, the only one this version runs"),
            ));
        }
        if self.position_embedding_type != "absolute" {
            return Err(Error::config("position_embedding_type", &self.position_embedding_type, "absolute"));
        }
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", self.type_vocab_size),
        ];
        if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::config(field, 0, "at least 1"));
        }
        if self.pad_token_id as usize >= self.vocab_size {
            let allowed = format!("less than vocab_size = {}", self.vocab_size);
            return Err(Error::config("pad_token_id", self.pad_token_id, allowed));
        }
        if !(0.0..1.0).contains(&self.hidden_dropout_prob) {
            return Err(Error::config("hidden_dropout_prob", self.hidden_dropout_prob, "a number in [0, 1)"));
        }
        self.attention().validate()
    }

    /// The attention layer's part.
    pub fn attention(&self) -> AttentionConfig {
        AttentionConfig::new(self.hidden_size, self.num_attention_heads).with_dropout(self.attention_probs_dropout_prob)
    }
}

/// BERT ([Devlin 2019](https://arxiv.org/abs/1810.04805)) without a head: token ids to hidden states.
///
/// Trainable: loaded from variables (see [`Checkpoint::to_varmap`](crate::checkpoint::Checkpoint::to_varmap)), each
/// parameter gets its gradient.
#[derive(Debug, Clone)]
pub struct BertModel {
    pub(super) config: BertConfig,
    pub(super) word_embeddings: Tensor,
    pub(super) position_embeddings: Tensor,
    pub(super) token_type_embeddings: Tensor,
    pub(super) embeddings_norm: LayerNorm,
    pub(super) layers: Vec<Layer>,
}

impl BertModel {
    /// Reads the model from the root of a checkpoint: bare, or with the prefix `bert` that it has under a task's head.
    ///
    /// # Errors
    /// An invalid configuration; a tensor missing or of the wrong shape, named.
    pub fn load<S: WeightSource>(config: &BertConfig, source: &S) -> Result<Self> {
        config.validate()?;
        let prefixed = source.child("bert");
        let bare = source.contains("embeddings.word_embeddings.weight");
        let source = if !bare && prefixed.contains("embeddings.word_embeddings.weight") { &prefixed } else { source };
        let embeddings = source.child("embeddings");
        let table = |name: &str, rows: usize| embeddings.get(&format!("{name}.weight"), &[rows, config.hidden_size]);
        let layer = |i: usize| Layer::load(config, &source.child("encoder.layer").child(&i.to_string()));
        Ok(Self {
            config: config.clone(),
            word_embeddings: table("word_embeddings", config.vocab_size)?,
            position_embeddings: table("position_embeddings", config.max_position_embeddings)?,
            token_type_embeddings: table("token_type_embeddings", config.type_vocab_size)?,
            embeddings_norm: layer_norm(config, &embeddings)?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Token ids `(b, s)` u32 under `mask` → hidden states `(b, s, hidden_size)`. Every token has segment type 0 unless
    /// `token_type_ids` `(b, s)` says otherwise.
    ///
    /// # Errors
    /// If a sequence is longer than `max_position_embeddings`, an id is outside its table (looked at on the CPU only: on
    /// a GPU that would wait for the device), or the mask does not fit.
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, mask: &AttentionMask) -> Result<Tensor> {
        self.forward_t(ids, token_type_ids, mask, false)
    }

    /// [`forward`](Self::forward); with `train`, dropout is applied.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_t(
        &self,
        ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        mask: &AttentionMask,
        train: bool,
    ) -> Result<Tensor> {
        let hidden = self.embed(ids, token_type_ids)?;
        let hidden = drop_out(&self.embeddings_norm.forward(&hidden)?, self.config.hidden_dropout_prob, train)?;
        self.layers.iter().try_fold(hidden, |hidden, layer| layer.forward(&hidden, mask, train))
    }

    fn embed(&self, ids: &Tensor, token_type_ids: Option<&Tensor>) -> Result<Tensor> {
        let (b, s) = ids.dims2().map_err(|_| Error::shape("ids", ids.dims(), "(b, s)"))?;
        let longest = self.config.max_position_embeddings;
        if s > longest {
            return Err(Error::shape("ids", ids.dims(), format!("at most {longest} tokens, max_position_embeddings")));
        }
        let words = lookup("ids", &self.word_embeddings, ids)?; // (b, s, hidden)
        let types = match token_type_ids {
            Some(types) if types.dims() != [b, s] => {
                return Err(Error::shape("token_type_ids", types.dims(), format!("{:?}", [b, s])));
            }
            Some(types) => lookup("token_type_ids", &self.token_type_embeddings, types)?,
            None => self.token_type_embeddings.narrow(0, 0, 1)?.unsqueeze(0)?, // (1, 1, hidden)
        };
        let positions = self.position_embeddings.narrow(0, 0, s)?.unsqueeze(0)?; // (1, s, hidden)
        Ok(words.broadcast_add(&types)?.broadcast_add(&positions)?)
    }
}

/// ids `(b, s)` u32 → `(b, s, width)`.
fn lookup(name: &str, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (b, s) = ids.dims2()?;
    if ids.dtype() != DType::U32 {
        return Err(Error::dtype(name, ids.dtype(), "u32"));
    }
    if ids.device().is_cpu() {
        with_numbers(ids, |ids: &[u32]| in_table(name, ids, table.dims()[0]))??;
    }
    Ok(table.index_select(&ids.flatten_all()?, 0)?.reshape((b, s, table.dim(1)?))?)
}

/// Checks that a table of `rows` rows has all `ids`.
pub(super) fn in_table(name: &str, ids: &[u32], rows: usize) -> Result<()> {
    match ids.iter().max() {
        Some(&largest) if largest as usize >= rows => {
            Err(Error::value(format!("the largest of {name}"), largest, format!("less than {rows}")))
        }
        _ => Ok(()),
    }
}

fn layer_norm<S: WeightSource>(config: &BertConfig, source: &S) -> Result<LayerNorm> {
    LayerNorm::load(config.hidden_size, config.layer_norm_eps, &source.child("LayerNorm"))
}

fn drop_out(xs: &Tensor, p: f64, train: bool) -> Result<Tensor> {
    if !train || p == 0.0 {
        return Ok(xs.clone());
    }
    Ok(dropout(xs, p as f32)?)
}

/// Attention and feed-forward, each added to its input and then normalised.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) attention: MultiHeadAttention,
    pub(super) attention_norm: LayerNorm,
    pub(super) intermediate: Dense,
    pub(super) activation: Activation,
    pub(super) output: Dense,
    pub(super) output_norm: LayerNorm,
    dropout: f64,
}

impl Layer {
    fn load<S: WeightSource>(config: &BertConfig, source: &S) -> Result<Self> {
        let attention = source.child("attention");
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            attention_norm: layer_norm(config, &attention.child("output"))?,
            attention: MultiHeadAttention::load(&config.attention(), attention)?,
            intermediate: dense(&source.child("intermediate.dense"), intermediate, hidden)?,
            activation: config.hidden_act,
            output: dense(&source.child("output.dense"), hidden, intermediate)?,
            output_norm: layer_norm(config, &source.child("output"))?,
            dropout: config.hidden_dropout_prob,
        })
    }

    /// xs `(b, s, hidden)` → the same.
    fn forward(&self, xs: &Tensor, mask: &AttentionMask, train: bool) -> Result<Tensor> {
        let inputs = AttentionInputs::self_attention(xs, mask);
        let attended = self.attention.attend_with(&inputs, &AttentionOptions::default().with_train(train))?.output;
        let xs = self.attention_norm.forward(&(xs + drop_out(&attended, self.dropout, train)?)?)?;
        let inner = self.activation.forward(&self.intermediate.forward(&xs, xs.dtype())?)?;
        let outer = drop_out(&self.output.forward(&inner, xs.dtype())?, self.dropout, train)?;
        Ok(self.output_norm.forward(&(xs + outer)?)?)
    }
}

fn dense<S: WeightSource>(source: &S, out: usize, input: usize) -> Result<Dense> {
    let weights =
        DenseWeights { weight: source.get("weight", &[out, input])?, bias: Some(source.get("bias", &[out])?) };
    Dense::new(&source.full_name(""), weights, out, input)
}

use candle_core::{DType, Module, Tensor};
use candle_nn::{Activation, ops::dropout};

use super::config::BertConfig;
use super::norm::LayerNorm;
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::checkpoint::{AttentionWeights, DenseWeights, WeightSource};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::position::Position;
use crate::projection::Dense;
use crate::slice::with_numbers;

/// BERT ([Devlin 2019](https://arxiv.org/abs/1810.04805)) or one of its kin without a head: token ids to hidden states.
///
/// Trainable: loaded from variables (see [`Checkpoint::to_varmap`](crate::checkpoint::Checkpoint::to_varmap)), each
/// parameter gets its gradient.
#[derive(Debug, Clone)]
pub struct BertModel {
    pub(super) config: BertConfig,
    pub(super) word_embeddings: Tensor,
    pub(super) position_embeddings: Tensor,
    pub(super) token_type_embeddings: Option<Tensor>,
    pub(super) embeddings_norm: LayerNorm,
    /// To the width of the model, where the embeddings have another.
    pub(super) projection: Option<Dense>,
    pub(super) layers: Vec<Layer>,
}

impl BertModel {
    /// Reads the model from the root of a checkpoint: bare, or with the prefix `bert` that it has under a task's head.
    ///
    /// # Errors
    /// An invalid configuration; a tensor missing or of the wrong shape, named.
    pub fn load<S: WeightSource>(config: &BertConfig, source: &S) -> Result<Self> {
        config.validate()?;
        let family = config.family();
        let prefixed = source.child(family.prefix);
        let bare = source.contains("embeddings.word_embeddings.weight");
        let source = if !bare && prefixed.contains("embeddings.word_embeddings.weight") { &prefixed } else { source };
        let embeddings = source.child("embeddings");
        let size = config.embedding_size();
        let table = |name: &str, rows: usize| embeddings.get(&format!("{name}.weight"), &[rows, size]);
        let word_embeddings = table("word_embeddings", config.vocab_size)?;
        let position_embeddings = table("position_embeddings", config.max_position_embeddings)?;
        let relative = match &config.attention().position {
            Position::RelativeBuckets(relative) => {
                let shape = [relative.num_buckets, config.num_attention_heads];
                Some(source.get("encoder.relative_attention_bias.weight", &shape)?)
            }
            _ => None,
        };
        let mut layers: Vec<(String, Layer)> = Vec::new();
        for place in family.layers(config) {
            let layer = match layers.iter().find(|(other, _)| *other == place) {
                Some((_, shared)) => shared.clone(),
                None => Layer::load(config, &source.child(&place), relative.clone())?,
            };
            layers.push((place, layer));
        }
        let projection = source.child(family.projection);
        Ok(Self {
            config: config.clone(),
            word_embeddings,
            position_embeddings,
            token_type_embeddings: match family.has_types {
                true => Some(table("token_type_embeddings", config.type_vocab_size)?),
                false => None,
            },
            embeddings_norm: LayerNorm::load(size, config.layer_norm_eps, &embeddings.child("LayerNorm"))?,
            // ALBERT has one even where the widths are the same.
            projection: match size != config.hidden_size || projection.contains("weight") {
                true => Some(dense(&projection, config.hidden_size, size)?),
                false => None,
            },
            layers: layers.into_iter().map(|(_, layer)| layer).collect(),
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
        let hidden = match &self.projection {
            Some(projection) => projection.forward(&hidden, hidden.dtype())?,
            None => hidden,
        };
        self.layers.iter().try_fold(hidden, |hidden, layer| layer.forward(&hidden, mask, train))
    }

    fn embed(&self, ids: &Tensor, token_type_ids: Option<&Tensor>) -> Result<Tensor> {
        let (b, s) = ids.dims2().map_err(|_| Error::shape("ids", ids.dims(), "(b, s)"))?;
        let longest = self.config.max_tokens();
        if s > longest {
            return Err(Error::shape(
                "ids",
                ids.dims(),
                format!("at most {longest} tokens, by max_position_embeddings"),
            ));
        }
        let words = lookup("ids", &self.word_embeddings, ids)?; // (b, s, hidden)
        let words = match (&self.token_type_embeddings, token_type_ids) {
            (None, _) => words,
            (Some(_), Some(types)) if types.dims() != [b, s] => {
                return Err(Error::shape("token_type_ids", types.dims(), format!("{:?}", [b, s])));
            }
            (Some(table), Some(types)) => words.broadcast_add(&lookup("token_type_ids", table, types)?)?,
            (Some(table), None) => words.broadcast_add(&table.narrow(0, 0, 1)?.unsqueeze(0)?)?,
        };
        let positions = self.position_embeddings.narrow(0, self.config.first_position(), s)?.unsqueeze(0)?;
        Ok(words.broadcast_add(&positions)?)
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
    /// `relative`: the table of biases that all layers share, where there is one.
    fn load<S: WeightSource>(config: &BertConfig, source: &S, relative: Option<Tensor>) -> Result<Self> {
        let family = config.family();
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let norm = |name: &str| LayerNorm::load(hidden, config.layer_norm_eps, &source.child(name));
        let (attention_norm, output_norm) = (norm(family.attention_norm)?, norm(family.output_norm)?);
        let attention = config.attention();
        let (mut weights, _) = AttentionWeights::read(&attention, &source.child("attention"))?;
        weights.relative_bias = relative;
        Ok(Self {
            attention_norm,
            attention: MultiHeadAttention::from_weights(&attention, weights)?,
            intermediate: dense(&source.child(family.intermediate), intermediate, hidden)?,
            activation: config.hidden_act,
            output: dense(&source.child(family.output), hidden, intermediate)?,
            output_norm,
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

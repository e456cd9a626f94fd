use candle_core::{DType, Module, Tensor};

use crate::checkpoint::WeightSource;
use crate::encoder::model::config::BertConfig;
use crate::encoder::model::feed_forward::load_linear;
use crate::encoder::model::layer::{Layer, drop_out};
use crate::encoder::model::norm::LayerNorm;
use crate::encoder::model::options::{ForwardOptions, Forwarded};
use crate::error::{Error, Result};
use crate::families::block::AbsolutePositions;
use crate::mask::AttentionMask;
use crate::ops::Linear;
use crate::position::{LayerSizes, PositionParameter};
use crate::tensor::with_slice;

/// BERT ([Devlin 2019](https://arxiv.org/abs/1810.04805)) or one of its kin without a head: token ids to hidden states.
///
/// Trainable: loaded from variables (see [`Checkpoint::to_varmap`](crate::checkpoint::Checkpoint::to_varmap)), each
/// parameter gets its gradient.
#[derive(Debug, Clone)]
pub struct BertModel {
    pub(crate) config: BertConfig,
    pub(crate) word_embeddings: Tensor,
    pub(crate) position_embeddings: Option<Tensor>,
    pub(crate) token_type_embeddings: Option<Tensor>,
    pub(crate) embeddings_norm: LayerNorm,
    /// To the width of the model, where the embeddings have another.
    pub(crate) projection: Option<Linear>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: Option<LayerNorm>,
}

impl BertModel {
    /// Reads the model from the root of a checkpoint: bare, or with the prefix `bert` that it has under a task's head.
    ///
    /// # Errors
    /// An invalid configuration; a tensor missing or of the wrong shape, named.
    pub fn load<S: WeightSource>(config: &BertConfig, source: &S) -> Result<Self> {
        config.validate()?;
        let body = body(config, source);
        let source = body.as_ref().unwrap_or(source);
        let row = config.row_in(source);
        let size = config.embedding_size();
        let table = |name: &str, rows: usize| source.get(&format!("{name}.weight"), &[rows, size]);
        let word_embeddings = table(row.word_embeddings, config.vocab_size)?;
        let places = config.block_prefixes();
        let (attention, _) = config.attention_of(&source.child(&places[0]).child(row.block.attention), 0)?;
        let whole = LayerSizes { num_attention_heads: config.num_attention_heads, ..attention.sizes() };
        let parameters = attention.position.scheme().parameters(&whole);
        let read = |(name, parameter): (&'static str, &PositionParameter)| {
            Ok::<_, Error>((parameter.name, source.get(name, &parameter.shape)?))
        };
        let shared_bias = row.relative_bias.zip(parameters.first()).map(read).transpose()?;
        let mut layers: Vec<(&String, Layer)> = Vec::new();
        for (index, place) in places.iter().enumerate() {
            let shared = layers.iter().find(|(other, _)| *other == place).map(|(_, layer)| layer.clone());
            let layer = match shared {
                Some(shared) => shared,
                None => {
                    let source = source.child(place);
                    Layer::load(config, &row.block, &source, index, shared_bias.as_ref())?
                }
            };
            layers.push((place, layer));
        }
        let projection = source.child(row.projection);
        Ok(Self {
            config: config.clone(),
            word_embeddings,
            position_embeddings: match row.positions {
                AbsolutePositions::None => None,
                _ => Some(table(row.position_embeddings, config.max_position_embeddings)?),
            },
            token_type_embeddings: match config.has_types() {
                true => Some(table(row.type_embeddings, config.type_vocab_size)?),
                false => None,
            },
            embeddings_norm: match row.embeddings_norm {
                Some(name) => config.norm(size, &source.child(name))?,
                None => return Err(Error::config("model_type", &config.model_type, "one with a norm of embeddings")),
            },
            // ALBERT has one even where the widths are the same.
            projection: match size != config.hidden_size || projection.contains("weight") {
                true => Some(load_linear(&projection, config.hidden_size, size)?),
                false => None,
            },
            layers: layers.into_iter().map(|(_, layer)| layer).collect(),
            final_norm: match row.final_norm {
                Some(name) => Some(config.norm(config.hidden_size, &source.child(name))?),
                None => None,
            },
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
        let options = ForwardOptions::default().with_train(train);
        Ok(self.forward_with(ids, token_type_ids, mask, &options)?.hidden)
    }

    /// [`forward`](Self::forward) with everything that can be asked of it: heads masked, weights observed.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); a layer that there is not, or masks not of all layers.
    pub fn forward_with(
        &self,
        ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        mask: &AttentionMask,
        options: &ForwardOptions,
    ) -> Result<Forwarded> {
        options.check(self.layers.len())?;
        let hidden = self.embed(ids, token_type_ids)?;
        let hidden = drop_out(&self.embeddings_norm.forward(&hidden)?, self.config.hidden_dropout_prob, options.train)?;
        let mut hidden = match &self.projection {
            Some(projection) => projection.forward(&hidden, hidden.dtype())?,
            None => hidden,
        };
        let mut observed = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let (next, seen) = layer.forward(&hidden, mask, &options.of_layer(index), options.observed_in(index))?;
            observed.extend(seen.map(|seen| (index, seen)));
            hidden = next;
        }
        if let Some(norm) = &self.final_norm {
            hidden = norm.forward(&hidden)?;
        }
        Ok(Forwarded { hidden, observed })
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
        // candle's kernels for NVIDIA GPUs cannot look up nothing.
        if ids.elem_count() == 0 {
            let table = &self.word_embeddings;
            return Ok(Tensor::zeros((b, s, table.dim(1)?), table.dtype(), table.device())?);
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
        match &self.position_embeddings {
            Some(table) => Ok(words.broadcast_add(&self.positions(table, ids)?)?),
            None => Ok(words),
        }
    }

    /// The rows of the position table: `(1, s, width)`, or `(b, s, width)` where it depends on the ids.
    fn positions(&self, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (_, s) = ids.dims2()?;
        let Some(uncounted) = self.config.uncounted() else {
            return Ok(table.narrow(0, 0, s)?.unsqueeze(0)?);
        };
        let counts = ids.ne(uncounted)?.to_dtype(DType::F32)?;
        let positions = ((counts.cumsum(1)? * counts)? + f64::from(uncounted))?.to_dtype(DType::U32)?;
        lookup("positions", table, &positions)
    }
}

/// ids `(b, s)` u32 → `(b, s, width)`.
fn lookup(name: &str, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (b, s) = ids.dims2()?;
    if ids.dtype() != DType::U32 {
        return Err(Error::dtype(name, ids.dtype(), "u32"));
    }
    if ids.device().is_cpu() {
        with_slice(ids, |ids: &[u32]| in_table(name, ids, table.dims()[0]))??;
    }
    Ok(table.index_select(&ids.flatten_all()?, 0)?.reshape((b, s, table.dim(1)?))?)
}

/// Checks that a table of `rows` rows has all `ids`.
pub(crate) fn in_table(name: &str, ids: &[u32], rows: usize) -> Result<()> {
    match ids.iter().max() {
        Some(&largest) if largest as usize >= rows => {
            Err(Error::value(format!("the largest of {name}"), largest, format!("less than {rows}")))
        }
        _ => Ok(()),
    }
}

/// Where the model itself is, if not at the root: under one of the prefixes that it has under a task's head.
pub(crate) fn body<S: WeightSource>(config: &BertConfig, source: &S) -> Option<S> {
    let row = config.row();
    let words = format!("{}.weight", row.word_embeddings);
    if source.contains(&words) {
        return None;
    }
    row.prefixes.iter().map(|prefix| source.child(prefix)).find(|prefixed| prefixed.contains(&words))
}

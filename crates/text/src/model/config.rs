//! `TextModelConfig`: the validated `config.json` of a text model.

use std::path::Path;

use candle_attention::checkpoint::{AnySource, ModelConfig, WeightSource};
use candle_attention::ensure;
use candle_attention::io::read_json;
use candle_attention::lora::LoraTasks;
use candle_attention::norm::Norm;
use candle_attention::pruning::PrunedHeads;
use candle_attention::{AttentionConfig, AttentionMask, Error, NormKind, Result};
use candle_nn::Activation;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::families;
use crate::families::model::{AbsolutePositions, Block, Model, SegmentTypes};
use crate::model::config_keys::{
    CONVOLUTION, MAX_LAYERS, MAX_MODEL_SIZE, normalize_config_keys, stated_text, supported_models,
};

/// The `config.json` of BERT or a model that changed a part of it: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA,
/// DistilBERT, MPNet, ALBERT, ModernBERT, NomicBERT, Jina-BERT v2, Jina embeddings v3, GTE, DeBERTa v1 to v3; and of
/// decoders that embed texts: Qwen 3, Qwen 2, Mistral, Llama, Gemma 3, EuroBERT, LFM2; the text model of EmbeddingGemma
/// 2; and the encoders of T5, mT5 and UMT5.
/// The keys are BERT's; the keys of other families are renamed to them. Positions and masks that belong to attention
/// are applied per layer.
#[derive(Debug, Clone, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct TextModelConfig {
    /// `bert` (with `position_embedding_type` `alibi`: Jina-BERT v2), `roberta`, `xlm-roberta`, `camembert`, `electra`,
    /// `distilbert`, `mpnet`, `albert`, `modernbert`, `nomic_bert`, `jina_embeddings_v3`, `gte`, `new` (GTE's own
    /// code), `deberta`, `deberta-v2`, `qwen3`, `bidirectional_pplx_qwen3` (pplx-embed), `qwen2`, `mistral`,
    /// `llama`, `gemma3_text`, `embedding_gemma2_text` (also as the `text_config` of `embedding_gemma2`), `eurobert`,
    /// `lfm2`, `lfm2_bidirectional`, `t5`, `mt5` or `umt5`.
    pub model_type: String,
    /// Number of rows of the word embedding.
    pub vocab_size: usize,
    /// Width of the model.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of heads.
    pub num_attention_heads: usize,
    /// Inner width of the feed-forward part.
    pub intermediate_size: usize,
    /// Activation of the feed-forward part.
    pub hidden_act: Activation,
    /// The longest input, in tokens; 2^20 if T5 does not state it, whose positions have no bound.
    pub max_position_embeddings: usize,
    /// Number of segment types; 0 in DistilBERT, MPNet and ModernBERT.
    #[serde(default)]
    pub type_vocab_size: usize,
    /// Added to the variance, or to the mean square, in normalization; default that of the family.
    pub layer_norm_eps: f64,
    /// Width of the embeddings; default `hidden_size` (ELECTRA and ALBERT have others).
    #[serde(default)]
    pub embedding_size: Option<usize>,
    /// Number of groups of layers that share their weights (ALBERT).
    #[serde(default = "one")]
    pub num_hidden_groups: usize,
    /// Layers per group (ALBERT).
    #[serde(default = "one")]
    pub inner_group_num: usize,
    /// Dimension per attention head; default `hidden_size / num_attention_heads`.
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Number of key-value heads; default `num_attention_heads` (families of decoders may have fewer).
    #[serde(default)]
    pub num_key_value_heads: Option<usize>,
    /// Dropout on hidden states when training.
    #[serde(default)]
    pub hidden_dropout_prob: f64,
    /// Dropout on attention weights when training.
    #[serde(default)]
    pub attention_probs_dropout_prob: f64,
    /// `absolute`, or `alibi` in Jina-BERT. Without effect in families without a table of positions.
    #[serde(default = "absolute")]
    pub position_embedding_type: String,
    /// Id of the padding token.
    #[serde(default)]
    pub pad_token_id: u32,
    /// Heads that the layers no longer have, by their indices in the unpruned model.
    #[serde(default)]
    pub pruned_heads: PrunedHeads,
    /// All keys of the file. Some concern only attention or a task head.
    #[serde(skip)]
    keys: Value,
}

impl<'de> Deserialize<'de> for TextModelConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use serde::de::Error as _;
        let mut keys = Map::deserialize(deserializer)?;
        normalize_config_keys(&mut keys).and_then(|()| check_numbers(&keys)).map_err(D::Error::custom)?;
        let keys = Value::Object(keys);
        Ok(Self { keys: keys.clone(), ..Self::deserialize(keys).map_err(D::Error::custom)? })
    }
}

/// Checks the kinds of keys that are numbers: an error of serde would not name the key.
fn check_numbers(keys: &Map<String, Value>) -> Result<()> {
    const WHOLE: [&str; 13] = [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
        "embedding_size",
        "num_hidden_groups",
        "inner_group_num",
        "head_dim",
        "num_key_value_heads",
        "pad_token_id",
    ];
    const FRACTIONS: [&str; 3] = ["layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob"];
    let other = |key: &'static str, fits: fn(&Value) -> bool| Some((key, keys.get(key).filter(|value| !fits(value))?));
    if let Some((key, found)) = WHOLE.into_iter().find_map(|key| other(key, Value::is_u64)) {
        return Err(Error::config(key, found, "a whole number from 0"));
    }
    match FRACTIONS.into_iter().find_map(|key| other(key, Value::is_number)) {
        Some((key, found)) => Err(Error::config(key, found, "a number")),
        None => Ok(()),
    }
}

fn absolute() -> String {
    "absolute".to_string()
}

fn one() -> usize {
    1
}

/// Checks that an activation maps each number to one number, and the parameter of one that has it. candle's SwiGLU
/// multiplies the halves of each row.
fn check_activation(key: &'static str, activation: Activation) -> Result<()> {
    match activation {
        Activation::Elu(slope) | Activation::LeakyRelu(slope) if !(slope as f32).is_finite() => {
            Err(Error::config(key, slope, "a finite number"))
        }
        Activation::Swiglu => {
            Err(Error::config(key, "swiglu", "an activation of single numbers, such as gelu or silu"))
        }
        _ => Ok(()),
    }
}

/// The most experts of a block. Published encoders have eight; the largest decoders have fewer than a thousand.
const MAX_EXPERTS: usize = 1 << 12;

/// The mixtures of experts of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertsConfig {
    every: usize,
    pub count: usize,
    pub top_k: usize,
    pub normalized: bool,
}

impl ExpertsConfig {
    /// Whether block `index` is a mixture: the second, and each `every` blocks after it.
    pub fn is_mixture(&self, index: usize) -> bool {
        index % self.every == 1
    }
}

impl TextModelConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// If the file is missing, names an unsupported family, or lacks a key; the error holds the path.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let config: Self = read_json(path)?;
        config.validate().map_err(|e| Error::file(path, e))?;
        Ok(config)
    }

    /// Checks every field that the model relies on.
    ///
    /// # Errors
    /// [`Error::Config`] with the field, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        let Some(row) = self.find_row(|_| false) else {
            return Err(Error::config("model_type", &self.model_type, supported_models()));
        };
        if row.positions != AbsolutePositions::None && self.position_embedding_type != "absolute" {
            return Err(Error::config("position_embedding_type", &self.position_embedding_type, "absolute"));
        }
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", if row.types == SegmentTypes::Always { self.type_vocab_size } else { 1 }),
            ("embedding_size", self.embedding_size()),
            ("num_hidden_groups", self.num_hidden_groups),
            ("inner_group_num", self.inner_group_num),
        ];
        if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::config(field, 0, "at least 1"));
        }
        if let Some((field, size)) =
            sizes.into_iter().find(|(field, size)| field.ends_with("_size") && *size > MAX_MODEL_SIZE)
        {
            return Err(Error::config(field, size, format!("at most {MAX_MODEL_SIZE}")));
        }
        let (hidden, layers, words) = (self.hidden_size, self.num_hidden_layers, self.vocab_size);
        let (embedding, groups, pad, first) =
            (self.embedding_size(), self.num_hidden_groups, self.pad_token_id as usize, self.first_position());
        let has_width = row.projection.is_some() || embedding == hidden;
        ensure!(has_width, Error::config("embedding_size", embedding, format!("hidden_size = {hidden}")));
        let is_bounded = layers.saturating_mul(self.inner_group_num) <= MAX_LAYERS;
        ensure!(is_bounded, Error::config("num_hidden_layers", layers, format!("at most {MAX_LAYERS} layers in all")));
        ensure!(pad < words, Error::config("pad_token_id", pad, format!("less than vocab_size = {words}")));
        let most = format!("at most num_hidden_layers = {layers}");
        ensure!(groups <= layers, Error::config("num_hidden_groups", groups, most));
        if first >= self.max_position_embeddings {
            let allowed = format!("more than {first}, the position of the first token");
            return Err(Error::config("max_position_embeddings", self.max_position_embeddings, allowed));
        }
        // As the f32 that the norms compute with.
        if !((self.layer_norm_eps as f32).is_finite() && self.layer_norm_eps >= 0.0) {
            return Err(Error::config("layer_norm_eps", self.layer_norm_eps, "a finite number from 0"));
        }
        check_activation("hidden_act", self.hidden_act)?;
        self.experts()?;
        let dropouts = [
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
        ];
        // As the f32 that candle's dropout computes with: 0.999999999 is 1 there.
        if let Some((field, found)) = dropouts.into_iter().find(|(_, p)| !(0.0..1.0).contains(&(*p as f32))) {
            return Err(Error::config(field, found, "a number in [0, 1)"));
        }
        if let Some(kinds) = self.keys.get("layer_types").and_then(Value::as_array)
            && kinds.len() < self.num_hidden_layers
        {
            let allowed = format!("one for each of {} layers", self.num_hidden_layers);
            return Err(Error::config("layer_types", format!("{} kinds", kinds.len()), allowed));
        }
        self.pruned_heads.check(&vec![self.num_attention_heads; self.num_hidden_layers])?;
        if !self.pruned_heads.is_empty() && row.shared_layers.is_some() {
            let allowed = format!("none: layers of {} share their weights", self.model_type);
            return Err(Error::config("pruned_heads", &self.pruned_heads, allowed));
        }
        self.first_attention_layer()?;
        if row.block.has_embedding_gate {
            self.size_of_gate()?;
        }
        self.output_size()?;
        let shared = self.num_key_value_heads.is_some_and(|heads| heads != self.num_attention_heads);
        if !self.pruned_heads.is_empty() && (shared || !row.heads_can_be_pruned) {
            let why = if shared { "share keys and values" } else { "have columns of a table in one layer" };
            return Err(Error::config("pruned_heads", &self.pruned_heads, format!("none: heads of the model {why}")));
        }
        self.attention().validate()
    }

    /// The sizes of the attention layers. Positions, norms and scale of the family are added when a layer is read.
    pub fn attention(&self) -> AttentionConfig {
        let mut config = AttentionConfig::new(self.hidden_size, self.num_attention_heads);
        config.head_dim = self.head_dim;
        config.num_key_value_heads = self.num_key_value_heads;
        config.with_dropout(self.attention_probs_dropout_prob)
    }

    /// The attention of layer `index`, to which `source` points, as its model runs it, and its built-in mask.
    pub(crate) fn attention_of(&self, source: &AnySource, index: usize) -> Result<(AttentionConfig, AttentionMask)> {
        let pruned = self.pruned_heads.for_layer(index);
        ModelConfig::new(&self.keys).configure(self.attention(), &pruned, source)
    }

    /// Whether layer `index` has a short convolution in the place of attention.
    pub(crate) fn is_convolution(&self, index: usize) -> bool {
        let kind = self.keys.get("layer_types").and_then(|kinds| kinds.get(index)).and_then(Value::as_str);
        self.row().block.has_convolutions && kind == Some(CONVOLUTION)
    }

    /// The first layer with attention.
    pub(crate) fn first_attention_layer(&self) -> Result<usize> {
        let first = (0..self.num_hidden_layers).find(|index| !self.is_convolution(*index));
        first.ok_or_else(|| Error::config("layer_types", "convolutions alone", "a layer with attention"))
    }

    /// The width of the hidden states that the model gives out: its own, or that of its last projection.
    pub(crate) fn output_size(&self) -> Result<usize> {
        self.row().final_projection.map_or(Ok(self.hidden_size), |(_, key)| {
            self.needed_number(key, MAX_MODEL_SIZE, ", the size of an embedding")
        })
    }

    /// The number of inner features of the third part of a block.
    pub(crate) fn size_of_gate(&self) -> Result<usize> {
        self.needed_number("hidden_size_per_layer_input", MAX_MODEL_SIZE, "")
    }

    /// Reads a norm of hidden states, of the kind of these blocks.
    pub(crate) fn norm(&self, block: &Block, size: usize, source: &AnySource) -> Result<Norm> {
        let bias = self.key_flag("norm_bias")?.unwrap_or(block.norm_bias);
        let bias = bias && block.norm_kind == NormKind::Layer;
        Norm::load(block.norm_kind, bias, size, self.layer_norm_eps, source)
    }

    /// The longest sequence, in tokens.
    pub fn max_tokens(&self) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position())
    }

    pub(crate) fn embedding_size(&self) -> usize {
        self.embedding_size.unwrap_or(self.hidden_size)
    }

    /// The position of a sequence's first token.
    pub(crate) fn first_position(&self) -> usize {
        self.padding_id().map_or(0, |pad| pad as usize + 1)
    }

    /// The id of padding in families whose positions skip it: all of its tokens have that id as their position.
    pub(crate) fn padding_id(&self) -> Option<u32> {
        match self.row().positions {
            AbsolutePositions::Table | AbsolutePositions::TableUnless(_) | AbsolutePositions::None => None,
            AbsolutePositions::AfterPad => Some(self.pad_token_id),
            AbsolutePositions::After(id) => Some(id),
        }
    }

    /// Whether a table of positions is added to the words.
    pub(crate) fn has_position_table(&self) -> Result<bool> {
        match self.row().positions {
            AbsolutePositions::None => Ok(false),
            AbsolutePositions::TableUnless(key) => Ok(self.key_flag(key)?.unwrap_or(true)),
            _ => Ok(true),
        }
    }

    pub(crate) fn has_types(&self) -> bool {
        match self.row().types {
            SegmentTypes::Always => true,
            SegmentTypes::Optional(_) => self.type_vocab_size > 0,
            SegmentTypes::Never => false,
        }
    }

    /// The model's row, as far as the configuration decides it; BERT's if there is none, which `validate` rejects.
    pub(crate) fn row(&self) -> &'static Model {
        self.find_row(|_| false).unwrap_or(&families::BERT_MODEL)
    }

    /// The model's row, where the tensors under the model's own prefix decide between models of one configuration.
    pub(crate) fn row_in(&self, source: &AnySource) -> &'static Model {
        self.find_row(|name| source.contains(name)).unwrap_or(&families::BERT_MODEL)
    }

    fn find_row(&self, holds: impl Fn(&str) -> bool) -> Option<&'static Model> {
        let stated = |key: &str| match key {
            "position_embedding_type" => Some(self.position_embedding_type.as_str()),
            key => self.keys.as_object().and_then(|keys| stated_text(keys, key)),
        };
        families::model(&self.model_type, stated, holds)
    }

    /// The prefix of each block in the order in which they run. ALBERT's repeat: its blocks share their weights.
    pub(crate) fn block_prefixes(&self) -> Vec<String> {
        self.row().block_prefixes(self.num_hidden_layers, self.num_hidden_groups, self.inner_group_num)
    }

    /// Whether the checkpoint is one of a causal language model: the first of its `architectures`.
    pub(crate) fn is_language_model(&self) -> bool {
        let architecture = self.key("architectures").and_then(|all| all.get(0)).and_then(Value::as_str);
        architecture.is_some_and(|name| name.ends_with("ForCausalLM"))
    }

    /// The activation that a key of the file names, by default GELU.
    pub(crate) fn stated_activation(&self, key: &'static str) -> Result<Activation> {
        let Some(value) = self.key(key) else { return Ok(Activation::Gelu) };
        let activation = Activation::deserialize(value);
        let activation = activation.map_err(|_| Error::config(key, value, "an activation that candle supports"))?;
        check_activation(key, activation)?;
        Ok(activation)
    }

    /// The task adapters that the checkpoint holds beside its weights, if it does: Jina embeddings v3.
    ///
    /// # Errors
    /// The errors of [`LoraTasks::from_config`].
    pub fn tasks(&self) -> Result<Option<LoraTasks>> {
        LoraTasks::from_config(&self.keys)
    }

    /// The value of a key of the file; null counts as absent.
    pub(crate) fn key(&self, key: &str) -> Option<&Value> {
        self.keys.get(key)
    }

    /// The mixtures of experts that the keys state; `None` if no block is a mixture.
    ///
    /// # Errors
    /// A number of experts that is absent, 0 or too large; more experts per token than there are.
    pub(crate) fn experts(&self) -> Result<Option<ExpertsConfig>> {
        const EVERY: &str = "moe_every_n_layers";
        const COUNT: &str = "num_experts";
        if !self.row().block.has_experts {
            return Ok(None);
        }
        let every = self.key_number(EVERY)?.unwrap_or(0);
        let normalized = self.key_flag("moe_normalize_expert_weights")?.unwrap_or(false);
        match every {
            0 => return Ok(None),
            // Nomic's own code makes no block a mixture then, which nobody who writes it can mean.
            1 => return Err(Error::config(EVERY, 1, "0, or at least 2")),
            _ => {}
        }
        let count = self.needed_number(COUNT, MAX_EXPERTS, "")?;
        let top_k = self.needed_number("moe_top_k", count, &format!(", the number of experts (`{COUNT}`)"))?;
        Ok(Some(ExpertsConfig { every, count, top_k, normalized }))
    }

    /// The text at a key of the file. A value of another kind is an error, because the default would be another model.
    pub(crate) fn key_text(&self, key: &'static str) -> Result<Option<&str>> {
        self.key_as(key, "a text", Value::as_str)
    }

    /// The whole number at a key of the file; see [`key_text`](Self::key_text).
    pub(crate) fn key_number(&self, key: &'static str) -> Result<Option<usize>> {
        self.key_as(key, "a whole number from 0", |value| usize::try_from(value.as_u64()?).ok())
    }

    /// The number from 1 to `most` at a key that must be there; `what` says more of it in the error.
    fn needed_number(&self, key: &'static str, most: usize, what: &str) -> Result<usize> {
        let found = self.key_number(key)?;
        let shown = || found.map_or("absent".to_string(), |number| number.to_string());
        let error = || Error::config(key, shown(), format!("1 to {most}{what}"));
        found.filter(|number| (1..=most).contains(number)).ok_or_else(error)
    }

    /// The boolean at a key of the file; see [`key_text`](Self::key_text).
    pub(crate) fn key_flag(&self, key: &'static str) -> Result<Option<bool>> {
        self.key_as(key, "true or false", Value::as_bool)
    }

    fn key_as<'a, T>(&'a self, key: &'static str, kind: &str, read: fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.key(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| Error::config(key, value, kind))
    }
}

use std::path::Path;

use candle_nn::Activation;
use serde_json::Value;

use super::family::{FAMILIES, Family, Positions};
use super::files::json;
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::position::{Position, RelativeBuckets};

/// The `config.json` of BERT or one of its kin: RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, MPNet, ALBERT. The
/// keys are BERT's; DistilBERT's own are read as them.
#[derive(Debug, Clone, serde::Deserialize)]
#[non_exhaustive]
pub struct BertConfig {
    /// `bert`, `roberta`, `xlm-roberta`, `camembert`, `electra`, `distilbert`, `mpnet` or `albert`.
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
    /// Number of segment types; DistilBERT and MPNet have none.
    #[serde(default)]
    pub type_vocab_size: usize,
    /// Added to the variance in layer normalisation.
    #[serde(default = "eps")]
    pub layer_norm_eps: f64,
    /// Width of the embeddings, if not `hidden_size` (ELECTRA, ALBERT).
    #[serde(default)]
    pub embedding_size: Option<usize>,
    /// Groups of layers that share their weights (ALBERT).
    #[serde(default = "one")]
    pub num_hidden_groups: usize,
    /// Layers of a group (ALBERT).
    #[serde(default = "one")]
    pub inner_group_num: usize,
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

fn absolute() -> String {
    "absolute".to_string()
}

fn eps() -> f64 {
    1e-12
}

fn one() -> usize {
    1
}

/// What DistilBERT calls BERT's keys.
const DISTILBERT: [(&str, &str); 7] = [
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("hidden_dim", "intermediate_size"),
    ("activation", "hidden_act"),
    ("dropout", "hidden_dropout_prob"),
    ("attention_dropout", "attention_probs_dropout_prob"),
];

impl BertConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// If the file is missing, is of another family than BERT, or lacks a key; the error holds the path.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut value: Value = json(path)?;
        // Another family is named before its missing keys are.
        let found = value.get("model_type").and_then(Value::as_str).unwrap_or("absent").to_string();
        let Some(family) = Family::of(&found) else {
            let reason = format!("model_type is {found}, expected {}", Family::names());
            return Err(Error::file(path, reason));
        };
        if let (Value::Object(keys), "distilbert") = (&mut value, family.name) {
            for (theirs, ours) in DISTILBERT {
                if let Some(value) = keys.remove(theirs) {
                    keys.insert(ours.to_string(), value);
                }
            }
        }
        if let (Value::Object(keys), Positions::AfterPad) = (&mut value, family.positions) {
            // Theirs where nothing is said; positions are counted from it.
            keys.entry("pad_token_id").or_insert(1.into());
        }
        let config: Self = serde_json::from_value(value).map_err(|e| Error::file(path, e))?;
        config.validate().map_err(|e| Error::file(path, e))?;
        Ok(config)
    }

    /// Checks what the model relies on.
    ///
    /// # Errors
    /// [`Error::Config`], with the field, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        let Some(family) = Family::of(&self.model_type) else {
            return Err(Error::config("model_type", &self.model_type, Family::names()));
        };
        if self.position_embedding_type != "absolute" {
            return Err(Error::config("position_embedding_type", &self.position_embedding_type, "absolute"));
        }
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", if family.has_types { self.type_vocab_size } else { 1 }),
            ("embedding_size", self.embedding_size()),
            ("num_hidden_groups", self.num_hidden_groups),
            ("inner_group_num", self.inner_group_num),
        ];
        if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::config(field, 0, "at least 1"));
        }
        // Layers that share their weights cost a file nothing.
        const MOST: usize = 1 << 12;
        let all = self.num_hidden_layers.saturating_mul(self.inner_group_num);
        if all > MOST {
            let allowed = format!("at most {MOST} layers in all");
            return Err(Error::config("num_hidden_layers", self.num_hidden_layers, allowed));
        }
        if self.pad_token_id as usize >= self.vocab_size {
            let allowed = format!("less than vocab_size = {}", self.vocab_size);
            return Err(Error::config("pad_token_id", self.pad_token_id, allowed));
        }
        if self.num_hidden_groups > self.num_hidden_layers {
            let allowed = format!("at most num_hidden_layers = {}", self.num_hidden_layers);
            return Err(Error::config("num_hidden_groups", self.num_hidden_groups, allowed));
        }
        if self.first_position() >= self.max_position_embeddings {
            let allowed = format!("more than {}, the position of the first token", self.first_position());
            return Err(Error::config("max_position_embeddings", self.max_position_embeddings, allowed));
        }
        if !(0.0..1.0).contains(&self.hidden_dropout_prob) {
            return Err(Error::config("hidden_dropout_prob", self.hidden_dropout_prob, "a number in [0, 1)"));
        }
        self.attention().validate()
    }

    /// The attention layer's part.
    pub fn attention(&self) -> AttentionConfig {
        let config = AttentionConfig::new(self.hidden_size, self.num_attention_heads);
        let config = config.with_dropout(self.attention_probs_dropout_prob);
        match self.model_type.as_str() {
            // Fixed in the model, whatever the size of its table.
            "mpnet" => config.with_position(Position::RelativeBuckets(RelativeBuckets::new(32, 128, true))),
            _ => config,
        }
    }

    /// The longest text, in tokens.
    pub fn max_tokens(&self) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position())
    }

    pub(super) fn embedding_size(&self) -> usize {
        self.embedding_size.unwrap_or(self.hidden_size)
    }

    /// The position of a text's first token.
    pub(super) fn first_position(&self) -> usize {
        match self.family().positions {
            Positions::From(first) => first,
            Positions::AfterPad => self.pad_token_id as usize + 1,
        }
    }

    pub(super) fn has_types(&self) -> bool {
        self.family().has_types
    }

    /// That of BERT if there is none, which `validate` does not let through.
    pub(super) fn family(&self) -> &'static Family {
        Family::of(&self.model_type).unwrap_or(&FAMILIES[0])
    }
}

//! `TaskHead`: which head a checkpoint has.

use std::path::Path;

use candle_attention::checkpoint::{AnySource, Checkpoint, WeightSource};
use candle_attention::{Error, Result};
use serde_json::Value;

use crate::families::task_heads::HeadLayers;
use crate::folder::ModelFolder;
use crate::gguf::{check_classifier, is_alone};
use crate::model::config::TextModelConfig;
use crate::model::places::Places;

/// A head that classifies, by what it classifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskHead {
    /// Texts or pairs of texts: [`TextClassifier`](crate::TextClassifier),
    /// [`CrossEncoder`](crate::CrossEncoder).
    SequenceClassification,
    /// Tokens: [`TokenClassifier`](crate::TokenClassifier).
    TokenClassification,
}

impl TaskHead {
    /// The classification head of a model folder: what `architectures` in its `config.json` states, or, if that is
    /// absent or names no such head, what its tensors show. Both kinds may have one name, `classifier`; without the
    /// pooler before it, it classifies tokens.
    ///
    /// # Errors
    /// A file that is missing or malformed; a checkpoint without such a head.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        if is_alone(folder)? {
            // Its heads are those of texts.
            return check_classifier(&Checkpoint::open(folder)?, "classifier").map(|()| Self::SequenceClassification);
        }
        let transformer = ModelFolder::new(folder).transformer()?;
        let config = ModelFolder::new(folder).transformer_config(&transformer)?;
        if let Some(stated) = Self::stated(&config) {
            return Ok(stated);
        }
        let source = Checkpoint::open(&transformer)?.at("", candle_core::DType::F32, &candle_core::Device::Cpu);
        let Places { root, body } = Places::find(&config, &AnySource::new(&source));
        let has = |name: &str| root.contains(&format!("{name}.weight"));
        let first = |HeadLayers { dense, pooler, .. }: HeadLayers| {
            if pooler { body.contains(&format!("{dense}.weight")) } else { has(dense) }
        };
        let row = config.row();
        match row.classifier {
            Some(names) if has(names.last) && first(names.first) => Ok(Self::SequenceClassification),
            _ if has(row.token_classifier.last) => Ok(Self::TokenClassification),
            _ => {
                let why = "the checkpoint has no head that classifies texts or tokens".to_string();
                Err(Error::MissingTensor { name: format!("{}.weight", row.token_classifier.last), why })
            }
        }
    }

    /// The head that the configuration states.
    fn stated(config: &TextModelConfig) -> Option<Self> {
        let names = config.key("architectures").and_then(Value::as_array)?;
        names.iter().filter_map(Value::as_str).find_map(|name| match name {
            name if name.ends_with("ForSequenceClassification") => Some(Self::SequenceClassification),
            name if name.ends_with("ForTokenClassification") => Some(Self::TokenClassification),
            _ => None,
        })
    }

    /// The task of the head, in words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SequenceClassification => "sequence classification",
            Self::TokenClassification => "token classification",
        }
    }

    /// Refuses a configuration that states the other head: both may have tensors of the same names.
    pub(crate) fn check(self, config: &TextModelConfig) -> Result<()> {
        match Self::stated(config) {
            Some(other) if other != self => {
                let [found, expected] = [other, self].map(|head| format!("a head for {}", head.name()));
                Err(Error::config("architectures", found, expected))
            }
            _ => Ok(()),
        }
    }
}

//! `EncoderKind`: what a model folder makes of texts.

use std::path::Path;

use candle_attention::Result;
use serde_json::Value;

use crate::folder::{ModelFolder, Module};
use crate::gguf;
use crate::router::routes;

/// The kind of vectors that an encoder makes of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncoderKind {
    /// One vector: [`SentenceEncoder`](crate::SentenceEncoder).
    Sentence,
    /// A weight for tokens of the vocabulary: [`SparseEncoder`](crate::SparseEncoder).
    Sparse,
    /// A vector per token: [`MultiVectorEncoder`](crate::MultiVectorEncoder).
    MultiVector,
}

/// `config_sentence_transformers.json`.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Stated {
    model_type: Option<String>,
}

impl EncoderKind {
    /// The kind of a model folder: what `config_sentence_transformers.json` states, or what its modules show. A folder
    /// without modules is ColBERT's if its `config.json` says so, and else that of a sentence encoder, as in
    /// sentence-transformers.
    ///
    /// # Errors
    /// A file that is malformed.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self> {
        if gguf::is_alone(folder.as_ref())? { Ok(Self::Sentence) } else { Self::detect(ModelFolder::new(&folder)) }
    }

    pub(crate) fn detect(folder: ModelFolder) -> Result<Self> {
        let stated: Stated = folder.json_or_default(&folder.path.join("config_sentence_transformers.json"))?;
        match stated.model_type.as_deref() {
            Some("SparseEncoder") => return Ok(Self::Sparse),
            Some("MultiVectorEncoder" | "ColBERT") => return Ok(Self::MultiVector),
            _ => {}
        }
        let Some(routes) = routes(folder)? else {
            let config: Value = folder.json_or_default(&folder.path.join("config.json"))?;
            return Ok(if is_colbert(&config) { Self::MultiVector } else { Self::Sentence });
        };
        let kinds: Vec<&str> = routes.modules().into_values().map(Module::kind).collect();
        let sparse = ["SpladePooling", "MLMTransformer", "SparseStaticEmbedding", "SparseAutoEncoder", "IDF"];
        Ok(if kinds.iter().any(|kind| sparse.contains(kind)) {
            Self::Sparse
        } else if kinds.contains(&"MultiVectorMask") {
            Self::MultiVector
        } else {
            Self::Sentence
        })
    }
}

/// Whether a `config.json` is one of ColBERT's own code.
pub(crate) fn is_colbert(config: &Value) -> bool {
    let names = config.get("architectures").and_then(Value::as_array);
    names.is_some_and(|names| names.iter().any(|name| name == "HF_ColBERT"))
}

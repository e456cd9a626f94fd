//! How a multi-vector model treats queries and documents: lengths, expansion of queries, markers, skipped tokens.
//!
//! Three formats have these: that of sentence-transformers 6, PyLate's, and that of ColBERT's own code. What each
//! leaves out has the default of the library that wrote it, as `MultiVectorEncoder` of sentence-transformers reads
//! them.

use std::path::PathBuf;

use candle_attention::{Error, Result};
use serde_json::Value;

use crate::folder::{FEATURES, ModelFolder, Module, TransformerSettings, yes};
use crate::kind::is_colbert;
use crate::prompts::Prompts;
use crate::sentence::modules::check_keys;

/// The characters of `string.punctuation` in Python.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// The number of tokens of an expanded query, if a model does not state it.
const QUERY_LENGTH: usize = 32;

/// The tokens that short queries are filled up with.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expansion {
    pub strategy: Strategy,
    /// Whether other tokens attend to those that are added.
    #[serde(default)]
    pub attend: bool,
    /// The token that is added; by default the mask token.
    #[serde(default)]
    pub token: Option<String>,
    /// The number of tokens of a query, or the smallest.
    pub length: usize,
    /// Whether the added tokens are given to the model and get vectors.
    #[serde(skip, default = "yes")]
    pub is_encoded: bool,
}

/// Whether longer queries are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Strategy {
    Fixed,
    Min,
}

/// The tokens that get no vector.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Mask {
    pub skiplist_words: Vec<String>,
    pub skiplist_tasks: Vec<String>,
    pub keep_only_token_ids: Option<Vec<u32>>,
}

impl Default for Mask {
    fn default() -> Self {
        let skiplist_tasks = vec!["document".to_string()];
        Self { skiplist_words: Vec::new(), skiplist_tasks, keep_only_token_ids: None }
    }
}

impl Mask {
    fn from_words(words: Option<Vec<String>>) -> Self {
        let skiplist_words = words.unwrap_or_else(|| PUNCTUATION.chars().map(String::from).collect());
        Self { skiplist_words, ..Self::default() }
    }
}

/// A module that is applied to the vectors of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layer {
    Dense(PathBuf),
    /// `linear.weight` beside the weights of the model.
    Inline,
    Normalize,
}

/// The settings of a model folder.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub transformer: PathBuf,
    pub layers: Vec<Layer>,
    pub mask: Mask,
    pub query_length: Option<usize>,
    pub document_length: Option<usize>,
    pub expansion: Option<Expansion>,
    pub prompts: Prompts,
    /// The markers that the prompts of earlier formats begin with: a marker is one token where the vocabulary has it.
    pub markers: Vec<String>,
    /// Whether scores are divided by the number of the query's tokens.
    pub is_mean: bool,
}

/// `config_sentence_transformers.json` of PyLate.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Pylate {
    model_type: Option<String>,
    similarity_fn_name: Option<String>,
    query_prefix: Option<String>,
    document_prefix: Option<String>,
    query_length: Option<usize>,
    document_length: Option<usize>,
    do_query_expansion: Option<bool>,
    attend_to_expansion_tokens: Option<bool>,
    skiplist_words: Option<Vec<String>>,
}

/// `artifact.metadata` of ColBERT.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct ColbertMetadata {
    query_token_id: Option<String>,
    doc_token_id: Option<String>,
    query_maxlen: Option<usize>,
    doc_maxlen: Option<usize>,
    mask_punctuation: Option<bool>,
    attend_to_mask_tokens: Option<bool>,
}

impl Settings {
    /// Reads the files of a folder.
    ///
    /// # Errors
    /// A file that is malformed; a model that gives no vectors of tokens; a module that this version cannot run.
    pub fn load(folder: ModelFolder, modules: Option<&[Module]>) -> Result<Self> {
        let stated: Pylate = folder.json_or_default(&folder.path.join("config_sentence_transformers.json"))?;
        let is_mean = stated.similarity_fn_name.as_deref() == Some("meanmaxsim");
        let prompts = Prompts::load(folder)?;
        match modules {
            Some(modules) if stated.model_type.as_deref() == Some("ColBERT") => {
                Self::pylate(folder, modules, stated, prompts)
            }
            Some(modules) => {
                let is_stated = stated.model_type.as_deref() == Some("MultiVectorEncoder");
                Ok(Self { is_mean, ..Self::modern(folder, modules, is_stated, prompts)? })
            }
            None => Self::colbert(folder, prompts),
        }
    }

    /// The modules of a model, without other settings.
    fn plain(folder: ModelFolder, modules: &[Module], prompts: Prompts) -> Result<Self> {
        let file = folder.path.join("modules.json");
        let mut mask = None;
        let mut layers = Vec::new();
        for module in &modules[1..] {
            let path = folder.path.join(&module.path);
            match module.kind() {
                "Dense" => layers.push(Layer::Dense(path)),
                "Normalize" => {
                    check_keys(folder, &path, "Normalize", "token_embeddings", "sentence_embedding")?;
                    layers.push(Layer::Normalize);
                }
                "MultiVectorMask" if mask.is_none() => mask = Some(folder.json::<Mask>(&path.join("config.json"))?),
                other => {
                    let expected = "Dense, Normalize or one MultiVectorMask";
                    return Err(Error::file(
                        &file,
                        format!("module `{other}` of a multi-vector model, expected {expected}"),
                    ));
                }
            }
        }
        Ok(Self {
            transformer: folder.path.join(&modules[0].path),
            layers,
            mask: mask.unwrap_or_default(),
            prompts,
            ..Self::default()
        })
    }

    /// `is_stated`: whether the folder says that it is a `MultiVectorEncoder`.
    fn modern(folder: ModelFolder, modules: &[Module], is_stated: bool, prompts: Prompts) -> Result<Self> {
        let is_masked = modules.iter().any(|module| module.kind() == "MultiVectorMask");
        if !is_masked && !is_stated {
            let reason = "no MultiVectorMask: the model gives one vector per text, not one per token";
            return Err(Error::file(folder.path.join("modules.json"), reason));
        }
        let settings = Self::plain(folder, modules, prompts)?;
        let stated = TransformerSettings::load(folder, &settings.transformer)?;
        stated.check_task(FEATURES, FEATURES)?;
        let TransformerSettings { query_length, document_length, query_expansion, file, .. } = stated;
        let expansion = query_expansion.map(serde_json::from_value::<Expansion>).transpose();
        let mut expansion = expansion.map_err(|e| Error::file(file, format!("query_expansion: {e}")))?;
        if let Some(expansion) = &mut expansion {
            // Added tokens get vectors although no other token attends to them.
            expansion.is_encoded = is_masked || expansion.attend;
        }
        Ok(Self { query_length, document_length, expansion, ..settings })
    }

    fn pylate(folder: ModelFolder, modules: &[Module], stated: Pylate, mut prompts: Prompts) -> Result<Self> {
        let mut markers = Vec::new();
        for (name, prefix) in [("query", stated.query_prefix), ("document", stated.document_prefix)] {
            let Some(prefix) = prefix else { continue };
            let prompt = prompts.stated(name).unwrap_or_default();
            let rest = prompt.strip_prefix(&prefix).unwrap_or(prompt);
            prompts.insert(name, format!("{prefix}{rest}"));
            markers.push(prefix);
        }
        let expands = stated.do_query_expansion != Some(false);
        let length = stated.query_length.unwrap_or(QUERY_LENGTH);
        let attend = stated.attend_to_expansion_tokens.unwrap_or(false);
        let expansion = Expansion { strategy: Strategy::Fixed, attend, token: None, length, is_encoded: true };
        let settings = Self::plain(folder, modules, prompts)?;
        let mut layers = settings.layers;
        // PyLate normalizes without a module that says so.
        layers.push(Layer::Normalize);
        Ok(Self {
            layers,
            mask: Mask::from_words(stated.skiplist_words),
            query_length: stated.query_length.filter(|_| !expands),
            document_length: stated.document_length,
            expansion: expands.then_some(expansion),
            markers,
            ..settings
        })
    }

    fn colbert(folder: ModelFolder, mut prompts: Prompts) -> Result<Self> {
        let file = folder.path.join("config.json");
        let config: Value = folder.json(&file)?;
        if !is_colbert(&config) {
            let reason = "neither modules.json beside it nor `HF_ColBERT` in architectures: no multi-vector model";
            return Err(Error::file(file, reason));
        }
        let stated: ColbertMetadata = folder.json_or_default(&folder.path.join("artifact.metadata"))?;
        let mut markers = Vec::new();
        let tokens = [("query", stated.query_token_id, "[unused0]"), ("document", stated.doc_token_id, "[unused1]")];
        for (name, token, default) in tokens {
            let marker = format!("{} ", token.as_deref().filter(|token| !token.is_empty()).unwrap_or(default));
            if prompts.stated(name).is_none() {
                prompts.insert(name, marker.clone());
            }
            markers.push(marker);
        }
        let length = stated.query_maxlen.unwrap_or(QUERY_LENGTH);
        let attend = stated.attend_to_mask_tokens.unwrap_or(false);
        let is_masked = stated.mask_punctuation != Some(false);
        Ok(Self {
            transformer: folder.path.to_path_buf(),
            layers: vec![Layer::Inline, Layer::Normalize],
            mask: Mask::from_words((!is_masked).then(Vec::new)),
            document_length: stated.doc_maxlen,
            expansion: Some(Expansion { strategy: Strategy::Fixed, attend, token: None, length, is_encoded: true }),
            prompts,
            markers,
            ..Self::default()
        })
    }
}

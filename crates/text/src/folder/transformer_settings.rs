//! `TransformerSettings`: what sentence-transformers states about the inputs of a transformer, in
//! `sentence_bert_config.json` or a file of another name.

use std::path::{Path, PathBuf};

use candle_attention::ensure;
use candle_attention::{Error, Result};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::folder::ModelFolder;

/// The names of the file, in the order in which sentence-transformers looks for them. The first one that states
/// something counts.
pub(crate) const TRANSFORMER_SETTINGS: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The `transformer_task` of a model whose hidden states are pooled, which is the default.
pub(crate) const FEATURES: &str = "feature-extraction";

/// Options of a tokenizer, of a model or of a call of a tokenizer that change no embedding here: where things come
/// from, how padding is done, what computes attention in which dtype.
const WITHOUT_EFFECT: [&str; 22] = [
    "add_pooling_layer",
    "attn_implementation",
    "cache_dir",
    "clean_up_tokenization_spaces",
    "device_map",
    "do_lower_case",
    "dtype",
    "local_files_only",
    "low_cpu_mem_usage",
    "pad_to_multiple_of",
    "padding",
    "padding_side",
    "return_attention_mask",
    "return_tensors",
    "revision",
    "subfolder",
    "token",
    "torch_dtype",
    "trust_remote_code",
    "use_cache",
    "use_fast",
    "use_safetensors",
];

/// The keys of the file.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Keys {
    max_seq_length: Option<Value>,
    do_lower_case: Option<bool>,
    transformer_task: Option<String>,
    modality_config: Option<Map<String, Value>>,
    module_output_name: Option<Value>,
    processing_kwargs: Option<Map<String, Value>>,
    query_length: Option<Value>,
    document_length: Option<Value>,
    query_expansion: Option<Value>,
    #[serde(alias = "model_args")]
    model_kwargs: Option<Map<String, Value>>,
    #[serde(alias = "tokenizer_args")]
    processor_kwargs: Option<Map<String, Value>>,
    #[serde(alias = "config_args")]
    config_kwargs: Option<Map<String, Value>>,
    tokenizer_name_or_path: Option<Value>,
    unpad_inputs: Option<IgnoredAny>,
}

/// The settings of a transformer. The default is that of a folder without such a file.
#[derive(Debug, Default)]
pub(crate) struct TransformerSettings {
    /// The file that was read.
    pub file: PathBuf,
    /// The longest input in tokens, special ones included.
    pub max_length: Option<usize>,
    /// The longest query and the longest document in tokens.
    pub query_length: Option<usize>,
    pub document_length: Option<usize>,
    /// Whether texts are lower-cased.
    pub lower_case: bool,
    /// Whether special tokens are put around a text.
    pub special_tokens: bool,
    /// The task that the model is loaded for.
    pub task: Option<String>,
    pub query_expansion: Option<Value>,
    /// Keys of `config.json` in the place of those of the file.
    pub config: Map<String, Value>,
    /// The kind of input `message`: texts are read through the chat template.
    pub message: Option<Value>,
    /// Variables of the chat template.
    pub chat_template: Map<String, Value>,
}

impl TransformerSettings {
    /// Reads the file in the folder of a transformer. A folder without `modules.json` is not one of
    /// sentence-transformers, which then reads none.
    ///
    /// # Errors
    /// A key that is not known, or a value that would change embeddings and is not applied here.
    pub fn load(folder: ModelFolder, transformer: &Path) -> Result<Self> {
        let none = Self { special_tokens: true, ..Self::default() };
        if !folder.holds(&folder.path.join("modules.json"))? {
            return Ok(none);
        }
        for name in TRANSFORMER_SETTINGS {
            let file = transformer.join(name);
            let stated: Option<Map<String, Value>> = folder.optional(&file)?;
            if let Some(stated) = stated.filter(|stated| !stated.is_empty()) {
                let keys = serde_json::from_value(stated.into()).map_err(|e| Error::file(&file, e))?;
                return Self::new(keys, file);
            }
        }
        Ok(none)
    }

    fn new(keys: Keys, file: PathBuf) -> Result<Self> {
        let unsupported = |key: &str, found: &Value| {
            Error::file(&file, format!("`{key}` is {found}, which this version does not apply"))
        };
        let stated = |key: &str, value: Option<Value>| match value {
            Some(value) => length(&value).map(Some).ok_or_else(|| {
                Error::file(&file, format!("`{key}` is {value}, expected a whole number of tokens from 1"))
            }),
            None => Ok(None),
        };
        let mut settings = Self {
            max_length: stated("max_seq_length", keys.max_seq_length)?,
            query_length: stated("query_length", keys.query_length)?,
            document_length: stated("document_length", keys.document_length)?,
            lower_case: keys.do_lower_case.unwrap_or(false),
            special_tokens: true,
            task: keys.transformer_task,
            query_expansion: keys.query_expansion.filter(|expansion| !expansion.is_null()),
            ..Self::default()
        };
        if let Some(found) = keys.tokenizer_name_or_path.filter(|found| !found.is_null()) {
            return Err(unsupported("tokenizer_name_or_path", &found));
        }
        for (kwargs, options) in [
            ("model_kwargs", keys.model_kwargs),
            ("processor_kwargs", keys.processor_kwargs),
            ("config_kwargs", keys.config_kwargs),
        ] {
            for (option, value) in options.unwrap_or_default() {
                let is_applied = match (kwargs, option.as_str()) {
                    ("processor_kwargs", "model_max_length") => {
                        settings.max_length = length(&value);
                        settings.max_length.is_some()
                    }
                    ("processor_kwargs", "truncation_side") => value == "right",
                    (_, known) if WITHOUT_EFFECT.contains(&known) => true,
                    ("config_kwargs", key) => {
                        settings.config.insert(key.to_string(), value.clone());
                        true
                    }
                    _ => false,
                };
                ensure!(is_applied, unsupported(&format!("{kwargs}.{option}"), &value));
            }
        }
        // Options of all kinds of input come after those of texts.
        let mut processing: Vec<_> = keys.processing_kwargs.unwrap_or_default().into_iter().collect();
        processing.sort_by_key(|(key, _)| key == "common");
        for (key, options) in processing {
            let Value::Object(options) = options else {
                return Err(unsupported(&format!("processing_kwargs.{key}"), &options));
            };
            for (option, value) in options {
                if !settings.apply(&key, &option, &value) {
                    return Err(unsupported(&format!("processing_kwargs.{key}.{option}"), &value));
                }
            }
        }
        for (key, kind) in keys.modality_config.unwrap_or_default() {
            if key == "message" {
                settings.message = Some(kind);
            } else if key == "text" && !settings.is_default(&kind, keys.module_output_name.as_ref()) {
                return Err(unsupported("modality_config.text", &kind));
            }
        }
        Ok(Self { file, ..settings })
    }

    /// Applies an option of `processing_kwargs`; false if it is not one that can be.
    fn apply(&mut self, key: &str, option: &str, value: &Value) -> bool {
        /// Options of a call that renders a template, not variables of it.
        const NO_VARIABLES: [&str; 6] =
            ["max_length", "padding", "restore_suffix", "return_tensors", "tokenize", "truncation"];
        match (key, option, value) {
            ("text" | "common", "max_length", _) if length(value).is_some() => {
                self.max_length = length(value);
                (self.query_length, self.document_length) = (None, None);
                true
            }
            ("text" | "common", "add_special_tokens", Value::Bool(adds)) => {
                self.special_tokens = *adds;
                true
            }
            ("text" | "common", "truncation", Value::Bool(true)) => true,
            ("text" | "common", "truncation", Value::String(side)) => side == "longest_first",
            ("text" | "common", option, _) => WITHOUT_EFFECT.contains(&option),
            ("audio" | "image" | "video", ..) => true,
            ("chat_template", option, _) if !NO_VARIABLES.contains(&option) => {
                self.chat_template.insert(option.to_string(), value.clone());
                true
            }
            _ => false,
        }
    }

    /// Whether this way from texts to outputs, of this name, is that of the task.
    fn is_default(&self, text: &Value, output: Option<&Value>) -> bool {
        let (method_output, name) = match self.task.as_deref() {
            None | Some(FEATURES) => ("last_hidden_state", "token_embeddings"),
            Some("fill-mask") => ("logits", "token_embeddings"),
            Some("sequence-classification") => ("logits", "scores"),
            Some(_) => ("logits", "causal_logits"),
        };
        let is = |key: &str, expected: &str| text.get(key).is_none_or(|found| found == expected);
        is("method", "forward") && is("method_output_name", method_output) && output.is_none_or(|output| output == name)
    }

    /// Checks that queries are not filled up with further tokens, which only multi-vector models can leave out.
    pub fn check_no_expansion(&self) -> Result<()> {
        match &self.query_expansion {
            Some(found) => {
                let reason = format!("query_expansion is {found}, which this version applies to multi-vector models");
                Err(Error::file(&self.file, reason))
            }
            None => Ok(()),
        }
    }

    /// Checks that the model is loaded for this task. `default` is the task of a file that states none.
    pub fn check_task(&self, expected: &str, default: &str) -> Result<()> {
        match self.task.as_deref().unwrap_or(default) {
            task if task == expected => Ok(()),
            other => Err(Error::file(&self.file, format!("transformer_task is `{other}`, expected `{expected}`"))),
        }
    }
}

/// A number of tokens: whole, from 1.
fn length(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|length| usize::try_from(length).ok()).filter(|length| *length > 0)
}

//! `TokenizerConfig`: what `tokenizer_config.json` states beside `tokenizer.json`.

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::{Error, Result};
use serde_json::Value;

use crate::folder::ModelFolder;

/// `tokenizer_config.json`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct TokenizerConfig {
    /// About 1e30 where no limit was known; `Infinity`, a number of Python alone, is read as a text.
    model_max_length: Option<Value>,
    model_input_names: Option<Vec<String>>,
    tokenizer_class: Option<String>,
    mask_token: Option<Token>,
    eos_token: Option<Token>,
    truncation_side: Option<String>,
    unk_token: Option<Token>,
    /// Of BERT's tokenizers.
    pub do_lower_case: Option<bool>,
    pub strip_accents: Option<bool>,
    pub tokenize_chinese_chars: Option<bool>,
    /// Of tokenizers of bytes and Unigram tokenizers.
    pub add_prefix_space: Option<bool>,
    /// Whether special tokens in a text are read as its characters.
    pub split_special_tokens: Option<bool>,
    added_tokens_decoder: Option<BTreeMap<String, Token>>,
    additional_special_tokens: Option<Vec<Token>>,
}

/// A special token: its text, or an object that holds it.
#[derive(Debug, serde::Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Object { content: String },
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl TokenizerConfig {
    /// Reads the file. Its `padding_side` has no effect: texts are run without padding.
    pub fn load(folder: ModelFolder, transformer: &Path) -> Result<Self> {
        let path = transformer.join("tokenizer_config.json");
        let config: Self = folder.json_or_default(&path)?;
        if let Some(other) = config.truncation_side.as_deref().filter(|side| *side != "right") {
            return Err(Error::file(&path, format!("truncation_side is `{other}`, expected `right`")));
        }
        match &config.model_max_length {
            None | Some(Value::Number(_)) => Ok(config),
            Some(Value::String(infinity)) if infinity == "Infinity" => Ok(config),
            Some(other) => Err(Error::file(&path, format!("model_max_length is {other}, expected a number of tokens"))),
        }
    }

    /// Whether the tokenizer gives segment types to the model. Where this is not stated, transformers 4 gives them, and
    /// so do the classes of transformers 5 that belong to models with types, but not its general class.
    pub fn gives_types(&self) -> bool {
        match &self.model_input_names {
            Some(names) => names.iter().any(|name| name == "token_type_ids"),
            None => self.tokenizer_class.as_deref() != Some("TokenizersBackend"),
        }
    }

    /// Whether the tokenizer is one of a class with keys of its own, not the general one, which follows
    /// `tokenizer.json` alone.
    pub fn has_own_class(&self) -> bool {
        let general = ["TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer"];
        self.tokenizer_class.as_deref().is_some_and(|class| !general.contains(&class))
    }

    /// The tokens that are to be found in a text before it is split.
    pub fn added_tokens(&self) -> impl Iterator<Item = &str> {
        let decoder = self.added_tokens_decoder.iter().flat_map(BTreeMap::values);
        decoder.chain(self.additional_special_tokens.iter().flatten()).map(Token::text)
    }

    /// The longest input that is stated, in tokens. A cast from float to integer saturates.
    pub fn max_length(&self) -> Option<usize> {
        match self.model_max_length.as_ref()? {
            Value::String(_) => Some(usize::MAX),
            length => length.as_f64().map(|n| n as usize),
        }
    }

    pub fn mask_token(&self) -> Option<&str> {
        self.mask_token.as_ref().map(Token::text)
    }

    pub fn eos_token(&self) -> Option<&str> {
        self.eos_token.as_ref().map(Token::text)
    }

    pub fn unk_token(&self) -> Option<&str> {
        self.unk_token.as_ref().map(Token::text)
    }
}

//! The chat template of a model, as its folder states it.

use std::fmt;
use std::path::Path;

use candle_attention::io::utf8_text;
use candle_attention::{Error, Result};
use serde_json::{Map, Value, json};

use crate::folder::{ModelFolder, TransformerSettings};
pub(crate) use crate::gguf::CHAT_TEMPLATE;

/// The longest template, in bytes. Those of rerankers have up to 4,000.
pub(super) const MAX_TEMPLATE_BYTES: u64 = 1 << 14;

/// Keys of the tokenizer that a template may name.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"];

/// A message: who says it, and what.
pub(crate) type Message<'a> = (&'static str, &'a str);

/// A chat template and what it is rendered with beside the messages.
#[derive(Clone)]
pub(crate) struct ChatTemplate {
    #[cfg(feature = "tasks")]
    pub(super) compiled: minijinja::Environment<'static>,
    pub(super) variables: Map<String, Value>,
    /// Whether the content of a message is a list of parts instead of a text.
    pub(super) structured: bool,
}

/// Without the template, which can be long.
impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("structured", &self.structured).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// The template through which the model of a folder reads every text, `None` if it reads texts as they are: as
    /// sentence-transformers does, that is stated in a folder that it wrote, and follows from a template in any other.
    ///
    /// # Errors
    /// A template that is missing, too long, or not one that this version runs.
    pub fn load(folder: ModelFolder, transformer: &Path, has_modules: bool) -> Result<Option<Self>> {
        let settings = TransformerSettings::load(folder, transformer)?;
        let message = settings.message;
        if has_modules && message.is_none() {
            return Ok(None);
        }
        let mut tokenizer: Map<String, Value> = folder.json_or_default(&transformer.join("tokenizer_config.json"))?;
        let path = transformer.join(CHAT_TEMPLATE);
        let source = match (folder.holds(&path)?, tokenizer.remove("chat_template")) {
            (true, _) => {
                let bytes = folder.read(&path, MAX_TEMPLATE_BYTES)?;
                utf8_text(&bytes, 1).map_err(|reason| Error::file(&path, reason))?.to_string()
            }
            (false, Some(Value::String(source))) => source,
            (false, None | Some(Value::Null)) if !has_modules => return Ok(None),
            (false, other) => {
                let found = other.map_or("none".to_string(), |_| "a set of templates".to_string());
                return Err(Error::file(transformer, format!("the chat template is {found}, expected one template")));
            }
        };
        let format = message.as_ref().and_then(|message| message.get("format")).and_then(Value::as_str);
        let structured = match format {
            Some("structured") => true,
            Some("flat") => false,
            // The signs by which sentence-transformers tells them apart.
            _ => ["content[0]", ".type", "'type'", "\"type\"", "message.content["]
                .iter()
                .any(|sign| source.contains(sign)),
        };
        let content = |token: &Value| token.get("content").unwrap_or(token).clone();
        let mut variables: Map<String, Value> = SPECIAL_TOKENS
            .iter()
            .filter_map(|key| Some((key.to_string(), content(tokenizer.get(*key)?))))
            .chain([("add_generation_prompt".to_string(), json!(false))])
            .collect();
        variables.extend(settings.chat_template);
        #[cfg(feature = "tasks")]
        let compiled = super::jinja::compile(source).map_err(|e| Error::file(transformer, e))?;
        let template = Self {
            #[cfg(feature = "tasks")]
            compiled,
            variables,
            structured,
        };
        #[cfg(feature = "tasks")]
        template.check().map_err(|e| Error::file(transformer, e))?;
        Ok(Some(template))
    }
}

//! The options of a call.

use candle_attention_text::{EncodeOptions, Task};
use js_sys::{Array, Number, Object};
use wasm_bindgen::{JsCast, JsError, JsValue};

use crate::error::{Result, value};

/// What a user sets; the rest is as in `EncodeOptions`, whose names these are.
#[derive(Default)]
pub struct Options {
    batch_size: Option<usize>,
    max_batch_tokens: Option<usize>,
    max_length: Option<usize>,
    normalize_embeddings: bool,
    prompt: Option<String>,
    prompt_name: Option<String>,
    task: Option<String>,
    truncate_dim: Option<usize>,
}

impl Options {
    /// Reads the copy of a user's object that `js/check.js` makes: reading it runs no code of the user, whose exceptions
    /// would leave everything of this call behind. `undefined` sets nothing, and neither does a property that is `undefined`.
    ///
    /// # Errors
    /// An option that does not exist, or has a value of another type.
    pub fn read(from: &JsValue) -> Result<Self> {
        let mut options = Self::default();
        if from.is_undefined() {
            return Ok(options);
        }
        for entry in Object::entries(from.unchecked_ref()) {
            let entry: Array = entry.unchecked_into();
            options.set(&entry.get(0).as_string().unwrap_or_default(), &entry.get(1))?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, to: &JsValue) -> Result<()> {
        match name {
            "batchSize" => self.batch_size = count(name, to)?,
            "maxBatchTokens" => self.max_batch_tokens = count(name, to)?,
            "maxLength" => self.max_length = count(name, to)?,
            "normalizeEmbeddings" => self.normalize_embeddings = flag(name, to)?,
            "prompt" => self.prompt = string(name, to)?,
            "promptName" => self.prompt_name = string(name, to)?,
            "task" => self.task = string(name, to)?,
            "truncateDim" => self.truncate_dim = count(name, to)?,
            _ => {
                let expected = "batchSize, maxBatchTokens, maxLength, normalizeEmbeddings, prompt, promptName, task or \
                                truncateDim";
                return Err(JsError::new(&format!("`{name}` is not an option, expected {expected}")));
            }
        }
        Ok(())
    }

    /// The options as the crate takes them.
    pub fn encode(&self) -> EncodeOptions<'_> {
        let mut options = EncodeOptions::default();
        options.batch_size = self.batch_size.unwrap_or(options.batch_size);
        options.max_batch_tokens = self.max_batch_tokens.unwrap_or(options.max_batch_tokens);
        options.max_length = self.max_length;
        options.normalize_embeddings = self.normalize_embeddings;
        options.prompt = self.prompt.as_deref();
        options.prompt_name = self.prompt_name.as_deref();
        options.task = self.task.as_deref().map(Task::from);
        options.truncate_dim = self.truncate_dim;
        options
    }

    /// What queries share with the texts that were embedded with these options.
    pub fn for_queries(&self) -> Self {
        let &Self { max_length, normalize_embeddings, truncate_dim, .. } = self;
        Self { max_length, normalize_embeddings, truncate_dim, ..Self::default() }
    }
}

fn count(name: &str, to: &JsValue) -> Result<Option<usize>> {
    if to.is_undefined() {
        return Ok(None);
    }
    let whole = |number: &f64| number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number);
    match to.as_f64().filter(whole) {
        Some(number) => Ok(Some(number as usize)),
        None => Err(value(name, &shown(to), "a whole number below 2^32")),
    }
}

fn flag(name: &str, to: &JsValue) -> Result<bool> {
    match to.as_bool() {
        Some(flag) => Ok(flag),
        None if to.is_undefined() => Ok(false),
        None => Err(value(name, &shown(to), "true or false")),
    }
}

fn string(name: &str, to: &JsValue) -> Result<Option<String>> {
    match to.as_string() {
        None if !to.is_undefined() => Err(value(name, &shown(to), "a string")),
        string => Ok(string),
    }
}

/// A number as it is, another value by its type.
fn shown(found: &JsValue) -> String {
    match found.as_f64() {
        Some(number) => Number::from(number).to_string_with_radix(10).map(String::from).unwrap_or_default(),
        None if found.is_null() => "null".to_string(),
        None => format!("of type {}", found.js_typeof().as_string().unwrap_or_default()),
    }
}

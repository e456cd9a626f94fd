//! The chat template of a model: messages by role as one text, in the part of Jinja that templates of rerankers use.
//!
//! A template is a program from a file. Loops, conditions, the filters below and names for values are run; what could
//! make a value longer than what it is made of is refused, so that a template needs no more memory than its texts.

use std::fmt;
use std::io::{Error as IoError, Write};
use std::path::Path;

use candle_attention::{Error, Result};
use minijinja::{Environment, filters, tests, value::Value as JinjaValue};
use serde_json::{Map, Value, json};

use crate::folder::ModelFolder;
use crate::text::tokenizer::MAX_TEXT_BYTES;

/// The file of a model's template.
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The longest template, in bytes. Those of chat models have up to 20,000.
const MAX_TEMPLATE_BYTES: u64 = 1 << 16;

/// The most instructions that a template may run. One of a reranker runs some 100.
const MAX_INSTRUCTIONS: u64 = 100_000;

/// Statements that put no values together.
const STATEMENTS: [&str; 7] = ["if", "elif", "else", "endif", "for", "endfor", "set"];

/// Operators that put values together, and the beginning of a map.
const JOINING: [char; 5] = ['*', '~', '+', '%', '{'];

/// Words before a value that are none themselves.
const KEYWORDS: [&str; 10] = ["and", "elif", "else", "for", "if", "in", "is", "not", "or", "set"];

/// Keys of the tokenizer that a template may name.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"];

/// Options of `chat_template` that are no variables of the template.
const NO_VARIABLES: [&str; 6] = ["max_length", "padding", "restore_suffix", "return_tensors", "tokenize", "truncation"];

/// A message: who says it, and what.
pub(crate) type Message<'a> = (&'static str, &'a str);

/// A chat template and what it is rendered with beside the messages.
#[derive(Clone)]
pub(crate) struct ChatTemplate {
    source: String,
    variables: Map<String, Value>,
    /// Whether the content of a message is a list of parts instead of a text.
    structured: bool,
}

/// Without the template, which can be long.
impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("structured", &self.structured).finish_non_exhaustive()
    }
}

/// What `sentence_bert_config.json` says of the kinds of input.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Inputs {
    modality_config: Option<Map<String, Value>>,
    processing_kwargs: Map<String, Value>,
}

impl ChatTemplate {
    /// The template through which the model of a folder reads every text, `None` if it reads texts as they are: as
    /// sentence-transformers does, that is stated in a folder that it wrote, and follows from a template in any other.
    ///
    /// # Errors
    /// A template that is missing, too long, or not one that this version runs.
    pub fn load(folder: ModelFolder, transformer: &Path, has_modules: bool) -> Result<Option<Self>> {
        let config = transformer.join("sentence_bert_config.json");
        let inputs: Inputs = if has_modules { folder.json_or_default(&config)? } else { Inputs::default() };
        let message = inputs.modality_config.as_ref().and_then(|kinds| kinds.get("message"));
        if has_modules && message.is_none() {
            return Ok(None);
        }
        let mut tokenizer: Map<String, Value> = folder.json_or_default(&transformer.join("tokenizer_config.json"))?;
        let path = transformer.join(CHAT_TEMPLATE);
        let source = match (folder.holds(&path)?, tokenizer.remove("chat_template")) {
            (true, _) => String::from_utf8_lossy(&folder.read(&path, MAX_TEMPLATE_BYTES)?).into_owned(),
            (false, Some(Value::String(source))) => source,
            (false, None | Some(Value::Null)) if !has_modules => return Ok(None),
            (false, other) => {
                let found = other.map_or("none".to_string(), |_| "a set of templates".to_string());
                return Err(Error::file(transformer, format!("the chat template is {found}, expected one template")));
            }
        };
        let format = message.and_then(|message| message.get("format")).and_then(Value::as_str);
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
        for (key, value) in inputs.processing_kwargs {
            let Value::Object(options) = value else { return Err(unsupported(&config, &key)) };
            for (option, value) in options {
                if key != "chat_template" || NO_VARIABLES.contains(&option.as_str()) {
                    return Err(unsupported(&config, &format!("{key}.{option}")));
                }
                variables.insert(option, value);
            }
        }
        let template = Self { source, variables, structured };
        template.check().map_err(|e| Error::file(transformer, e))?;
        Ok(Some(template))
    }

    /// Checks that the template does only what this version runs, and that both texts of a pair reach its output.
    fn check(&self) -> Result<()> {
        if self.source.len() as u64 > MAX_TEMPLATE_BYTES {
            let allowed = format!("at most {MAX_TEMPLATE_BYTES}");
            return Err(Error::value("the length of the chat template in bytes", self.source.len(), allowed));
        }
        for code in code(&self.source) {
            check_code(code)?;
        }
        let render = |query, document| self.render(&[("query", query), ("document", document)]);
        let base = render("alpha", "bravo")?;
        for (role, other) in [("query", render("charlie", "bravo")?), ("document", render("alpha", "foxtrot")?)] {
            if other == base {
                let expected = format!("the text of the role `{role}` in its output");
                return Err(Error::value("the chat template", "without it", expected));
            }
        }
        Ok(())
    }

    /// The messages as one text.
    ///
    /// # Errors
    /// A template that fails, or whose output is longer than a text may be.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let message = |(role, text): &Message| match self.structured {
            true => json!({"role": role, "content": [{"type": "text", "text": text}]}),
            false => json!({"role": role, "content": text}),
        };
        let mut variables = self.variables.clone();
        variables.insert("messages".to_string(), messages.iter().map(message).collect());
        let failed = |e: minijinja::Error| Error::value("the chat template", e, "one that this version runs");
        let environment = environment();
        let template = environment.template_from_str(&self.source).map_err(failed)?;
        let mut output = Limited(Vec::new());
        template.render_captured_to(JinjaValue::from_serialize(&variables), &mut output).map_err(failed)?;
        Ok(String::from_utf8_lossy(&output.0).into_owned())
    }
}

fn unsupported(path: &Path, key: &str) -> Error {
    Error::file(path, format!("processing_kwargs states `{key}`, which this version does not read"))
}

/// Filters and tests that make nothing longer, and the settings with which transformers renders templates.
fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.add_filter("default", filters::default);
    environment.add_filter("first", filters::first);
    environment.add_filter("last", filters::last);
    environment.add_filter("length", filters::length);
    environment.add_filter("list", filters::list);
    environment.add_filter("map", filters::map);
    environment.add_filter("rejectattr", filters::rejectattr);
    environment.add_filter("selectattr", filters::selectattr);
    environment.add_filter("trim", trimmed);
    environment.add_test("defined", tests::is_defined);
    environment.add_test("eq", tests::is_eq);
    environment.add_test("equalto", tests::is_eq);
    environment.add_test("ne", tests::is_ne);
    environment.add_test("none", tests::is_none);
    environment.add_test("string", tests::is_string);
    environment
}

/// A text without the white space around it. minijinja's own filter makes texts of other values.
fn trimmed(value: JinjaValue) -> std::result::Result<JinjaValue, minijinja::Error> {
    let text = value.as_str().map(|text| JinjaValue::from(text.trim()));
    text.ok_or_else(|| minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, "`trim` of what is no text"))
}

/// The statements and expressions of a template, without their delimiters and texts in quotes; a statement begins with
/// `%`.
fn code(source: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (kind, end) = match rest[start + 1..].chars().next() {
            Some('{') => ('{', "}}"),
            Some('%') => ('%', "%}"),
            Some('#') => {
                rest = rest.split_once("#}").map_or("", |(_, after)| after);
                continue;
            }
            _ => {
                rest = &rest[start + 1..];
                continue;
            }
        };
        let inside = &rest[start + 2..];
        let mut quote = None;
        let mut length = inside.len();
        let mut part = String::new();
        let mut escaped = false;
        for (at, c) in inside.char_indices() {
            match quote {
                Some(_) if escaped => escaped = false,
                Some(_) if c == '\\' => escaped = true,
                Some(open) if c == open => quote = None,
                Some(_) => {}
                None if inside[at..].starts_with(end) => {
                    length = at;
                    break;
                }
                None if c == '"' || c == '\'' => quote = Some(c),
                None => part.push(c),
            }
        }
        let part = part.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        parts.push(if kind == '%' { format!("%{part}") } else { part.to_string() });
        rest = inside.get(length + 2..).unwrap_or_default();
    }
    parts
}

/// Checks that a statement or an expression puts no values together.
fn check_code(code: String) -> Result<()> {
    let (statement, code) = match code.strip_prefix('%') {
        Some(statement) => (statement.split_whitespace().next(), statement.to_string()),
        None => (None, code),
    };
    let refused = |what: String| {
        let expected = "values as they are: this version puts none together inside a template";
        Err(Error::value("the chat template", what, expected))
    };
    match statement {
        Some(name) if !STATEMENTS.contains(&name) => return refused(format!("a statement `{name}`")),
        // A block between `set` and `endset` would be a value made of others.
        Some("set") if !code.contains('=') => return refused("a `set` without a value".to_string()),
        _ => {}
    }
    if let Some(operator) = code.chars().find(|c| JOINING.contains(c)) {
        return refused(format!("an operator `{operator}`"));
    }
    match makes_list(&code) {
        true => refused("a list".to_string()),
        false => Ok(()),
    }
}

/// Whether code without quoted texts makes a list: by brackets that index nothing, or by a comma outside of a call.
fn makes_list(code: &str) -> bool {
    let mut calls = Vec::new();
    for (at, c) in code.char_indices() {
        let before = code[..at].trim_end();
        let word = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let after_value = before.ends_with([']', ')']) || !word.is_empty() && !KEYWORDS.contains(&word);
        match c {
            '[' if !after_value => return true,
            '(' | '[' => calls.push(c == '(' && after_value),
            ')' | ']' => drop(calls.pop()),
            ',' if calls.last() != Some(&true) => return true,
            _ => {}
        }
    }
    false
}

/// A text of at most [`MAX_TEXT_BYTES`].
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT_BYTES {
            return Err(IoError::other(format!("its output has more than {MAX_TEXT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

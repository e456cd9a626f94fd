//! Rendering a chat template: messages by role as one text, in the part of Jinja that templates of rerankers use.
//!
//! A template is a program from a file. Loops, conditions, the filters below and names for values are run; what could
//! make a value longer than what it is made of is refused, so that a template needs no more memory than its texts.

use std::io::{Error as IoError, Write};

use candle_attention::{Error, Result};
use minijinja::{Environment, filters, tests, value::Value as JinjaValue};
use serde_json::json;

use crate::text::chat_template::{ChatTemplate, MAX_TEMPLATE_BYTES, Message};
use crate::text::tokenizer::MAX_TEXT_BYTES;

/// The most instructions that a template may run. One of a reranker runs some 100.
const MAX_INSTRUCTIONS: u64 = 100_000;

/// Statements that put no values together.
const STATEMENTS: [&str; 7] = ["if", "elif", "else", "endif", "for", "endfor", "set"];

/// Operators that put values together, and the beginning of a map.
const JOINING: [char; 5] = ['*', '~', '+', '%', '{'];

/// Words before a value that are none themselves.
const KEYWORDS: [&str; 10] = ["and", "elif", "else", "for", "if", "in", "is", "not", "or", "set"];

impl ChatTemplate {
    /// Checks that the template does only what this version runs, and that both texts of a pair reach its output.
    pub(super) fn check(&self) -> Result<()> {
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

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

/// The most statements and expressions of a template, and tokens of each. Those of rerankers have a few dozen. Parser
/// and compiler recurse, and 3,000 still fit on a stack of 2 MB.
const MAX_PARTS: usize = 200;

/// Statements that put no values together.
const STATEMENTS: [&str; 7] = ["if", "elif", "else", "endif", "for", "endfor", "set"];

/// Keywords. Behind any other word, a bracket indexes a value or calls it.
const KEYWORDS: [&str; 10] = ["and", "elif", "else", "for", "if", "in", "is", "not", "or", "set"];

/// Checks that a template does only what this version runs, and compiles it.
pub(super) fn compile(source: String) -> Result<Environment<'static>> {
    let parts = code(&source);
    let longest = parts.iter().map(Vec::len).max().unwrap_or(0);
    let sizes = [("bytes", source.len(), MAX_TEMPLATE_BYTES as usize), ("statements", parts.len(), MAX_PARTS)];
    for (what, found, most) in sizes.into_iter().chain([("words and signs in a statement", longest, MAX_PARTS)]) {
        if found > most {
            let what = format!("the number of {what} of the chat template");
            return Err(Error::value(what, found, format!("at most {most}")));
        }
    }
    parts.iter().try_for_each(|tokens| check_code(tokens))?;
    let mut environment = environment();
    environment.add_template_owned("chat_template", source).map_err(failed)?;
    Ok(environment)
}

fn failed(e: minijinja::Error) -> Error {
    Error::value("the chat template", e, "one that this version runs")
}

impl ChatTemplate {
    /// Checks that both texts of a pair reach the output.
    pub(super) fn check(&self) -> Result<()> {
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
        let message = |(role, text): &Message| {
            if self.structured {
                json!({"role": role, "content": [{"type": "text", "text": text}]})
            } else {
                json!({"role": role, "content": text})
            }
        };
        let mut variables = self.variables.clone();
        variables.insert("messages".to_string(), messages.iter().map(message).collect());
        let template = self.compiled.get_template("chat_template").map_err(failed)?;
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
    text.ok_or_else(|| {
        minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, "`trim` of something that is not a text")
    })
}

/// The statements and expressions of a template as tokens: words, quoted texts, and signs of one character. The first
/// token of a statement is `%`, that of an expression `{`. Delimiters and comments are found as minijinja finds them.
fn code(source: &str) -> Vec<Vec<&str>> {
    let mut parts = Vec::new();
    let mut rest = source;
    while let Some((_, inside)) = rest.split_once('{') {
        rest = match inside.bytes().next() {
            Some(b'#') => inside[1..].split_once("#}").map_or("", |(_, after)| after),
            Some(b'{' | b'%') => {
                let (tokens, after) = tokens(inside);
                parts.push(tokens);
                after
            }
            _ => inside,
        };
    }
    parts
}

/// The tokens of a statement or an expression, from the second character of its delimiter, and what comes after it.
fn tokens(code: &str) -> (Vec<&str>, &str) {
    let end = if code.starts_with('%') { "%}" } else { "}}" };
    let (mut tokens, mut rest) = (vec![&code[..1]], &code[1..]);
    // A sign here says that white space before is left out.
    rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    while !rest.is_empty() && !rest.starts_with(end) {
        let (token, after) = rest.split_at(token_length(rest));
        tokens.extend(Some(token).filter(|token| !token.trim().is_empty()));
        rest = after;
    }
    (tokens, rest.get(end.len()..).unwrap_or_default())
}

/// The length of the token at the start of a text that is not empty.
fn token_length(code: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    match code.chars().next() {
        Some(quote @ ('"' | '\'')) => code[1..].find(quote).map_or(code.len(), |length| length + 2),
        Some(c) if is_word(c) => code.find(|c| !is_word(c)).unwrap_or(code.len()),
        first => first.map_or(0, char::len_utf8),
    }
}

/// Checks that a statement or an expression puts no values together, and calls nothing but filters and tests.
fn check_code(tokens: &[&str]) -> Result<()> {
    let refused = |what: String| {
        let expected = "values as they are: this version puts none together inside a template";
        Err(Error::value("the chat template", what, expected))
    };
    match tokens {
        ["%", name, ..] if !STATEMENTS.contains(name) => return refused(format!("a statement `{name}`")),
        // A block between `set` and `endset` would be a value made of others.
        ["%", "set", ..] if !tokens.contains(&"=") => return refused("a `set` without a value".to_string()),
        _ => {}
    }
    // The open brackets, and whether each holds the arguments of a filter or of a test.
    let mut open = Vec::new();
    for (at, token) in tokens.iter().enumerate().skip(1) {
        let before = tokens[at - 1];
        let is_name = before.starts_with(|c: char| c.is_alphanumeric() || c == '_') && !KEYWORDS.contains(&before);
        let after_value = is_name || before.ends_with([']', ')', '"', '\'']);
        let calls_filter = is_name && matches!(tokens[..at - 1], [.., "|" | "is"] | [.., "is", "not"]);
        match *token {
            "*" | "~" | "+" | "/" | "%" | "{" => return refused(format!("an operator `{token}`")),
            // The text goes on behind this quote.
            _ if token.ends_with("\\'") || token.ends_with("\\\"") => {
                return refused(format!("an escaped quote in {token}"));
            }
            "(" if after_value && !calls_filter => return refused(format!("a call of `{before}`")),
            "[" if !after_value => return refused("a list".to_string()),
            "(" | "[" => open.push(calls_filter && *token == "("),
            ")" | "]" => drop(open.pop()),
            "," if open.last() != Some(&true) => return refused("a list".to_string()),
            _ => {}
        }
    }
    Ok(())
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

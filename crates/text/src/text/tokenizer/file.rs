//! The content of a `tokenizer.json`, checked before the tokenizers library builds anything of it.
//!
//! The file is a small program: chains of replacements, regular expressions, templates, tries. The library takes it as
//! trusted. What could end the process (which no caller can catch), or make it allocate out of proportion, is refused
//! here; what only panics is caught where the tokenizer is built and applied.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention::ensure;
use candle_attention::io::PatternWork;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

use crate::gguf::MAX_VALUES;
use crate::text::tokenizer::growth::{MAX_CONTENT_BYTES, Stepwise, steps};

/// The longest `tokenizer.json` that is read, in bytes: 256 MiB. The largest published ones have 35 to 60 MB.
pub(crate) const MAX_TOKENIZER_BYTES: u64 = 1 << 28;

/// The longest piece of a Unigram vocabulary, in bytes: the library drops a level of a trie for each byte by recursion,
/// which ends the process when the stack is full. SentencePiece makes pieces of up to 16 characters.
const MAX_PIECE_BYTES: usize = 1 << 10;

/// The most nodes of the trie of a Unigram vocabulary: the library needs 350 bytes for each. Vocabularies of 901,629
/// pieces are published.
const MAX_TRIE_NODES: usize = 1 << 22;

/// The most bytes of all added tokens together: the library needs 80 bytes for each.
const MAX_ADDED_BYTES: usize = 1 << 20;

/// The largest `max_input_chars_per_word`: the work on a word grows with the third power of its length. It is 100 in
/// published tokenizers.
const MAX_WORD_CHARS: usize = 1_000;

/// The most steps of a normalizer, a pre-tokenizer, a post-processor or a decoder, patterns and template parts
/// included, and their deepest nesting. Published ones have up to 20, nested 3 deep.
const MAX_STEPS: usize = 128;
const MAX_DEPTH: usize = 16;

/// How many times longer the steps of a pre-tokenizer or of a decoder may make a text: the byte-level alphabet doubles
/// it. Published ones have up to 4.
const MAX_STEP_GROWTH: usize = 1 << 6;

/// The parts of the file that are looked at.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    max_input_chars_per_word: Option<usize>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    vocab: Option<Vocabulary>,
    merges: Option<Vec<Merge>>,
}

/// The vocabulary of a model: pieces with scores, or ids by token, which take as much memory as the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Vocabulary {
    Pieces(Vec<(String, IgnoredAny)>),
    Ids(IgnoredAny),
}

/// A merge of a BPE model: its two parts, or both in a line with a space between them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Parts((IgnoredAny, String)),
    Line(String),
}

/// Checks the content of a `tokenizer.json`.
pub(super) fn check(json: &[u8]) -> tokenizers::Result<()> {
    let values = json.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    at_most("values of the file", values, MAX_VALUES)?;
    let file: File = serde_json::from_slice(json)?;
    check_model(file.model)?;
    let added = file.added_tokens.iter().map(|token| token.content.len()).sum();
    at_most("bytes of all added tokens", added, MAX_ADDED_BYTES)?;
    let mut patterns = PatternWork::default();
    for (name, part) in [
        ("normalizer", &file.normalizer),
        ("pre_tokenizer", &file.pre_tokenizer),
        ("post_processor", &file.post_processor),
        ("decoder", &file.decoder),
    ] {
        Walk { name, steps: 0, growth: 1, patterns: &mut patterns }.check(part, 0)?;
    }
    // The library normalizes these tokens while it builds the tokenizer.
    if !file.normalizer.is_null() && file.added_tokens.iter().any(|token| token.normalized) {
        // As part of a tokenizer, whose parsing is compiled in the library.
        let alone = json!({"normalizer": file.normalizer, "model": {"type": "BPE", "vocab": {}, "merges": []}});
        let steps = steps(Tokenizer::from_str(&alone.to_string())?.get_normalizer());
        for token in file.added_tokens.iter().filter(|token| token.normalized) {
            let stepwise = Stepwise::new(&steps, token.content.len());
            stepwise.normalize(&mut NormalizedString::from(token.content.as_str()))?;
            stepwise.result()?;
        }
    }
    Ok(())
}

fn at_most(what: &str, found: usize, allowed: usize) -> tokenizers::Result<()> {
    let error = || format!("the number of {what} is {found}, expected at most {allowed}");
    if found > allowed { Err(error().into()) } else { Ok(()) }
}

fn check_model(model: Model) -> tokenizers::Result<()> {
    at_most("`max_input_chars_per_word`", model.max_input_chars_per_word.unwrap_or(0), MAX_WORD_CHARS)?;
    let length = |affix: &Option<String>| affix.as_deref().unwrap_or_default().len();
    let prefix = length(&model.continuing_subword_prefix);
    at_most("bytes of `continuing_subword_prefix`", prefix, MAX_CONTENT_BYTES)?;
    at_most("bytes of `end_of_word_suffix`", length(&model.end_of_word_suffix), MAX_CONTENT_BYTES)?;
    if let Some(Vocabulary::Pieces(pieces)) = model.vocab {
        let longest = pieces.iter().map(|(piece, _)| piece.len()).max().unwrap_or(0);
        at_most("bytes of the longest piece of the vocabulary", longest, MAX_PIECE_BYTES)?;
        at_most("nodes of the trie of the vocabulary", trie_nodes(pieces), MAX_TRIE_NODES)?;
    }
    let is_whole = |merge: &Merge| match merge {
        Merge::Parts((_, second)) => second.is_char_boundary(prefix),
        // A line without a space is an error of the library.
        Merge::Line(line) => line.split_once(' ').is_none_or(|(_, second)| second.is_char_boundary(prefix)),
    };
    // The library takes the rest for UTF-8 without looking.
    if model.merges.iter().flatten().all(is_whole) {
        return Ok(());
    }
    Err("a merge has a second part shorter than `continuing_subword_prefix`, or not of whole letters after it".into())
}

/// The number of different beginnings of pieces, or more if it is allowed anyway.
fn trie_nodes(mut pieces: Vec<(String, IgnoredAny)>) -> usize {
    let bytes = pieces.iter().map(|(piece, _)| piece.len()).sum();
    if bytes <= MAX_TRIE_NODES {
        return bytes;
    }
    pieces.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let shared = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    bytes - pieces.windows(2).map(|pair| shared(&pair[0].0, &pair[1].0)).sum::<usize>()
}

/// Checks the character map of a SentencePiece normalizer
/// ([format](https://github.com/google/sentencepiece/blob/master/src/normalizer.h)): the size of a trie in bytes, its
/// units, and the replacements, each ended by a zero byte. The library reserves memory for as many units as are stated.
fn check_charsmap(charsmap: &[u8]) -> tokenizers::Result<()> {
    let (size, rest) = charsmap.split_first_chunk::<4>().ok_or("`precompiled_charsmap` has less than 4 bytes")?;
    let size = u32::from_le_bytes(*size) as usize;
    ensure!(size != 0, "`precompiled_charsmap` has a trie of 0 bytes".into());
    at_most("bytes of the trie of `precompiled_charsmap`", size, rest.len())?;
    let longest = rest[size / 4 * 4..].split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    at_most("bytes of a replacement in `precompiled_charsmap`", longest, MAX_CONTENT_BYTES)
}

/// A walk over a part of the file.
struct Walk<'a> {
    name: &'static str,
    steps: usize,
    /// How many times longer the steps make a text.
    growth: usize,
    /// The work of all patterns of the file so far.
    patterns: &'a mut PatternWork,
}

impl Walk<'_> {
    fn check(&mut self, value: &Value, depth: usize) -> tokenizers::Result<()> {
        at_most(&format!("nested levels of `{}`", self.name), depth, MAX_DEPTH)?;
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| self.check(value, depth + 1)),
            Value::Object(keys) => {
                self.steps += 1;
                at_most(&format!("steps of `{}`", self.name), self.steps, MAX_STEPS)?;
                keys.iter().try_for_each(|(key, value)| {
                    value.as_str().map_or(Ok(()), |text| self.check_text(key, text))?;
                    self.check(value, depth + 1)
                })
            }
            _ => Ok(()),
        }
    }

    fn check_text(&mut self, key: &str, text: &str) -> tokenizers::Result<()> {
        let grows = match key {
            "precompiled_charsmap" => return check_charsmap(&STANDARD.decode(text)?),
            "Regex" => return Ok(self.patterns.add(self.name, text)?),
            // The library compiles strings, too.
            "String" => return Ok(self.patterns.add(self.name, &fancy_regex::escape(text))?),
            "content" if self.name == "decoder" => text.len(),
            "type" if ["ByteLevel", "Metaspace"].contains(&text) => 2,
            _ => 1,
        };
        if self.name == "post_processor" {
            return Ok(());
        }
        at_most(&format!("bytes of `{key}` of a step of `{}`", self.name), text.len(), MAX_CONTENT_BYTES)?;
        // Each step of a normalizer is limited where it is applied.
        if self.name != "normalizer" {
            self.growth = self.growth.saturating_mul(grows.max(1));
            at_most(&format!("times that `{}` may lengthen a text", self.name), self.growth, MAX_STEP_GROWTH)?;
        }
        Ok(())
    }
}

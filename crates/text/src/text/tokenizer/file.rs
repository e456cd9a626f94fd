//! The content of a `tokenizer.json`, checked before the tokenizers library builds anything of it.
//!
//! The file is a small program: chains of replacements, regular expressions, templates, tries. The library takes it as
//! trusted. What could end the process (which no caller can catch), or make it allocate out of proportion, is refused
//! here; what only panics is caught where the tokenizer is built and applied.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention::io::PatternWork;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

use crate::gguf::MAX_VALUES;
use crate::text::tokenizer::growth::{NormalizerSteps, Stepwise};

/// The longest `tokenizer.json` that is read, in bytes: 256 MiB. The largest published ones have 35 to 60 MB.
pub(crate) const MAX_TOKENIZER_BYTES: u64 = 1 << 28;

/// The longest piece of a Unigram vocabulary, in bytes: the library keeps a level of a trie for each byte, and drops
/// them by recursion, which ends the process when the stack is full. SentencePiece makes pieces of up to 16 characters.
const MAX_PIECE_BYTES: usize = 1 << 10;

/// The most nodes of the trie of a Unigram vocabulary: the library needs 350 bytes for each. Vocabularies of 901,629
/// pieces are published.
const MAX_TRIE_NODES: usize = 1 << 22;

/// The most bytes of all added tokens together: the library needs 80 bytes for each.
const MAX_ADDED_BYTES: usize = 1 << 20;

/// The largest `max_input_chars_per_word`: the work on a word grows with the third power of its length. It is 100 in
/// published tokenizers.
const MAX_WORD_CHARS: u64 = 1_000;

/// The longest `continuing_subword_prefix` and `end_of_word_suffix`, in bytes: one is added to each letter of a word.
/// Published ones have up to 4.
const MAX_AFFIX_BYTES: usize = 63;

/// The most steps of a normalizer, a pre-tokenizer, a post-processor or a decoder, patterns and template parts
/// included. Published ones have up to 20.
const MAX_STEPS: usize = 128;

/// The deepest nesting of such steps. Published ones have 3.
const MAX_DEPTH: usize = 16;

/// The longest text that a step puts in, in bytes. Published ones have up to 10.
const MAX_CONTENT_BYTES: usize = 64;

/// The most pre-tokenizers that rewrite the text: the byte-level alphabet doubles it. Published ones have up to 2.
const MAX_REWRITES: usize = 4;

/// The longest replacement in the character map of a SentencePiece normalizer, in bytes, which bounds how much a text
/// grows. The longest one in published maps, of U+FDFA, has 33.
pub(super) const MAX_REPLACEMENT_BYTES: usize = 64;

/// How many times longer the replacements of a decoder may make a token.
const MAX_DECODED_GROWTH: usize = 1 << 10;

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
    max_input_chars_per_word: Option<u64>,
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
    let added = file.added_tokens.iter().map(|token| token.content.len());
    at_most("bytes of the longest added token", added.clone().max().unwrap_or(0), MAX_PIECE_BYTES)?;
    at_most("bytes of all added tokens", added.sum(), MAX_ADDED_BYTES)?;
    let mut walk = Walk::default();
    for (name, part) in [
        ("normalizer", &file.normalizer),
        ("pre_tokenizer", &file.pre_tokenizer),
        ("post_processor", &file.post_processor),
        ("decoder", &file.decoder),
    ] {
        walk = Walk { name, pattern_work: walk.pattern_work, ..Walk::default() };
        walk.check(part, 0)?;
    }
    // The library normalizes these tokens while it builds the tokenizer.
    if !file.normalizer.is_null() && file.added_tokens.iter().any(|token| token.normalized) {
        // As part of a tokenizer, whose parsing is compiled in the library.
        let alone = json!({"normalizer": file.normalizer, "model": {"type": "BPE", "vocab": {}, "merges": []}});
        let tokenizer = Tokenizer::from_str(&alone.to_string())?;
        let steps = NormalizerSteps::new(tokenizer.get_normalizer())?;
        for token in file.added_tokens.iter().filter(|token| token.normalized) {
            let stepwise = Stepwise::new(&steps, token.content.len());
            stepwise.normalize(&mut NormalizedString::from(token.content.as_str()))?;
            stepwise.result()?;
        }
    }
    Ok(())
}

fn at_most(what: &str, found: usize, allowed: usize) -> tokenizers::Result<()> {
    match found > allowed {
        true => Err(format!("the number of {what} is {found}, expected at most {allowed}").into()),
        false => Ok(()),
    }
}

fn check_model(model: Model) -> tokenizers::Result<()> {
    if let Some(found) = model.max_input_chars_per_word.filter(|found| *found > MAX_WORD_CHARS) {
        return Err(format!("`max_input_chars_per_word` is {found}, expected at most {MAX_WORD_CHARS}").into());
    }
    let prefix = model.continuing_subword_prefix.as_deref().unwrap_or_default().len();
    at_most("bytes of `continuing_subword_prefix`", prefix, MAX_AFFIX_BYTES)?;
    let suffix = model.end_of_word_suffix.as_deref().unwrap_or_default().len();
    at_most("bytes of `end_of_word_suffix`", suffix, MAX_AFFIX_BYTES)?;
    if let Some(Vocabulary::Pieces(pieces)) = model.vocab {
        let longest = pieces.iter().map(|(piece, _)| piece.len()).max().unwrap_or(0);
        at_most("bytes of the longest piece of the vocabulary", longest, MAX_PIECE_BYTES)?;
        at_most("nodes of the trie of the vocabulary", trie_nodes(pieces), MAX_TRIE_NODES)?;
    }
    let second = |merge: &Merge| match merge {
        Merge::Parts((_, second)) => second.is_char_boundary(prefix),
        // A line without a space is an error of the library.
        Merge::Line(line) => line.split_once(' ').is_none_or(|(_, second)| second.is_char_boundary(prefix)),
    };
    // The library takes the rest for UTF-8 without looking.
    match model.merges.iter().flatten().all(second) {
        true => Ok(()),
        false => {
            Err("a merge has a second part shorter than `continuing_subword_prefix`, or not of whole letters after it"
                .into())
        }
    }
}

/// The number of different beginnings of pieces, or more if it is allowed anyway.
fn trie_nodes(mut pieces: Vec<(String, IgnoredAny)>) -> usize {
    let bytes = pieces.iter().map(|(piece, _)| piece.len()).sum();
    if bytes <= MAX_TRIE_NODES {
        return bytes;
    }
    pieces.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let shared =
        |pair: &[(String, IgnoredAny)]| pair[0].0.bytes().zip(pair[1].0.bytes()).take_while(|(a, b)| a == b).count();
    bytes - pieces.windows(2).map(shared).sum::<usize>()
}

/// Checks the character map of a SentencePiece normalizer
/// ([format](https://github.com/google/sentencepiece/blob/master/src/normalizer.h)): the size of a trie in bytes, its
/// units, and the replacements, each ended by a zero byte. The library reserves memory for as many units as are stated.
fn check_charsmap(charsmap: &[u8]) -> tokenizers::Result<()> {
    let wrong = |what: String| Err(format!("`precompiled_charsmap`: {what}").into());
    let Some((size, rest)) = charsmap.split_first_chunk::<4>() else {
        return wrong(format!("{} bytes, expected at least 4", charsmap.len()));
    };
    let size = u32::from_le_bytes(*size) as usize;
    if size == 0 || size > rest.len() {
        return wrong(format!("a trie of {size} bytes, expected 1 to the {} that follow", rest.len()));
    }
    let longest = rest[size / 4 * 4..].split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    match longest > MAX_REPLACEMENT_BYTES {
        true => wrong(format!("a replacement of {longest} bytes, expected at most {MAX_REPLACEMENT_BYTES}")),
        false => Ok(()),
    }
}

/// A walk over a part of the file.
#[derive(Default)]
struct Walk {
    name: &'static str,
    steps: usize,
    /// The work of all patterns of the file so far.
    pattern_work: PatternWork,
    rewrites: usize,
    decoded_growth: usize,
}

impl Walk {
    fn check(&mut self, value: &Value, depth: usize) -> tokenizers::Result<()> {
        at_most(&format!("nested levels of `{}`", self.name), depth, MAX_DEPTH)?;
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| self.check(value, depth + 1)),
            Value::Object(keys) => {
                self.steps += 1;
                at_most(&format!("steps of `{}`", self.name), self.steps, MAX_STEPS)?;
                keys.iter().try_for_each(|(key, value)| {
                    self.check_key(key, value)?;
                    self.check(value, depth + 1)
                })
            }
            _ => Ok(()),
        }
    }

    fn check_key(&mut self, key: &str, value: &Value) -> tokenizers::Result<()> {
        let Some(text) = value.as_str() else { return Ok(()) };
        match key {
            "precompiled_charsmap" => check_charsmap(&STANDARD.decode(text)?)?,
            "content" if self.name != "post_processor" => {
                at_most("bytes of a replacement", text.len(), MAX_CONTENT_BYTES)?;
                self.decoded_growth = self.decoded_growth.max(1).saturating_mul(text.len().max(1));
                if self.name == "decoder" {
                    at_most("times that a token may grow", self.decoded_growth, MAX_DECODED_GROWTH)?;
                }
            }
            "prepend" => at_most("bytes of a prefix", text.len(), MAX_CONTENT_BYTES)?,
            "Regex" | "String" => {
                // The library compiles strings, too.
                let pattern = if key == "Regex" { text.into() } else { fancy_regex::escape(text) };
                self.pattern_work.add(self.name, &pattern)?;
            }
            "type" if self.name == "pre_tokenizer" && ["ByteLevel", "Metaspace"].contains(&text) => {
                self.rewrites += 1;
                at_most("pre-tokenizers that rewrite the text", self.rewrites, MAX_REWRITES)?;
            }
            _ => {}
        }
        Ok(())
    }
}

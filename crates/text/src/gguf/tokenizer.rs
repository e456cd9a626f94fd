//! Makes a `tokenizer.json` of the metadata of a GGUF file.
//!
//! candle's reader of the same knows byte-level BPE alone, without the templates of encoders, and takes an unknown
//! pre-tokenizer for that of GPT-2. Here the result goes through the checks of every `tokenizer.json`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention::checkpoint::{GgufMetadata, GgufValue};
use candle_attention::{Error, Result};
use serde_json::{Map, Value, json};

use crate::gguf::merges::merges;

/// The most values in a `tokenizer.json`, counted by its commas and brackets: each takes up to 100 bytes while the file
/// is read. The largest published vocabulary, of 901,629 pieces, has 2.8 million.
pub(crate) const MAX_VALUES: usize = 1 << 23;

/// As how many values a control token or one that a user defined counts: it becomes an object of some 1,000 bytes.
const VALUES_PER_ADDED: usize = 64;

const MERGES: &str = "tokenizer.ggml.merges";

/// llama.cpp's kinds of tokens.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// The sign for a space in SentencePiece, and for the start of a word in the vocabularies of BERT's files.
const SPACE: &str = "\u{2581}";

/// How a byte-level tokenizer splits texts.
struct Split {
    /// The expressions of words, each of which splits the pieces that the one before it left.
    expressions: Vec<&'static str>,
    /// Whether texts are brought into the normal form NFC.
    nfc: bool,
    ignores_merges: bool,
    /// Whether texts start with the first special token where the metadata does not say it.
    starts: bool,
}

impl Split {
    /// The split that llama.cpp calls so: a record of `pre_tokenizers.txt`.
    fn from_name(name: &str) -> Option<Self> {
        let mut lines = include_str!("pre_tokenizers.txt").lines().filter(|line| !line.starts_with('#'));
        let flags = lines.find_map(|line| {
            let (names, flags) = line.split_once(':').filter(|_| !line.starts_with(' '))?;
            names.split(' ').any(|known| known == name).then_some(flags)
        })?;
        let has = |flag: &str| flags.split(' ').any(|word| word == flag);
        let [nfc, ignores_merges, starts] = [has("nfc"), has("ignore_merges"), has("starts")];
        Some(Self {
            expressions: lines.map_while(|line| line.strip_prefix("    ")).collect(),
            nfc,
            ignores_merges,
            starts,
        })
    }

    /// The pre-tokenizer of a `tokenizer.json`.
    fn pre_tokenizer(&self) -> Value {
        let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        let mut splits: Vec<Value> = self
            .expressions
            .iter()
            .map(|words| match *words {
                "GPT-2" => bytes(true),
                words => json!({"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false}),
            })
            .collect();
        if !self.expressions.contains(&"GPT-2") {
            splits.push(bytes(false));
        }
        match &splits[..] {
            [only] => only.clone(),
            _ => json!({"type": "Sequence", "pretokenizers": splits}),
        }
    }
}

/// How a model uses its tokens. It decides on the special tokens that the metadata says nothing of.
#[derive(Clone, Copy)]
pub(super) struct Usage {
    /// Encoders are trained on texts with a start and an end, whatever llama.cpp takes for granted.
    pub is_encoder: bool,
    /// Whether the file states that the last token is pooled.
    pub pools_last: bool,
    /// Whether one token separates the texts of a pair, as in ModernBERT. Its files state two.
    pub has_one_separator: bool,
}

impl Usage {
    /// Whether texts end with a special token where the metadata does not say it. A decoder that is pooled at its last
    /// token is trained with one; but where the converter states the start alone, it saw a template without an end.
    pub fn adds_end(self, metadata: &GgufMetadata) -> Result<bool> {
        let starts = metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(false);
        Ok(self.is_encoder || self.pools_last && !starts)
    }
}

/// The files of a tokenizer.
pub(super) struct TokenizerFiles {
    pub json: Value,
    /// `tokenizer_config.json`.
    pub config: Value,
}

/// The tokenizer of a file whose model has `rows` words.
pub(super) fn read(metadata: &GgufMetadata, rows: usize, usage: Usage) -> Result<TokenizerFiles> {
    let reader = Reader::new(metadata, rows, usage)?;
    let kind = metadata.text("tokenizer.ggml.model")?.ok_or_else(|| absent("tokenizer.ggml.model"))?;
    reader.check_normalizer(kind)?;
    let parts = match kind {
        "bert" => reader.word_piece()?,
        "gpt2" => reader.byte_level()?,
        "llama" => reader.sentence_piece()?,
        "t5" => reader.unigram()?,
        other => {
            let found = format!("`{}`", other.escape_debug());
            return Err(Error::value("metadata `tokenizer.ggml.model`", found, "bert, gpt2, llama or t5"));
        }
    };
    let json = json!({
        "version": "1.0",
        "added_tokens": reader.added_tokens(kind == "llama"),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": reader.template(&parts.around)?,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    let mut config = Map::new();
    for (key, names) in [("mask_token", MASK), ("unk_token", UNKNOWN), ("eos_token", END)] {
        if let Some(id) = reader.special(names)? {
            config.insert(key.to_string(), reader.tokens[id].as_str().into());
        }
    }
    Ok(TokenizerFiles { json, config: Value::Object(config) })
}

/// The keys of special tokens; some have an older or a misspelled name too.
const START: &[&str] = &["bos_token_id", "cls_token_id"];
const END: &[&str] = &["eos_token_id", "eot_token_id"];
/// The end of texts in encoders.
const ENCODER_END: &[&str] =
    &["eos_token_id", "seperator_token_id", "separator_token_id", "sep_token_id", "eot_token_id"];
const SEPARATOR: &[&str] =
    &["seperator_token_id", "separator_token_id", "sep_token_id", "eos_token_id", "eot_token_id"];
const UNKNOWN: &[&str] = &["unknown_token_id", "unk_token_id"];
const MASK: &[&str] = &["mask_token_id"];

/// The parts that differ between the kinds of tokenizers.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    model: Value,
    decoder: Value,
    around: Around,
}

/// The special tokens around a text.
struct Around {
    start: Option<usize>,
    end: Option<usize>,
    second: Second,
}

/// How the second text of a pair follows the first.
enum Second {
    /// With a segment type of its own, and without a start.
    Typed,
    /// Behind another separator, if there is one, and without a start.
    Separated(Option<usize>),
    /// As the first.
    Alike,
}

struct Reader<'a> {
    metadata: &'a GgufMetadata,
    usage: Usage,
    tokens: &'a [String],
    kinds: Vec<i64>,
}

impl<'a> Reader<'a> {
    fn new(metadata: &'a GgufMetadata, rows: usize, usage: Usage) -> Result<Self> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        const KINDS: &str = "tokenizer.ggml.token_type";
        let tokens = metadata.texts(TOKENS)?.ok_or_else(|| absent(TOKENS))?;
        if tokens.is_empty() || tokens.len() > rows {
            let expected = format!("1 to {rows}, the rows of the word embeddings");
            return Err(Error::value(format!("metadata `{TOKENS}`"), format!("{} tokens", tokens.len()), expected));
        }
        let kinds = match metadata.get(KINDS) {
            None => vec![NORMAL; tokens.len()],
            Some(GgufValue::Integers(kinds)) if kinds.len() == tokens.len() => kinds.clone(),
            Some(_) => return Err(wrong_list(KINDS, tokens.len())),
        };
        let added = kinds.iter().filter(|kind| [CONTROL, USER_DEFINED].contains(kind)).count();
        let merges = metadata.texts(MERGES)?.map_or(0, <[String]>::len);
        // A token with its score, or a merge, is an array of two.
        let values = 3 * (tokens.len() + merges) + VALUES_PER_ADDED * added;
        if values > MAX_VALUES {
            let what =
                format!("the number of values of a tokenizer of {} tokens, {added} of them added,", tokens.len());
            return Err(Error::value(what, values, format!("at most {MAX_VALUES}")));
        }
        Ok(Self { metadata, usage, tokens, kinds })
    }

    /// The id of a special token, by the first of these keys that is there.
    fn special(&self, names: &[&str]) -> Result<Option<usize>> {
        for name in names {
            let key = format!("tokenizer.ggml.{name}");
            match self.metadata.count(&key)? {
                Some(id) if id < self.tokens.len() => return Ok(Some(id)),
                Some(id) => {
                    let expected = format!("less than {}, the number of tokens", self.tokens.len());
                    return Err(Error::value(format!("metadata `{key}`"), id, expected));
                }
                None => {}
            }
        }
        Ok(None)
    }

    fn needed(&self, names: &[&str]) -> Result<usize> {
        self.special(names)?.ok_or_else(|| absent(&format!("tokenizer.ggml.{}", names[0])))
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.metadata.flag(&format!("tokenizer.ggml.{name}"))?.unwrap_or(default))
    }

    /// The special tokens around a text, by the flags, or else as `defaults` or the usage of the model have them.
    fn around(&self, defaults: [bool; 2]) -> Result<Around> {
        let Usage { is_encoder, has_one_separator, .. } = self.usage;
        let start = self.flag("add_bos_token", defaults[0] || is_encoder)?;
        let end = self.flag("add_eos_token", defaults[1] || self.usage.adds_end(self.metadata)?)?;
        let ends = if is_encoder { ENCODER_END } else { END };
        Ok(Around {
            start: if start { Some(self.needed(START)?) } else { None },
            end: if end { Some(self.needed(ends)?) } else { None },
            second: match is_encoder {
                // RoBERTa has two tokens between the texts of a pair.
                true if !has_one_separator && self.flag("add_sep_token", true)? => {
                    Second::Separated(Some(self.needed(SEPARATOR)?))
                }
                true => Second::Separated(None),
                false => Second::Alike,
            },
        })
    }

    /// Refuses what the metadata states of the normalizer and is not applied to this kind of tokenizer.
    fn check_normalizer(&self, kind: &str) -> Result<()> {
        for (name, kinds) in [("lowercase", &["bert", "gpt2"][..]), ("strip_accents", &["bert"])] {
            if !kinds.contains(&kind) && self.flag(&format!("normalizer.{name}"), false)? {
                let expected = format!("false in a tokenizer of the kind `{kind}`");
                return Err(Error::value(format!("metadata `tokenizer.ggml.normalizer.{name}`"), "true", expected));
            }
        }
        Ok(())
    }

    /// Whether the vocabulary of BERT is one of lower-cased texts: no word of it, beside special tokens, has a letter
    /// that lower-casing changes.
    fn is_lower_cased(&self) -> bool {
        let is_special = |token: &str| {
            let inside = |open, close| token.starts_with(open) && token.ends_with(close);
            inside('[', ']') || inside('<', '>')
        };
        let words = self.tokens.iter().zip(&self.kinds).filter(|(_, kind)| **kind == NORMAL);
        let mut words = words.map(|(token, _)| token.strip_prefix(SPACE).unwrap_or(token));
        !words.any(|word| !is_special(word) && word.chars().any(|c| !c.to_lowercase().eq([c])))
    }

    /// The ids by token, of which none may be there twice.
    fn vocabulary<'t>(&self, tokens: impl Iterator<Item = std::borrow::Cow<'t, str>>) -> Result<Value> {
        let mut vocabulary = Map::new();
        for (id, token) in tokens.enumerate() {
            let shown = token.chars().take(40).collect::<String>();
            if vocabulary.insert(token.into_owned(), id.into()).is_some() {
                let found = format!("`{}` twice", shown.escape_debug());
                return Err(Error::value("metadata `tokenizer.ggml.tokens`", found, "each token once"));
            }
        }
        Ok(Value::Object(vocabulary))
    }

    /// Control tokens and those that users defined, which are found in texts before these are split. Those of
    /// SentencePiece are found after spaces have their sign.
    fn added_tokens(&self, signs: bool) -> Value {
        let added = self.tokens.iter().zip(&self.kinds).enumerate();
        let added = added.filter(|(_, (token, kind))| [CONTROL, USER_DEFINED].contains(*kind) && !token.is_empty());
        added
            .map(|(id, (token, kind))| {
                let own = *kind == USER_DEFINED;
                let content = if signs && own { token.replace(' ', SPACE) } else { token.clone() };
                json!({
                    "id": id,
                    "content": content,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": signs && own,
                    "special": !own,
                })
            })
            .collect()
    }

    /// The template of special tokens around a text and a pair.
    fn template(&self, around: &Around) -> Result<Value> {
        let piece = |id: &usize, kind: usize| json!({"SpecialToken": {"id": self.tokens[*id], "type_id": kind}});
        let text = |name: &str, kind: usize, start: &Option<usize>| {
            let text = [json!({"Sequence": {"id": name, "type_id": kind}})];
            let (start, end) = (start.iter().map(|id| piece(id, kind)), around.end.iter().map(|id| piece(id, kind)));
            start.chain(text).chain(end).collect::<Vec<_>>()
        };
        let single = text("A", 0, &around.start);
        let second = match &around.second {
            Second::Typed => text("B", 1, &None),
            Second::Separated(separator) => text("B", 0, separator),
            Second::Alike => text("B", 0, &around.start),
        };
        let pair: Vec<&Value> = single.iter().chain(&second).collect();
        let separator = if let Second::Separated(separator) = &around.second { separator } else { &None };
        let mut special = Map::new();
        for id in around.start.iter().chain(&around.end).chain(separator) {
            let token = &self.tokens[*id];
            special.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
        }
        Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}))
    }

    /// BERT's. Files mark the starts of words, `tokenizer.json` what continues one.
    fn word_piece(&self) -> Result<Parts> {
        let tokens = self.tokens.iter().zip(&self.kinds).map(|(token, kind)| match token.strip_prefix(SPACE) {
            _ if *kind == CONTROL => token.into(),
            Some(word) => word.into(),
            None => format!("##{token}").into(),
        });
        let vocabulary = self.vocabulary(tokens)?;
        let accents = self.metadata.flag("tokenizer.ggml.normalizer.strip_accents")?;
        let around =
            Around { start: Some(self.needed(START)?), end: Some(self.needed(SEPARATOR)?), second: Second::Typed };
        Ok(Parts {
            normalizer: json!({
                "type": "BertNormalizer",
                "clean_text": true,
                "handle_chinese_chars": true,
                "strip_accents": accents,
                "lowercase": self.flag("normalizer.lowercase", self.is_lower_cased())?,
            }),
            pre_tokenizer: json!({"type": "BertPreTokenizer"}),
            model: json!({
                "type": "WordPiece",
                "unk_token": self.tokens[self.needed(UNKNOWN)?],
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": vocabulary,
            }),
            decoder: json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            around,
        })
    }

    /// That of GPT-2, Qwen, Llama 3 and all others whose words are expressions.
    fn byte_level(&self) -> Result<Parts> {
        let name = self.metadata.text("tokenizer.ggml.pre")?.unwrap_or("default");
        let split = Split::from_name(name).ok_or_else(|| {
            let found = format!("`{}`", name.escape_debug());
            Error::value(
                "metadata `tokenizer.ggml.pre`",
                found,
                "a split that this version knows, such as gpt-2 or qwen2",
            )
        })?;
        let lines = self.metadata.texts(MERGES)?.ok_or_else(|| absent(MERGES))?;
        let parts = |line: &String| {
            // A part may start with a space.
            let first = line.chars().next().map_or(0, char::len_utf8);
            let at = line[first..].find(' ').map(|at| at + first);
            at.map(|at| json!([line[..at], line[at + 1..]])).ok_or_else(|| {
                let found = format!("`{}`", line.chars().take(40).collect::<String>().escape_debug());
                Error::value(format!("a line of metadata `{MERGES}`"), found, "two parts with a space between them")
            })
        };
        let merges = lines.iter().map(parts).collect::<Result<Vec<Value>>>()?;
        Ok(Parts {
            normalizer: match (split.nfc, self.flag("normalizer.lowercase", false)?) {
                (false, false) => Value::Null,
                (true, false) => json!({"type": "NFC"}),
                (false, true) => json!({"type": "Lowercase"}),
                (true, true) => json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}),
            },
            pre_tokenizer: split.pre_tokenizer(),
            model: json!({
                "type": "BPE",
                "ignore_merges": split.ignores_merges,
                "vocab": self.vocabulary(self.tokens.iter().map(Into::into))?,
                "merges": merges,
            }),
            decoder: json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
            around: self.around([split.starts, false])?,
        })
    }

    /// The score of each token.
    fn scores(&self) -> Result<&'a [f64]> {
        const SCORES: &str = "tokenizer.ggml.scores";
        match self.metadata.get(SCORES) {
            Some(GgufValue::Floats(scores)) if scores.len() == self.tokens.len() => Ok(scores),
            Some(_) => Err(wrong_list(SCORES, self.tokens.len())),
            None => Err(absent(SCORES)),
        }
    }

    /// That of Llama and Gemma: SentencePiece's BPE, whose pieces are merged by their scores.
    fn sentence_piece(&self) -> Result<Parts> {
        let own = |kind: i64, token: &str| if kind == USER_DEFINED { token.replace(' ', SPACE) } else { token.into() };
        let tokens: Vec<String> = self.tokens.iter().zip(&self.kinds).map(|(token, kind)| own(*kind, token)).collect();
        let pieces: Vec<(String, f64)> = tokens.iter().cloned().zip(self.scores()?.iter().copied()).collect();
        let merges = merges(&pieces);
        let too_many = || {
            Error::value(
                "metadata `tokenizer.ggml.tokens`",
                "too many or too long pieces",
                "up to 1048576 merges, and 134217728 as the sum of the squares of their lengths",
            )
        };
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
        let spaces = json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "});
        let mut decoders = vec![spaces, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        let normalizer = if self.flag("add_space_prefix", true)? {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]})
        } else {
            replace
        };
        let unknown = self.special(UNKNOWN)?;
        Ok(Parts {
            normalizer,
            pre_tokenizer: Value::Null,
            model: json!({
                "type": "BPE",
                "unk_token": unknown.map(|id| tokens[id].as_str()),
                "fuse_unk": true,
                "byte_fallback": self.kinds.contains(&BYTE),
                "vocab": self.vocabulary(tokens.iter().map(Into::into))?,
                "merges": merges.ok_or_else(too_many)?,
            }),
            decoder: json!({"type": "Sequence", "decoders": decoders}),
            around: Around { second: Second::Alike, ..self.around([true, false])? },
        })
    }

    /// That of XLM-RoBERTa and T5: SentencePiece's Unigram.
    fn unigram(&self) -> Result<Parts> {
        const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
        let normalizer = match self.metadata.get(CHARSMAP) {
            None => Value::Null,
            Some(GgufValue::Bytes(bytes)) => {
                json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(bytes)})
            }
            Some(_) => return Err(Error::value(format!("metadata `{CHARSMAP}`"), "another kind", "an array of bytes")),
        };
        let scores = self.scores()?;
        let pieces: Vec<Value> = self.tokens.iter().zip(scores).map(|(piece, score)| json!([piece, score])).collect();
        let scheme = if self.flag("add_space_prefix", true)? { "always" } else { "never" };
        let words = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true});
        let decoder = words.clone();
        let pre_tokenizer = if self.flag("remove_extra_whitespaces", true)? {
            json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, words]})
        } else {
            words
        };
        Ok(Parts {
            normalizer,
            pre_tokenizer,
            model: json!({
                "type": "Unigram",
                "unk_id": self.needed(UNKNOWN)?,
                "vocab": pieces,
                "byte_fallback": false,
            }),
            decoder,
            around: self.around([false, true])?,
        })
    }
}

/// The error for a key that has to be there.
fn absent(key: &str) -> Error {
    Error::value(format!("metadata `{key}`"), "absent", "a value")
}

fn wrong_list(key: &str, count: usize) -> Error {
    Error::value(format!("metadata `{key}`"), "another kind or number of values", format!("{count} numbers"))
}

#[cfg(test)]
mod tests {
    use candle_attention::checkpoint::Checkpoint;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

    use super::*;

    /// The tokenizer of a file with `tokens` tokens of one letter of a kind, and as many merges.
    fn one_letter(model: &str, tokens: usize, kind: i32, merges: usize) -> Result<TokenizerFiles> {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        let value = |key: &str, kind: u32, value: &[u8]| [&text(key), &kind.to_le_bytes()[..], value].concat();
        let list = |key: &str, kind: u32, count: usize, item: &[u8]| {
            let head = [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
            value(key, 9, &[head, item.repeat(count)].concat())
        };
        let file = [
            [b"GGUF", &3u32.to_le_bytes()[..], &0u64.to_le_bytes(), &5u64.to_le_bytes()].concat(),
            value("general.architecture", 8, &text("test")),
            value("tokenizer.ggml.model", 8, &text(model)),
            list("tokenizer.ggml.tokens", 8, tokens, &text("a")),
            list("tokenizer.ggml.token_type", 5, tokens, &kind.to_le_bytes()),
            list("tokenizer.ggml.merges", 8, merges, &text("a a")),
        ];
        let checkpoint = Checkpoint::from_bytes(file.concat()).unwrap();
        let usage = Usage { is_encoder: true, pools_last: false, has_one_separator: false };
        read(checkpoint.gguf().unwrap(), tokens, usage)
    }

    /// Texts are cut where the Python library cuts them: `tests/golden/pre_tokenizers.py`.
    #[test]
    fn words_are_those_of_tokenizers() {
        let golden: Value =
            serde_json::from_str(include_str!("../../../../tests/fixtures/pre_tokenizers.json")).unwrap();
        let text = golden["text"].as_str().unwrap();
        let starts = golden["starts"].as_object().unwrap();
        let records = include_str!("pre_tokenizers.txt").lines().filter(|line| !line.starts_with(['#', ' ']));
        let names: Vec<&str> = records.map(|line| line.split([' ', ':']).next().unwrap()).collect();
        assert_eq!(names.len(), starts.len());
        for name in names {
            let pre_tokenizer = Split::from_name(name).unwrap().pre_tokenizer();
            let pre_tokenizer: PreTokenizerWrapper = serde_json::from_value(pre_tokenizer).unwrap();
            let mut pieces = PreTokenizedString::from(text);
            pre_tokenizer.pre_tokenize(&mut pieces).unwrap();
            let found = pieces.get_splits(OffsetReferential::Original, OffsetType::Char);
            let found: Vec<usize> = found.into_iter().map(|(_, (start, _), _)| start).collect();
            assert_eq!(Value::from(found), starts[name], "{name}");
        }
        assert!(Split::from_name("kimi-k2").is_none() && Split::from_name("").is_none());
    }

    /// The ids of llama.cpp's own tests, which transformers made: a folder with its `models/ggml-vocab-*.gguf`.
    #[test]
    #[ignore = "needs VOCABULARIES, a folder with vocabularies of llama.cpp"]
    fn vocabularies_of_llama_cpp() {
        let folder = std::path::PathBuf::from(std::env::var("VOCABULARIES").unwrap());
        let mut compared = 0;
        for name in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let beside = |end: &str| std::fs::read_to_string(format!("{}.{end}", name.display()));
            let (true, Ok(texts), Ok(ids)) =
                (name.extension().is_some_and(|e| e == "gguf"), beside("inp"), beside("out"))
            else {
                continue;
            };
            let checkpoint = Checkpoint::open(&name).unwrap();
            let metadata = checkpoint.gguf().unwrap();
            let rows = metadata.texts("tokenizer.ggml.tokens").unwrap().unwrap().len();
            let usage = Usage { is_encoder: false, pools_last: false, has_one_separator: false };
            let files = match read(metadata, rows, usage) {
                Ok(files) => files,
                // Gemma 4, whose words no expression says.
                Err(error) if error.to_string().contains("gemma4") => continue,
                Err(error) => panic!("{}: {error}", name.display()),
            };
            let tokenizer: tokenizers::Tokenizer = serde_json::from_value(files.json).unwrap();
            for (text, ids) in texts.split("\n__ggml_vocab_test__\n").zip(ids.lines()) {
                let found = tokenizer.encode(text, false).unwrap();
                let found: Vec<String> = found.get_ids().iter().map(u32::to_string).collect();
                assert_eq!(found.join(" "), ids.trim(), "{}: {text:?}", name.display());
            }
            compared += 1;
        }
        assert!(compared > 10, "{compared} vocabularies");
    }

    #[test]
    fn values_are_counted_before_they_are_made() {
        let refused = |model, tokens, kind: i64, merges, error: &str| {
            let found = one_letter(model, tokens, kind as i32, merges).err().unwrap().to_string();
            assert!(found.contains(error), "{found}");
        };
        refused("t5", 200_000, CONTROL, 0, "200000 of them added");
        refused("bert", 200_000, USER_DEFINED, 0, "is 13400000, expected at most 8388608");
        refused("gpt2", 10, NORMAL, 2_800_000, "is 8400030, expected at most 8388608");
        refused("t5", 2_800_000, NORMAL, 0, "the number of values of a tokenizer of 2800000 tokens");
        refused("bert", 100, CONTROL, 100, "`a` twice");
    }
}

//! Files of tokenizers of all kinds, damaged, with a whole model: a text is encoded, or there is an error.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention::Error;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{EncodeOptions, FillMask, MapOptions, SentenceEncoder};
use candle_core::{DType, Device};
use serde_json::{Value, json};

use crate::file::{header, safetensors};
use crate::folder::Folder;
use crate::json::{damage, file_of, text};
use crate::model_folder::{MODELS, Model, TOKENIZER};
use crate::{message_of, rarely};

/// A model of one layer, and its weights.
static EMBEDS: LazyLock<(&Model, Checkpoint)> = LazyLock::new(|| model("gte"));
/// The same with a head for masked tokens.
static FILLS: LazyLock<(&Model, Checkpoint)> = LazyLock::new(|| model("electra_mlm"));

fn model(name: &str) -> (&'static Model, Checkpoint) {
    let model = MODELS.iter().find(|model| model.name == name).expect("a fixture");
    let (header, data) = header(&model.entries, 1 << 20).expect("a small model");
    (model, Checkpoint::from_bytes(safetensors(&header, &data, header.len() as u64)).expect("weights"))
}

const KEYS: &[&str] = &[
    "add_prefix_space",
    "behavior",
    "byte_fallback",
    "cache_capacity",
    "clean_text",
    "content",
    "continuing_subword_prefix",
    "decoders",
    "direction",
    "dropout",
    "end_of_word_suffix",
    "fuse_unk",
    "handle_chinese_chars",
    "id",
    "ids",
    "ignore_merges",
    "individual_digits",
    "invert",
    "left",
    "length",
    "lowercase",
    "lstrip",
    "max_input_chars_per_word",
    "max_length",
    "merges",
    "normalized",
    "normalizers",
    "pad_id",
    "padding",
    "pair",
    "pattern",
    "precompiled_charsmap",
    "prepend",
    "prepend_scheme",
    "pretokenizers",
    "processors",
    "replacement",
    "right",
    "single",
    "single_word",
    "special",
    "special_tokens",
    "split",
    "strategy",
    "stride",
    "strip_accents",
    "strip_left",
    "tokens",
    "trim_offsets",
    "truncation",
    "type",
    "type_id",
    "unk_id",
    "unk_token",
    "use_regex",
    "vocab",
    "a",
    "##a",
];

const WORDS: &[&str] = &[
    "A",
    "B",
    "BertNormalizer",
    "ByteLevel",
    "Contiguous",
    "Isolated",
    "LongestFirst",
    "Lowercase",
    "MergedWithNext",
    "Metaspace",
    "NFD",
    "NFKC",
    "Nmt",
    "Removed",
    "Right",
    "StripAccents",
    "Unigram",
    "Whitespace",
    "WhitespaceSplit",
    "WordLevel",
    "WordPiece",
    "[CLS]",
    "[MASK]",
    "[SEP]",
    "[UNK]",
    "always",
    "first",
    "never",
    "",
    "a",
    "aa",
    "a b",
    "##a",
    "(a+)+$",
    "(?=a)",
    "^",
    "\\p{L}+",
    "\\s*",
    "▁",
];

pub fn run(u: &mut Unstructured) -> Result<()> {
    let mut json = TOKENIZER.clone();
    if u.arbitrary()? {
        json["normalizer"] = normalizer(u, 2)?;
    }
    if u.arbitrary()? {
        json["pre_tokenizer"] = pre_tokenizer(u, 2)?;
    }
    if rarely(u, 3)? {
        json["model"] = vocabulary(u)?;
    }
    if rarely(u, 3)? {
        json["post_processor"] = post_processor(u, 2)?;
    }
    if rarely(u, 3)? {
        json["decoder"] = decoder(u)?;
    }
    if rarely(u, 4)? {
        json["padding"] = json!({"strategy": {"Fixed": 1u64 << u.int_in_range(0..=40)?}, "direction": "Left",
                                 "pad_to_multiple_of": 8, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"});
        json["truncation"] = json!({"max_length": u.int_in_range(0..=9)?, "strategy": "LongestFirst",
                                    "stride": u.int_in_range(0..=9)?, "direction": "Left"});
    }
    let count = u.int_in_range(0..=3)?;
    damage(u, &mut json, count, KEYS, WORDS)?;
    let folder = Folder::new();
    folder.write("tokenizer.json", file_of(u, &json)?.as_bytes());
    let (first, second) = (text(u, 8)?, text(u, 4)?);
    let ran = if rarely(u, 4)? { fill(&folder, &first) } else { embed(&folder, &first, &second) };
    ran.err().map(message_of);
    Ok(())
}

fn embed(folder: &Folder, first: &str, second: &str) -> Result<(), Error> {
    let (model, checkpoint) = &*EMBEDS;
    folder.write("config.json", model.config.to_string().as_bytes());
    let source = checkpoint.at("", DType::F32, &Device::Cpu);
    let encoder = SentenceEncoder::load(folder.path(""), source)?;
    let vectors = encoder.encode(&[first, second], &EncodeOptions::default());
    // A text that cannot be encoded can have no map either, and the other way round.
    let maps = encoder.attention((first, second), &MapOptions::default());
    if let Ok(maps) = maps {
        let tokens = maps.queries().len();
        assert!(tokens == maps.keys().len() && tokens <= encoder.max_seq_length());
        maps.html().map(drop).unwrap_or_else(|error| drop(message_of(error)));
    }
    let vectors = vectors?;
    assert_eq!(vectors.dims(), [2, encoder.embedding_size()]);
    let numbers: Vec<f32> = vectors.flatten_all()?.to_vec1()?;
    assert!(numbers.iter().all(|number| number.is_finite()), "{numbers:?}");
    Ok(())
}

fn fill(folder: &Folder, text: &str) -> Result<(), Error> {
    let (model, checkpoint) = &*FILLS;
    folder.write("config.json", model.config.to_string().as_bytes());
    let model = FillMask::load(folder.path(""), checkpoint.at("", DType::F32, &Device::Cpu))?;
    let text = format!("{text} {}", model.mask_token());
    for predictions in model.fill_mask(&text, 3)? {
        assert!(predictions.iter().all(|prediction| prediction.score.is_finite()));
    }
    Ok(())
}

/// Several of a kind as a sequence, or one.
fn nested(
    u: &mut Unstructured,
    depth: usize,
    list: &str,
    one: fn(&mut Unstructured, usize) -> Result<Value>,
) -> Result<Value> {
    let inner = (0..u.int_in_range(0..=4)?).map(|_| one(u, depth - 1)).collect::<Result<Vec<_>>>()?;
    Ok(json!({"type": "Sequence", list: inner}))
}

fn pattern(u: &mut Unstructured) -> Result<Value> {
    let kind = if u.arbitrary()? { "Regex" } else { "String" };
    Ok(json!({kind: *u.choose(WORDS)?}))
}

fn normalizer(u: &mut Unstructured, depth: usize) -> Result<Value> {
    let plain = ["NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "ByteLevel"];
    Ok(match u.int_in_range(0..=if depth == 0 { 5 } else { 6 })? {
        0 => json!({"type": *u.choose(&plain)?}),
        1 => json!({"type": "Replace", "pattern": pattern(u)?, "content": text(u, 4)?}),
        2 => json!({"type": "Prepend", "prepend": text(u, 4)?}),
        3 => json!({"type": "Strip", "strip_left": u.arbitrary::<bool>()?, "strip_right": true}),
        4 => json!({"type": "Precompiled", "precompiled_charsmap": charsmap(u)?}),
        5 => Value::Null,
        _ => nested(u, depth, "normalizers", normalizer)?,
    })
}

/// The compiled rules of a SentencePiece normalizer: the size of a trie in bytes, its units, and texts.
fn charsmap(u: &mut Unstructured) -> Result<String> {
    let units = u.int_in_range(0..=12u32)?;
    let stated = if rarely(u, 8)? { u.arbitrary()? } else { 4 * units };
    let mut bytes = stated.to_le_bytes().to_vec();
    for _ in 0..units {
        let unit: u32 = match u.arbitrary()? {
            true => u.arbitrary()?,
            // A unit near the others: an offset, a flag for a leaf, and a letter.
            false => (u.int_in_range(0..=15u32)? << 10) | (u32::from(u.arbitrary::<bool>()?) << 8) | 0x61,
        };
        bytes.extend(unit.to_le_bytes());
    }
    bytes.extend(text(u, 4)?.bytes());
    bytes.push(0);
    Ok(STANDARD.encode(bytes))
}

fn pre_tokenizer(u: &mut Unstructured, depth: usize) -> Result<Value> {
    let plain = ["BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"];
    let behavior = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    Ok(match u.int_in_range(0..=if depth == 0 { 8 } else { 9 })? {
        0 => json!({"type": *u.choose(&plain)?}),
        1 => json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                    "use_regex": u.arbitrary::<bool>()?}),
        2 => json!({"type": "Metaspace", "replacement": *u.choose(&["▁", "a", " ", ""])?,
                    "prepend_scheme": *u.choose(&["always", "first", "never"])?, "split": u.arbitrary::<bool>()?}),
        3 => json!({"type": "Split", "pattern": pattern(u)?, "behavior": *u.choose(&behavior)?,
                    "invert": u.arbitrary::<bool>()?}),
        4 => json!({"type": "Punctuation", "behavior": *u.choose(&behavior)?}),
        5 => json!({"type": "Digits", "individual_digits": u.arbitrary::<bool>()?}),
        6 => json!({"type": "CharDelimiterSplit", "delimiter": *u.choose(&["a", " ", "é"])?}),
        7 => json!({"type": "FixedLength", "length": u.int_in_range(0..=3)?}),
        8 => Value::Null,
        _ => nested(u, depth, "pretokenizers", pre_tokenizer)?,
    })
}

fn vocabulary(u: &mut Unstructured) -> Result<Value> {
    let words = TOKENIZER["model"]["vocab"].clone();
    Ok(match u.int_in_range(0..=2)? {
        0 => json!({"type": "BPE", "dropout": null, "unk_token": "[UNK]", "continuing_subword_prefix": null,
                    "end_of_word_suffix": null, "fuse_unk": u.arbitrary::<bool>()?,
                    "byte_fallback": u.arbitrary::<bool>()?, "vocab": words,
                    "merges": if u.arbitrary()? { json!([["##a", "##b"]]) } else { json!(["a b", "t h"]) }}),
        1 => json!({"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}),
        _ => {
            let names = words.as_object().into_iter().flatten().map(|(name, _)| name.clone());
            let scores: Vec<Value> = names.enumerate().map(|(i, name)| json!([name, -(i as f64)])).collect();
            json!({"type": "Unigram", "unk_id": u.int_in_range(0..=20)?, "vocab": scores,
                   "byte_fallback": u.arbitrary::<bool>()?})
        }
    })
}

fn post_processor(u: &mut Unstructured, depth: usize) -> Result<Value> {
    Ok(match u.int_in_range(0..=if depth == 0 { 4 } else { 5 })? {
        0 => json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}),
        1 => json!({"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2],
                    "trim_offsets": u.arbitrary::<bool>()?, "add_prefix_space": u.arbitrary::<bool>()?}),
        2 => json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        3 => {
            let kind = u.int_in_range(0..=3u32)?;
            json!({"type": "TemplateProcessing", "pair": [],
                   "single": [{"Sequence": {"id": *u.choose(&["A", "B"])?, "type_id": kind}},
                              {"SpecialToken": {"id": "x", "type_id": 0}}],
                   "special_tokens": {"x": {"id": "x", "ids": vec![u.int_in_range(0..=20u32)?; 3],
                                            "tokens": vec!["x"; u.int_in_range(2..=3)?]}}})
        }
        4 => Value::Null,
        _ => nested(u, depth, "processors", post_processor)?,
    })
}

fn decoder(u: &mut Unstructured) -> Result<Value> {
    Ok(match u.int_in_range(0..=6)? {
        0 => json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        1 => json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        2 => json!({"type": "BPEDecoder", "suffix": text(u, 1)?}),
        3 => json!({"type": "CTC", "pad_token": "[PAD]", "word_delimiter_token": "a", "cleanup": true}),
        4 => json!({"type": "Strip", "content": "a", "start": u.int_in_range(0..=3)?, "stop": u.int_in_range(0..=3)?}),
        5 => json!({"type": "Fuse"}),
        _ => json!({"type": "ByteFallback"}),
    })
}

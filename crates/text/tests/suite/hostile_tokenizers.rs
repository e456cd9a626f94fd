//! Tokenizers that panic, end the process, or grow without end inside the tokenizers library; texts and vocabularies
//! that do not fit their model.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention::{Error, Result};
use candle_attention_text::{EncodeOptions, FillMask, MapOptions, SentenceEncoder};
use candle_core::{DType, Device};
use serde_json::{Value, json};

use crate::common::{fixture, says};
use crate::models::tiny;
use crate::models::{cross, folder};

const CPU: Device = Device::Cpu;

fn tokenizer() -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture("tiny-bert/tokenizer.json")).unwrap()).unwrap()
}

/// The tiny model with a tokenizer in which `change` changed something.
fn changed(change: impl Fn(&mut Value)) -> Result<SentenceEncoder> {
    let folder = tiny();
    let mut tokenizer = tokenizer();
    change(&mut tokenizer);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    SentenceEncoder::from_folder(folder.path(), DType::F32, &CPU)
}

fn with(part: &str, value: Value) -> Result<SentenceEncoder> {
    changed(|tokenizer| tokenizer[part] = value.clone())
}

/// The error of the first text.
#[track_caller]
fn fails_on(encoder: Result<SentenceEncoder>, text: &str, parts: &[&str]) {
    let encoder = encoder.unwrap();
    let error = encoder.encode(&[text], &EncodeOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Tokenizer(_)), "{error:?}");
    says(Err::<(), _>(error), parts);
    says(encoder.attention(text, &MapOptions::default()), parts);
}

fn sequence(key: &str, steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", key: steps})
}

fn doubling() -> Value {
    let step = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    sequence("normalizers", vec![step; 30])
}

/// These end the process if they reach the library.
#[test]
fn what_would_end_the_process_is_refused_at_load() {
    let charsmap = |map: &str| with("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": map}));
    says(charsmap("AAAAAA=="), &["tokenizer.json", "precompiled_charsmap", "a trie of 0 bytes"]);
    says(charsmap("/////w=="), &["tokenizer.json", "bytes of the trie of `precompiled_charsmap` is 4294967295"]);
    let nested = |map: &str| json!({"type": "Precompiled", "precompiled_charsmap": map});
    says(with("normalizer", sequence("normalizers", vec![nested("/////w==")])), &["precompiled_charsmap"]);

    // A trie of that depth is dropped by recursion.
    let unigram = |piece: String| json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], [piece, -1.0]]});
    says(with("model", unigram("a".repeat(1 << 20))), &["longest piece", "1048576, expected at most 1024"]);
    with("model", unigram("a".repeat(1024))).unwrap();

    // The library reads nested steps by recursion; published files nest three levels.
    let deep = (0..20).fold(json!({"type": "NFC"}), |inner, _| sequence("normalizers", vec![inner]));
    says(with("normalizer", deep), &["nested levels of `normalizer`", "expected at most 16"]);
}

#[test]
fn what_is_out_of_proportion_is_refused_at_load() {
    let content = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(65)});
    says(with("normalizer", content), &["bytes of `content` of a step of `normalizer` is 65, expected at most 64"]);
    says(
        with("normalizer", json!({"type": "Prepend", "prepend": "b".repeat(65)})),
        &["bytes of `prepend` of a step of `normalizer` is 65"],
    );
    let pattern = json!({"type": "Replace", "pattern": {"Regex": "a".repeat(5000)}, "content": "b"});
    says(with("normalizer", pattern), &["bytes of a pattern of `normalizer` is 5000, expected at most 4096"]);
    says(
        with("normalizer", sequence("normalizers", vec![json!({"type": "NFC"}); 200])),
        &["steps of `normalizer`", "128"],
    );
    let levels = sequence("pretokenizers", vec![json!({"type": "ByteLevel", "add_prefix_space": false}); 30]);
    says(
        with("pre_tokenizer", levels),
        &["times that `pre_tokenizer` may lengthen a text is 128, expected at most 64"],
    );
    says(
        with("decoder", sequence("decoders", doubling()["normalizers"].as_array().unwrap().clone())),
        &["times that `decoder` may lengthen a text is 128, expected at most 64"],
    );

    let template = |pieces: Vec<Value>, ids: usize| {
        json!({"type": "TemplateProcessing", "single": pieces, "pair": [],
            "special_tokens": {"X": {"id": "X", "ids": vec![5; ids], "tokens": vec!["."; ids]}}})
    };
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let special = json!({"SpecialToken": {"id": "X", "type_id": 0}});
    says(with("post_processor", template(vec![text.clone(); 1000], 1)), &["steps of `post_processor`", "128"]);
    let full = with("post_processor", template(vec![special.clone(), text.clone()], 16));
    says(full, &["the maximum length is 16, expected at least 17", "16 special tokens"]);
    with("post_processor", template(vec![special, text], 15)).unwrap();

    // Each class is an automaton of some 25 KB, built by the library and here.
    let split = |expression: &str| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
    let work = "repeated ones counted as often";
    for many in [r"(?=\pL{200})".repeat(20), r"(?:\pL{40}){50}".into(), r"(\pL)\g<1>".into(), r"\pL".repeat(1200)] {
        says(with("pre_tokenizer", split(&many)), &[work, "expected at most 65536"]);
    }
    says(with("pre_tokenizer", sequence("pretokenizers", vec![split(&"x{900}".repeat(8)); 10])), &[work, "is 72000"]);
    with("pre_tokenizer", split(r"(?i:'s|'t)|\p{N}{1,3}(?=(?:\d{3})*+)|\s+(?!\S)|[^\r\n\p{L}\p{N}]?+\p{L}+")).unwrap();

    // Each byte of a vocabulary is a node of 350 bytes, unless pieces start alike.
    let vocabulary = |piece: &dyn Fn(usize) -> String| {
        let pieces: Vec<Value> = (0..5_000).map(|n| json!([piece(n), -1.0])).collect();
        json!({"type": "Unigram", "unk_id": 0, "vocab": pieces})
    };
    let distinct = vocabulary(&|n| format!("{n:04}{}", "a".repeat(1000)));
    says(with("model", distinct), &["nodes of the trie of the vocabulary is 50", "expected at most 4194304"]);
    with("model", vocabulary(&|n| format!("{}{n:04}", "a".repeat(1000)))).unwrap();
    let added = |count: usize, length: usize| {
        changed(|tokenizer| {
            let token = |n: usize| {
                json!({"id": n, "content": format!("{n:0length$}"), "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": false})
            };
            tokenizer["added_tokens"] = json!((0..count).map(token).collect::<Vec<_>>());
        })
    };
    says(added(1025, 1024), &["bytes of all added tokens is 1049600, expected at most 1048576"]);

    let word = changed(|tokenizer| tokenizer["model"]["max_input_chars_per_word"] = json!(1_000_000_000_000u64));
    says(word, &["`max_input_chars_per_word` is 1000000000000, expected at most 1000"]);
    let prefix = changed(|tokenizer| tokenizer["model"]["continuing_subword_prefix"] = json!("#".repeat(65)));
    says(prefix, &["bytes of `continuing_subword_prefix` is 65, expected at most 64"]);
    // The library cuts the second part of a merge after the prefix without looking where its letters end.
    let merges = |prefix: &str, merges: Value| {
        with(
            "model",
            json!({"type": "BPE", "vocab": {"a": 0, "é": 1, "aé": 2}, "continuing_subword_prefix": prefix, "merges": merges}),
        )
    };
    says(merges("#", json!([["a", "é"]])), &["not of whole letters after it"]);
    says(merges("#", json!(["a é"])), &["not of whole letters after it"]);
    says(merges("###", json!(["a é"])), &["shorter than `continuing_subword_prefix`"]);
    merges("", json!(["a é"])).unwrap();
    says(changed(|tokenizer| tokenizer["more"] = json!(vec![1u8; (1 << 23) + 1])), &["values of the file"]);
}

#[test]
fn growth_of_a_text_is_bounded() {
    fails_on(
        with("normalizer", doubling()),
        "a",
        &["a text of 1 bytes has", "when it is normalized, expected at most 65568"],
    );
    // Each part between special tokens counts.
    let steps = doubling()["normalizers"].as_array().unwrap()[..12].to_vec();
    fails_on(with("normalizer", sequence("normalizers", steps)), &"a[SEP]".repeat(50), &["when it is normalized"]);
    let levels = sequence("normalizers", vec![json!({"type": "ByteLevel"}); 30]);
    fails_on(with("normalizer", levels), "é", &["a text of 2 bytes has"]);
    // The library normalizes added tokens while it builds the tokenizer.
    let added = changed(|tokenizer| {
        tokenizer["normalizer"] = doubling();
        tokenizer["added_tokens"][4]["content"] = json!("a");
        tokenizer["added_tokens"][4]["normalized"] = json!(true);
    });
    says(added, &["tokenizer.json", "a text of 1 bytes has"]);
    // Steps of real tokenizers stay far below.
    let real = ["NFKD", "Lowercase", "StripAccents", "NFC", "NFKC", "ByteLevel"].map(|kind| json!({"type": kind}));
    let encoder = with("normalizer", sequence("normalizers", real.to_vec())).unwrap();
    encoder.encode(&[&"\u{fdfa}".repeat(1000)], &EncodeOptions::default()).unwrap();
}

/// The library panics on these, some at load, some at the first text.
#[test]
fn panics_of_the_library_are_errors() {
    fails_on(
        with("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
        "a",
        &["`tokenizer.json` is malformed"],
    );
    let template = |piece: Value| {
        let pair = [json!({"Sequence": {"id": "A", "type_id": 0}}), json!({"Sequence": {"id": "B", "type_id": 0}})];
        with(
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [piece], "pair": pair, "special_tokens": {}}),
        )
    };
    fails_on(template(json!({"SpecialToken": {"id": "X", "type_id": 0}})), "a", &["`tokenizer.json` is malformed"]);
    fails_on(template(json!({"Sequence": {"id": "B", "type_id": 0}})), "a", &["`tokenizer.json` is malformed"]);
    let malformed = with("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": 5}));
    says(malformed, &["tokenizer.json", "malformed"]);
    // A character map: the size of its trie, units, replacements. The trie leads outside.
    let charsmap = |unit: u32, replacements: &str| {
        let bytes = [&4u32.to_le_bytes()[..], &unit.to_le_bytes(), replacements.as_bytes()].concat();
        with("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(bytes)}))
    };
    fails_on(charsmap(u32::MAX, "x\0"), "a", &["`tokenizer.json` is malformed"]);
    says(
        charsmap(0, &"x".repeat(65)),
        &["bytes of a replacement in `precompiled_charsmap` is 65, expected at most 64"],
    );
    // After a panic the tokenizer still works.
    let encoder = template(json!({"Sequence": {"id": "B", "type_id": 0}})).unwrap();
    let texts = vec!["a"; 100];
    for _ in 0..3 {
        says(encoder.encode(&texts, &EncodeOptions::default()), &["malformed"]);
    }
    // A decoder that panics.
    let folder = folder(0, json!({}));
    let mut json = tokenizer();
    json["decoder"] = json!({"type": "Strip", "content": "a", "start": 0, "stop": 1_000_000});
    json["model"]["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64() < Some(30));
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let model = FillMask::from_folder(folder.path(), DType::F32, &CPU).unwrap();
    says(model.fill_mask("a [MASK]", 109), &["malformed"]);
}

/// Truncation and padding of the file are not used.
#[test]
fn padding_and_truncation_of_the_file_do_nothing() {
    let want = with("padding", json!(null)).unwrap();
    let padding = |strategy: Value, multiple: Value| {
        json!({"strategy": strategy, "direction": "Left", "pad_to_multiple_of": multiple,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"})
    };
    let truncation = json!({"direction": "Left", "max_length": 1, "strategy": "OnlySecond", "stride": 1_000_000_000});
    let text = ["the quick brown fox jumps over the lazy dog and runs far away from the big house"];
    let vectors =
        |encoder: &SentenceEncoder| encoder.encode(&text, &EncodeOptions::default()).unwrap().to_vec2::<f32>().unwrap();
    for other in [
        with("padding", padding(json!({"Fixed": 1_000_000_000_000u64}), json!(null))),
        with("padding", padding(json!("BatchLongest"), json!(0))),
        with("truncation", truncation),
    ] {
        assert_eq!(vectors(&other.unwrap()), vectors(&want));
    }
}

#[test]
fn ids_and_types_that_the_model_lacks_are_named() {
    let encode = |encoder: &SentenceEncoder| encoder.encode(&["a fox", "the fox"], &EncodeOptions::default());
    let encoder = changed(|tokenizer| tokenizer["model"]["vocab"]["the"] = json!(u32::MAX)).unwrap();
    assert!(matches!(encode(&encoder), Err(Error::TokenizerMismatch { found: u32::MAX, .. })));
    says(encode(&encoder), &["the id of token `the` is 4294967295", "less than 109, the vocab_size of the model"]);
    let encoder = changed(|tokenizer| {
        tokenizer["post_processor"]["single"][1]["Sequence"]["type_id"] = json!(2);
    });
    let result = encode(&encoder.unwrap());
    assert!(matches!(result, Err(Error::TokenizerMismatch { found: 2, .. })));
    says(result, &["the segment type of a token is 2", "less than 2, the type_vocab_size of the model"]);
}

#[test]
fn texts_have_a_limit_and_need_a_token() {
    let encoder = with("padding", json!(null)).unwrap();
    let long = "a ".repeat((1 << 23) + 1);
    let result = encoder.encode(&["a", &long], &EncodeOptions::default());
    says(result, &["the length of a text in bytes is 16777218", "at most 16777216"]);
    says(
        encoder.attention(("a", long.as_str()), &MapOptions::default()),
        &["the length of a text in bytes is 16777218"],
    );

    let bare = with("post_processor", json!(null)).unwrap();
    let result = bare.encode(&["a", "", "b"], &EncodeOptions::default());
    says(result, &["the number of tokens of text 1 is 0", "at least 1"]);
    assert_eq!(encoder.encode(&["", " "], &EncodeOptions::default()).unwrap().dims(), [2, 24]);
}

/// Of a pair of texts that are one word each, the library keeps every combination of the parts that it cuts off: of
/// these two, 120 million encodings.
#[test]
fn long_pairs_take_no_more_than_their_length() {
    let folder = folder(1, json!({}));
    let mut json = tokenizer();
    json["pre_tokenizer"] = json!(null);
    json["model"] = json!({"type": "BPE", "vocab": {"a": 13, "b": 14}, "merges": []});
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let encoder = cross(folder.path()).unwrap();
    let (a, b) = ("a".repeat(200_000), "b".repeat(200_000));
    let scores = encoder.scores(&[(&a, &b), (&a[..30], &b[..30])], &EncodeOptions::default()).unwrap();
    assert_eq!(scores[0], scores[1]);
}

/// A text may consist of mask tokens: their scores over the vocabulary are made in parts, with the same result.
#[test]
fn many_holes_are_filled_like_one() {
    let folder = folder(0, json!({}));
    let model = FillMask::from_folder(folder.path(), DType::F32, &CPU).unwrap();
    let text = "a [MASK] ".repeat(6);
    let one = &model.fill_mask(&text, 2).unwrap();
    let all = model.fill_masks(&vec![text.as_str(); 20], 2, &EncodeOptions::default()).unwrap();
    assert_eq!((one.len(), all.len()), (6, 20));
    for (got, want) in all.iter().flat_map(|holes| holes.iter().flatten().zip(one.iter().flatten())) {
        assert!(got.id == want.id && (got.score - want.score).abs() < 1e-6, "{got:?} {want:?}");
    }
}

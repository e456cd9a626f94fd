//! A real published checkpoint: all-MiniLM-L6-v2, in the folder that `CANDLE_ATTENTION_MINILM` names.

use std::path::PathBuf;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, MultiHeadAttention};
use candle_attention_text::{EncodeOptions, MapOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};

use crate::common::{Golden, LAYER, Random, assert_close, fixture, max_diff, numbers};

fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("CANDLE_ATTENTION_MINILM").expect("CANDLE_ATTENTION_MINILM is not set"))
}

fn texts() -> Vec<String> {
    serde_json::from_str(&std::fs::read_to_string(fixture("minilm_sentences.json")).unwrap()).unwrap()
}

/// The vectors of sentence-transformers for 40 texts, whatever the batch they are in.
#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn embeddings_equal_those_of_sentence_transformers() {
    let encoder = SentenceEncoder::from_folder(folder(), DType::F32, &Device::Cpu).unwrap();
    assert_eq!((encoder.embedding_size(), encoder.max_seq_length()), (384, 256));
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert!(texts.len() >= 30);
    let want = Golden::open("minilm.safetensors").get("embeddings");
    let mut all = Vec::new();
    for batch_size in [1, 5, 32, 100] {
        let got = encoder.encode(&texts, &EncodeOptions::default().with_batch_size(batch_size)).unwrap();
        println!("batch size {batch_size}: embeddings differ by at most {:e}", max_diff(&got, &want));
        assert_close("embeddings", &got, &want, LAYER);
        all.push(got);
    }
    for other in &all[1..] {
        assert!(max_diff(other, &all[0]) == 0.0, "the batch changes the vectors");
    }
}

/// Half types: cosine similarity with the f32 vectors.
#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn truncated_embeddings_and_spans_equal_those_of_sentence_transformers() {
    let encoder = SentenceEncoder::from_folder(folder(), DType::F32, &Device::Cpu).unwrap();
    let golden = Golden::open("minilm_outputs.safetensors");
    let texts = texts();
    let texts: Vec<&str> = texts[6..10].iter().map(String::as_str).collect();
    let options = EncodeOptions::default();
    let short = options.with_truncate_dim(64).with_normalize_embeddings(true);
    let truncated = encoder.encode(&texts, &short).unwrap();
    let paragraph = &golden.0.metadata()["paragraph"];
    let bytes = golden.get("spans.bytes").to_vec2::<i64>().unwrap();
    let spans: Vec<_> = bytes.iter().map(|span| span[0] as usize..span[1] as usize).collect();
    let spans = encoder.encode_spans(paragraph, &spans, &options).unwrap();
    for (name, got) in [("truncated", truncated), ("spans", spans)] {
        println!("{name}: differs by at most {:e}", max_diff(&got, &golden.get(name)));
        assert_close(name, &got, &golden.get(name), LAYER);
    }
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn half_types_keep_a_high_cosine_with_f32() {
    let texts = ["A cat sleeps on the sofa.", "Stocks fell sharply today.", "", "你好,世界"];
    let encode = |dtype| {
        let encoder = SentenceEncoder::from_folder(folder(), dtype, &Device::Cpu).unwrap();
        encoder.encode(&texts, &EncodeOptions::default()).unwrap().to_dtype(DType::F32).unwrap()
    };
    let full = encode(DType::F32);
    for (dtype, least) in [(DType::F16, 0.99999), (DType::BF16, 0.999)] {
        let cosines = (encode(dtype) * &full).unwrap().sum(1).unwrap();
        println!("{dtype:?}: cosines {:?}", numbers(&cosines));
        assert!(numbers(&cosines).iter().all(|cosine| *cosine > least));
    }
}

/// A layer's weights are probabilities over the keys that are there.
#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn attention_weights_are_probabilities_over_real_tokens() {
    let checkpoint = Checkpoint::open(folder()).unwrap();
    let source = checkpoint.at("encoder.layer.3.attention", DType::F32, &Device::Cpu);
    let layer = MultiHeadAttention::load(&AttentionConfig::new(384, 12), source).unwrap();
    let xs = Random::new(50).tensor(&[2, 9, 384], DType::F32);
    let mask = AttentionMask::lengths(&[9, 4]);
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let attended =
        layer.attend_with(&inputs, &AttentionOptions::default().with_return_attention_weights(true)).unwrap();
    let weights = attended.attention_weights.unwrap();
    assert_eq!(weights.dims(), [2, 12, 9, 9]);
    let sums = weights.sum(3).unwrap();
    assert_close("sums", &sums, &Tensor::ones((2, 12, 9), DType::F32, &Device::Cpu).unwrap(), 1e-5);
    let hidden = weights.narrow(0, 1, 1).unwrap().narrow(3, 4, 5).unwrap();
    assert!(numbers(&hidden).iter().all(|weight| *weight == 0.0));
}

/// The view that the page opens on: "it" looks at "warm".
#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn the_page_opens_on_a_telling_head() {
    let encoder = SentenceEncoder::from_folder(folder(), DType::F32, &Device::Cpu).unwrap();
    for (text, view, query, key, weight) in [
        ("The cat sat on the mat because it was warm.", [1, 7, 8], "it", "warm", 0.80),
        ("The trophy does not fit into the brown suitcase because it is too large.", [2, 1, 11], "it", "large", 0.78),
    ] {
        let maps = encoder.attention(text, &MapOptions::default()).unwrap();
        let found = crate::visualize::data(&maps.html().unwrap())["view"].clone();
        assert_eq!(found, serde_json::json!({"layer": view[0], "head": view[1], "token": view[2]}), "{text}");
        let key = maps.keys().iter().position(|name| name == key).unwrap();
        let shown = maps.weights(view[0], view[1]).unwrap()[view[2] * maps.keys().len() + key];
        assert!(maps.queries()[view[2]] == query && (shown - weight).abs() < 0.005, "{text}: {shown}");
    }
}

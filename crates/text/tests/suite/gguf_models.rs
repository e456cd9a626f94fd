//! Models in GGUF files, made by llama.cpp's converter, against transformers (`tests/golden/gguf_files.py`).

use candle_attention::checkpoint::{Checkpoint, ModelAttention, WeightSource};
use candle_attention::weights::QkvWeights;
use candle_attention::{AttentionMask, ComputeType, Quantization};
use candle_attention_text::{
    CrossEncoder, EncodeOptions, EncoderKind, ModelFiles, SentenceEncoder, TaskHead, TextClassifier, TextModel,
    TextModelConfig, TokenClassifier, fingerprint, gguf_notes, int8_groups, int8_weights, load_int8, locate_model,
};
use candle_core::{DType, Device, Tensor};

use crate::common::{Golden, assert_close, fixture, max_diff, says};

const CPU: Device = Device::Cpu;

fn texts() -> Vec<String> {
    serde_json::from_slice(&std::fs::read(fixture("gguf/texts.json")).unwrap()).unwrap()
}

fn encode(encoder: &SentenceEncoder) -> Tensor {
    let texts = texts();
    encoder.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>(), &EncodeOptions::default()).unwrap()
}

/// The vectors of a model, from its file and from its bytes.
#[track_caller]
fn model(name: &str) {
    let path = fixture(&format!("gguf/{name}.gguf"));
    let got = encode(&SentenceEncoder::from_folder(&path, DType::F32, &CPU).unwrap());
    assert_close(name, &got, &Golden::open("gguf/models.safetensors").get(name), 1e-5);
    let files = ModelFiles::new().with("model.gguf", std::fs::read(path).unwrap()).unwrap();
    assert_eq!(max_diff(&encode(&SentenceEncoder::from_files(&files, DType::F32, &CPU).unwrap()), &got), 0.0);
}

#[test]
fn bert() {
    model("bert");
}

/// Where no dtype is asked for, the blocks are packed as they are, and inputs are rounded to 8 bits; in a dtype they
/// are dequantized.
#[test]
fn bert_of_blocks() {
    for (name, format) in [("bert-q8_0", Quantization::Q8_0), ("bert-q4_0", Quantization::Q4_0)] {
        let path = fixture(&format!("gguf/{name}.gguf"));
        let golden = Golden::open("gguf/models.safetensors").get(name);
        for dtype in [DType::F32, DType::F64] {
            let wide = encode(&SentenceEncoder::from_folder(&path, dtype, &CPU).unwrap());
            assert_close(name, &wide.to_dtype(DType::F32).unwrap(), &golden, 1e-5);
        }
        let packed = encode(&SentenceEncoder::from_folder(&path, ComputeType::default(), &CPU).unwrap());
        let difference = max_diff(&packed, &golden);
        assert!(difference > 0.0 && difference < 0.02, "{name}: {difference}");

        // One copy, whose values are those of the file.
        let weights = Checkpoint::open(&path).unwrap();
        let source = weights.at("encoder.layer.0.attention", ComputeType::default(), &CPU);
        let value = "self.value.weight";
        assert_eq!(source.quantization(value), Some(format), "{name}");
        assert_eq!(source.quantization("self.value.bias"), None, "{name}");
        let config = weights.config().unwrap().unwrap();
        let layer = ModelAttention::load(&config, source).unwrap().layer.quantized(format).unwrap();
        let QkvWeights::Split(held) = layer.weights().unwrap().qkv else { panic!("{name}: not apart") };
        let full = weights.tensor(&format!("encoder.layer.0.attention.{value}"), &CPU).unwrap();
        assert_eq!(max_diff(&held[2].weight, &full), 0.0, "{name}");
    }
}

#[test]
fn distilbert() {
    model("distilbert");
}

#[test]
fn roberta() {
    model("roberta");
}

#[test]
fn xlm_roberta() {
    model("xlm-roberta");
}

#[test]
fn nomic_bert() {
    model("nomic-bert");
}

#[test]
fn modern_bert() {
    model("modern-bert");
}

#[test]
fn qwen3() {
    model("qwen3");
}

#[test]
fn llama() {
    model("llama");
}

#[test]
fn gemma_embedding_with_its_dense_layers() {
    model("gemma-embedding");
}

/// Its code is not in transformers; the model that the file was made of is computed by this crate.
#[test]
fn jina_bert_v2() {
    let ids = Tensor::new(&[[2u32, 9, 14, 21, 3], [2, 40, 41, 42, 3]], &CPU).unwrap();
    let forward = |path: &str, config: &TextModelConfig| {
        let weights = Checkpoint::open(fixture(path)).unwrap();
        let model = TextModel::load(config, weights.at("", DType::F32, &CPU)).unwrap();
        model.forward(&ids, None, &AttentionMask::full()).unwrap()
    };
    let file = Checkpoint::open(fixture("gguf/jina-bert-v2.gguf")).unwrap();
    let config: TextModelConfig = serde_json::from_value(file.config().unwrap().unwrap()).unwrap();
    let got = forward("gguf/jina-bert-v2.gguf", &config);
    let own = TextModelConfig::from_file(fixture("gguf/jina-bert-v2/config.json")).unwrap();
    assert_eq!(max_diff(&got, &forward("gguf/jina-bert-v2", &own)), 0.0);
    encode(&SentenceEncoder::from_folder(fixture("gguf/jina-bert-v2.gguf"), DType::F32, &CPU).unwrap());
}

/// A folder with nothing but a file, and one whose own files go before the metadata.
#[test]
fn a_folder_with_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(fixture("gguf/bert.gguf"), &path).unwrap();
    let alone = encode(&SentenceEncoder::from_folder(folder.path(), DType::F32, &CPU).unwrap());
    assert_close("alone", &alone, &Golden::open("gguf/models.safetensors").get("bert"), 1e-5);
    assert_eq!(EncoderKind::from_folder(&path).unwrap(), EncoderKind::Sentence);
    assert_eq!(locate_model(path.to_str().unwrap(), None, false).unwrap(), path);
    let print = fingerprint(&path).unwrap();
    assert_ne!(print, fingerprint(fixture("gguf/bert-q8_0.gguf")).unwrap());
    let before = fingerprint(folder.path()).unwrap();
    std::fs::copy(fixture("gguf/bert-q8_0.gguf"), &path).unwrap();
    assert_ne!(before, fingerprint(folder.path()).unwrap());

    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture(&format!("tiny-bert/{name}")), folder.path().join(name)).unwrap();
    }
    // Its sizes are those of another model.
    says(SentenceEncoder::from_folder(folder.path(), DType::F32, &CPU), &["word_embeddings"]);
}

/// Keys of the tokenizer and of pooling that are not known, or that lie.
/// A file below the top is no other model, as on disk.
#[test]
fn a_file_in_a_folder_of_the_model_is_ignored() {
    let read = |name: &str| std::fs::read(fixture(name)).unwrap();
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let files = names
        .iter()
        .fold(ModelFiles::new(), |files, name| files.with(*name, read(&format!("tiny-bert/{name}"))).unwrap());
    let vectors = |files: &ModelFiles| encode(&SentenceEncoder::from_files(files, DType::F32, &CPU).unwrap());
    let want = vectors(&files);
    let files = files.with("gguf/model-q4.gguf", read("gguf/bert-q4_0.gguf")).unwrap();
    assert_eq!(max_diff(&vectors(&files), &want), 0.0);
}

#[test]
fn metadata_that_lies() {
    let bytes = std::fs::read(fixture("gguf/bert.gguf")).unwrap();
    let changed = |from: &[u8], to: &[u8], parts: &[&str]| {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to);
        says(ModelFiles::new().with("model.gguf", changed), parts);
    };
    changed(b"pooling_type\x04\0\0\0\x01", b"pooling_type\x04\0\0\0\x00", &["pooling_type", "0", "mean"]);
    let lies: [&str; 3] = ["blk.1.", "another block", "1 blocks, as `bert.block_count` states"];
    changed(b"block_count\x04\0\0\0\x02", b"block_count\x04\0\0\0\x01", &lies);
    let named = |name: &[u8; 4]| [&b"ggml.model\x08\0\0\0\x04\0\0\0\0\0\0\0"[..], name].concat();
    changed(&named(b"bert"), &named(b"rwkv"), &["tokenizer.ggml.model", "rwkv", "gpt2"]);
    changed(b"ggml.tokens", b"ggml.tockens"[..11].as_ref(), &["tokenizer.ggml.tokens", "absent"]);
    changed(b"unknown_token_id\x04\0\0\0\x01\0", b"unknown_token_id\x04\0\0\0\x01\xff", &["unknown_token_id", "65281"]);
    let mut reranker = bytes.clone();
    let at = reranker.windows(12).position(|window| window == b"pooling_type").unwrap();
    reranker[at + 16] = 4;
    let files = ModelFiles::new().with("model.gguf", reranker).unwrap();
    says(SentenceEncoder::from_files(&files, DType::F32, &CPU), &["pooling_type", "a reranker scores pairs"]);
    let mut qwen = std::fs::read(fixture("gguf/qwen3.gguf")).unwrap();
    let at = qwen.windows(5).position(|window| window == b"qwen2").unwrap();
    qwen[at..at + 5].copy_from_slice(b"qwenX");
    says(ModelFiles::new().with("model.gguf", qwen), &["tokenizer.ggml.pre", "qwenX", "qwen2"]);
    says(SentenceEncoder::from_folder(fixture("gguf/types.gguf"), DType::F32, &CPU), &["types.gguf", "architecture"]);
    says(ModelFiles::new().with("model.gguf", b"GGU".to_vec()), &["model.gguf"]);
}

/// What only folders have: weights to write in int8, and heads for tokens; and a file without any head.
#[test]
fn what_is_not_done_with_a_file_says_so() {
    let path = fixture("gguf/bert.gguf");
    let head = ["bert.gguf", "has no head"];
    says(TaskHead::from_folder(&path), &head);
    says(TextClassifier::from_folder(&path, DType::F32, &CPU).map(drop), &head);
    says(TokenClassifier::from_folder(&path, DType::F32, &CPU).map(drop), &head);
    says(CrossEncoder::from_folder(&path, DType::F32, &CPU).map(drop), &head);
    let int8 = ["bert.gguf", "is GGUF, expected a folder"];
    says(int8_weights(&path), &int8);
    says(int8_groups(&path), &int8);
    says(load_int8(&path, |_| true, |_| false).map(drop), &int8);
}

/// The bytes of a model's file with texts and keys replaced; the sum of the lengths stays.
fn renamed(name: &str, names: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = std::fs::read(fixture(&format!("gguf/{name}.gguf"))).unwrap();
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    for (from, to) in names {
        let (from, to) = (text(from), text(to));
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes.splice(at..at + from.len(), to);
    }
    bytes
}

/// Checks that a file gives the vectors of a model, and the number of its notes.
#[track_caller]
fn gives(name: &str, bytes: Vec<u8>, notes: usize) {
    assert_eq!(gguf_notes(&Checkpoint::from_bytes(bytes.clone()).unwrap()).unwrap().len(), notes, "{name}");
    let files = ModelFiles::new().with("model.gguf", bytes).unwrap();
    let got = encode(&SentenceEncoder::from_files(&files, DType::F32, &CPU).unwrap());
    assert_close(name, &got, &Golden::open("gguf/models.safetensors").get(name), 1e-5);
}

const STARTS: (&str, &str) = ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_bxs_token");
const ENDS: (&str, &str) = ("tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_exs_token");

/// Files of earlier converters: encoders have both special tokens, a decoder that is pooled at its last token an end.
#[test]
fn special_tokens_that_the_metadata_does_not_state() {
    const END_OF_TURN: (&str, &str) = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id");
    for name in ["roberta", "xlm-roberta", "modern-bert", "gemma-embedding"] {
        gives(name, renamed(name, &[STARTS]), 0);
        gives(name, renamed(name, &[ENDS]), 0);
        gives(name, renamed(name, &[STARTS, ENDS, END_OF_TURN]), 0);
    }
    gives("qwen3", renamed("qwen3", &[ENDS]), 0);
    gives("qwen3", renamed("qwen3", &[END_OF_TURN]), 0);
    gives("qwen3", renamed("qwen3", &[ENDS, END_OF_TURN]), 0);
    // Its template has a start alone, of which the converter says nothing.
    gives("llama", renamed("llama", &[]), 1);
}

/// What is stated goes before what is usual.
#[test]
fn special_tokens_that_the_metadata_states() {
    let start = b"add_bos_token\x07\0\0\0";
    let stated = |flag: u8| {
        let mut bytes = renamed("roberta", &[]);
        let at = bytes.windows(start.len()).position(|window| window == start).unwrap() + start.len();
        bytes[at] = flag;
        let files = ModelFiles::new().with("model.gguf", bytes).unwrap();
        encode(&SentenceEncoder::from_files(&files, DType::F32, &CPU).unwrap())
    };
    assert!(max_diff(&stated(0), &stated(1)) > 1e-3);
}

/// Files of earlier converters: the vocabulary shows whether texts are lower-cased.
#[test]
fn normalizer_that_the_metadata_does_not_state() {
    let lower_case = ("tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.lowerkase");
    for name in ["bert", "distilbert", "nomic-bert"] {
        gives(name, renamed(name, &[lower_case]), 0);
    }
}

/// Jina's byte-level tokenizers split texts as GPT-2's.
#[test]
fn splits_of_jina() {
    for (split, name) in
        [("jina-v2-code", "general.typ"), ("jina-v2-de", "general.type_"), ("jina-v2-es", "general.type_")]
    {
        gives("roberta", renamed("roberta", &[("roberta-bpe", split), ("general.type", name)]), 0);
    }
}

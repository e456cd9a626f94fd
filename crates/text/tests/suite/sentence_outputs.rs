//! The options of `encode` and what follows it, against sentence-transformers: truncation, prompts, tokens, spans,
//! quantization, similarities.

use candle_attention_text::{
    EncodeOptions, Precision, QuantizationRanges, QuantizedValues, SentenceEncoder, SimilarityFunction,
    quantize_embeddings,
};
use candle_core::{DType, Device, Tensor};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::common::{Golden, LAYER, assert_close, fixture, max_diff, numbers, says};
use crate::models::tiny;

const CPU: Device = Device::Cpu;

/// The text of the golden spans.
const LONG: &str = "The cat sat on the mat. Café 你好: a dog reads, and 12 birds sat!";

fn golden() -> Golden {
    Golden::open("sentence_outputs.safetensors")
}

fn texts() -> Vec<String> {
    serde_json::from_str(&std::fs::read_to_string(fixture("tiny_sentences.json")).unwrap()).unwrap()
}

/// The tiny model with this `config_sentence_transformers.json`, without its normalization if `bare`.
fn model(config: &str, bare: bool) -> SentenceEncoder {
    let folder = tiny();
    std::fs::write(folder.path().join("config_sentence_transformers.json"), config).unwrap();
    if bare {
        let path = folder.path().join("modules.json");
        let mut modules: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(modules.pop().unwrap()["path"], "2_Normalize");
        std::fs::write(path, serde_json::to_vec(&modules).unwrap()).unwrap();
    }
    SentenceEncoder::from_folder(folder.path(), DType::F32, &CPU).unwrap()
}

fn with_prompts() -> SentenceEncoder {
    model(r#"{"prompts": {"query": "the cat ", "passage": "this text "}}"#, false)
}

fn close(name: &str, got: &Tensor) {
    let want = golden().get(name);
    println!("{name}: differs by at most {:e}", max_diff(got, &want));
    assert_close(name, got, &want, LAYER);
}

#[test]
fn embeddings_are_truncated_before_they_are_normalized() {
    let (encoder, texts) = (model("{}", true), texts());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let options = EncodeOptions::default().with_batch_size(3);
    let short = options.with_truncate_dim(7);
    close("truncated", &encoder.encode(&texts, &short).unwrap());
    close("truncated_normalized", &encoder.encode(&texts, &short.with_normalize_embeddings(true)).unwrap());
    close("normalized", &encoder.encode(&texts, &options.with_normalize_embeddings(true)).unwrap());
    // More features than there are, and no texts.
    let whole = encoder.encode(&texts, &options.with_truncate_dim(100)).unwrap();
    assert_eq!(numbers(&whole), numbers(&encoder.encode(&texts, &options).unwrap()));
    assert_eq!(encoder.encode(&[], &short).unwrap().dims(), [0, 7]);
    says(encoder.encode(&texts, &options.with_truncate_dim(0)), &["truncate_dim = 0", "at least 1"]);

    // A model that states it, and options that replace it.
    let stated = model(r#"{"truncate_dim": 7}"#, true);
    assert_eq!(stated.embedding_size(), 7);
    close("truncated", &stated.encode(&texts, &options).unwrap());
    assert_eq!(stated.encode(&texts, &options.with_truncate_dim(9)).unwrap().dims(), [8, 9]);
    let folder = tiny();
    let config = folder.path().join("config_sentence_transformers.json");
    std::fs::write(config, r#"{"truncate_dim": 0}"#).unwrap();
    let refused = SentenceEncoder::from_folder(folder.path(), DType::F32, &CPU);
    says(refused, &["config_sentence_transformers.json", "truncate_dim is 0"]);
}

#[test]
fn a_prompt_is_named_or_given_and_queries_and_documents_have_theirs() {
    let (encoder, texts) = (with_prompts(), texts());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let options = EncodeOptions::default().with_batch_size(3);
    close("prompt", &encoder.encode(&texts, &options.with_prompt("hello ")).unwrap());
    close("query", &encoder.encode_query(&texts, &options).unwrap());
    close("document", &encoder.encode_document(&texts, &options).unwrap());
    let same = |a: candle_attention::Result<Tensor>, b: candle_attention::Result<Tensor>| {
        assert_eq!(numbers(&a.unwrap()), numbers(&b.unwrap()));
    };
    // What the options name wins over the task, and a prompt over its name.
    let passage = options.with_prompt_name("passage");
    same(encoder.encode_document(&texts, &passage), encoder.encode(&texts, &options.with_prompt("this text ")));
    same(encoder.encode_query(&texts, &options.with_prompt("")), encoder.encode(&texts, &options));
    same(encoder.encode(&texts, &passage.with_prompt("")), encoder.encode(&texts, &options));
    // Every model has both, and an empty one replaces the default prompt.
    let other = model(r#"{"prompts": {"query": null, "all": "the cat "}, "default_prompt_name": "all"}"#, false);
    same(other.encode_query(&texts, &options), encoder.encode(&texts, &options));
    same(other.encode(&texts, &options), encoder.encode_query(&texts, &options));
    says(
        other.encode(&texts, &options.with_prompt_name("passage")),
        &["prompt_name is passage", "all or document or query"],
    );
}

#[test]
fn tokens_have_vectors_of_their_own() {
    let (encoder, texts, golden) = (with_prompts(), texts(), golden());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for batch_size in [1, 3, 8] {
        let options = EncodeOptions::default().with_batch_size(batch_size).with_prompt("hello ");
        let tokens = encoder.encode_tokens(&texts, &options.with_truncate_dim(3)).unwrap();
        for (i, got) in tokens.iter().enumerate() {
            assert_close("tokens", got, &golden.get(&format!("tokens.{i}")), LAYER);
        }
        assert_eq!(tokens.len(), 8);
    }
}

#[test]
fn spans_are_pooled_from_the_tokens_of_the_whole_text() {
    let (encoder, golden) = (with_prompts(), golden());
    let options = EncodeOptions::default().with_max_length(40);
    let bytes = golden.get("spans.bytes").to_vec2::<i64>().unwrap();
    let spans: Vec<_> = bytes.iter().map(|span| span[0] as usize..span[1] as usize).collect();
    let embeddings = encoder.encode_spans(LONG, &spans, &options).unwrap();
    close("spans", &embeddings);
    // One alone has the same bits.
    for (i, span) in spans.iter().enumerate() {
        let alone = encoder.encode_spans(LONG, std::slice::from_ref(span), &options).unwrap();
        assert_eq!(numbers(&alone), numbers(&embeddings.narrow(0, i, 1).unwrap()));
    }
    assert_eq!(encoder.encode_spans(LONG, &[], &options).unwrap().dims(), [0, 24]);
    let cut = AtomicUsize::new(0);
    let count = |_: usize| {
        cut.fetch_add(1, Relaxed);
    };
    let truncated = options.with_max_length(8).with_on_truncated(&count);
    says(
        encoder.encode_spans(LONG, &spans, &truncated),
        &["the number of tokens of span 27..29 is 0", "end at byte 22"],
    );
    assert_eq!(cut.load(Relaxed), 1);
    let span = |span: std::ops::Range<usize>, options: &EncodeOptions| {
        encoder.encode_spans(LONG, std::slice::from_ref(&span), options)
    };
    says(span(3..3, &options), &["the number of tokens of span 3..3 is 0"]);
    says(span(0..1000, &options), &["a span is 0..1000", "inside the text of 68 bytes"]);
    says(span(0..3, &options.with_batch_size(0)), &["batch_size = 0"]);
}

#[test]
fn quantized_embeddings_are_equal_to_the_bit() {
    let golden = golden();
    let floats = golden.get("floats");
    let ranges = QuantizationRanges::from_embeddings(&golden.get("calibration")).unwrap();
    let cases = [
        ("int8", None),
        ("uint8", None),
        ("binary", None),
        ("ubinary", None),
        ("int8.ranges", Some(&ranges)),
        ("uint8.calibration", Some(&ranges)),
    ];
    for (name, ranges) in cases {
        let precision: Precision = name.split('.').next().unwrap().parse().unwrap();
        assert!(name.starts_with(&precision.to_string()));
        let quantized = quantize_embeddings(&floats, precision, ranges).unwrap();
        let want = golden.get(name);
        assert_eq!(want.dims(), [quantized.dims().0, quantized.dims().1], "{name}");
        let got: Vec<f64> = match quantized.into_values() {
            QuantizedValues::Int8(values) => values.into_iter().map(f64::from).collect(),
            QuantizedValues::Uint8(values) => values.into_iter().map(f64::from).collect(),
            other => panic!("{other:?}"),
        };
        assert_eq!(got, numbers(&want), "{name}");
    }
    let same = quantize_embeddings(&floats, Precision::Float32, None).unwrap();
    assert_eq!(same.values(), &QuantizedValues::Float32(floats.flatten_all().unwrap().to_vec1().unwrap()));
}

#[test]
fn what_cannot_be_quantized_is_an_error() {
    let floats = golden().get("floats");
    let one = floats.narrow(0, 0, 1).unwrap();
    says(quantize_embeddings(&one, Precision::Int8, None), &["the number of embeddings", "is 1", "at least 2"]);
    assert!(quantize_embeddings(&one, Precision::Binary, None).is_ok());
    let none = floats.narrow(0, 0, 0).unwrap();
    assert_eq!(quantize_embeddings(&none, Precision::Int8, None).unwrap().dims(), (0, 21));
    assert_eq!(quantize_embeddings(&none, Precision::Ubinary, None).unwrap().dims(), (0, 3));
    let narrow = QuantizationRanges::new(vec![0.0; 4], vec![1.0; 4]).unwrap();
    says(quantize_embeddings(&floats, Precision::Uint8, Some(&narrow)), &["features of the ranges is 4", "21"]);
    says(QuantizationRanges::new(vec![0.0, 2.0], vec![1.0, 1.0]), &["the range of feature 1 is 2 to 1"]);
    says(QuantizationRanges::new(vec![0.0], vec![f32::NAN]), &["the range of feature 0 is 0 to NaN"]);
    says(QuantizationRanges::new(vec![0.0], vec![]), &["the number of largest values is 0"]);
    let nan = (&floats * f64::NAN).unwrap();
    says(quantize_embeddings(&nan, Precision::Binary, None), &["NaN or an infinity in embedding 0"]);
    let ids = Tensor::new(&[[1u32]], &CPU).unwrap();
    says(quantize_embeddings(&ids, Precision::Binary, None), &["embeddings", "u32", "a float"]);
    says("int4".parse::<Precision>(), &["the precision is int4", "float32, int8, uint8, binary, ubinary"]);
}

#[test]
fn similarities_equal_those_of_sentence_transformers() {
    let floats = golden().get("floats");
    let (a, b) = (floats.narrow(0, 0, 4).unwrap(), floats.narrow(0, 4, 5).unwrap());
    let pairs = floats.narrow(0, 4, 4).unwrap();
    for name in ["cosine", "dot", "euclidean", "manhattan"] {
        let encoder = model(&format!(r#"{{"similarity_fn_name": "{name}"}}"#), false);
        assert_eq!(encoder.similarity_fn().to_string(), name);
        close(name, &encoder.similarity(&a, &b).unwrap());
        close(&format!("{name}.pairwise"), &encoder.similarity_pairwise(&a, &pairs).unwrap());
        assert_eq!(encoder.similarity(&a.narrow(0, 0, 0).unwrap(), &b).unwrap().dims(), [0, 5]);
        says(encoder.similarity(&a, &b.narrow(1, 0, 3).unwrap()), &["the second embeddings", "[5, 3]", "(m, 21)"]);
        let many = Tensor::zeros((1 << 24, 1), DType::F32, &CPU).unwrap();
        says(
            encoder.similarity(&many, &many),
            &["the memory for the similarities is 1125899906842624 bytes", "can be allocated"],
        );
        says(encoder.similarity_pairwise(&a, &b), &["the second embeddings", "[5, 21]", "[4, 21]"]);
    }
    // Cosine is what a model without a name has, and one with a name for several vectors.
    assert_eq!(model("{}", false).similarity_fn(), SimilarityFunction::Cosine);
    assert_eq!(model(r#"{"similarity_fn_name": "maxsim"}"#, false).similarity_fn(), SimilarityFunction::Cosine);
    says("maxsim".parse::<SimilarityFunction>(), &["the similarity function is maxsim", "one of cosine, dot"]);
}

#[test]
fn texts_of_an_iterator_are_taken_window_by_window() {
    let folder = crate::models::modules_folder("static");
    let encoder = SentenceEncoder::from_folder(folder.path(), DType::F32, &CPU).unwrap();
    let taken = std::cell::Cell::new(0);
    let text = |i: usize| format!("{} text {i}", "a ".repeat(i % 7));
    let many = |count: usize| {
        (0..count).map(|i| {
            taken.set(i + 1);
            text(i)
        })
    };
    let mut embeddings = encoder.encode_iter(many(8200), EncodeOptions::default());
    let first = embeddings.next().unwrap().unwrap();
    // A window and no more.
    assert_eq!((first.dims(), taken.get()), ([10].as_slice(), 8192));
    let rest: Vec<Tensor> = embeddings.map(|embedding| embedding.unwrap()).collect();
    assert_eq!((rest.len(), taken.get()), (8199, 8200));
    for i in [1, 2, 5000, 8191, 8192, 8199] {
        let alone = encoder.encode(&[&text(i)], &EncodeOptions::default()).unwrap();
        assert_eq!(numbers(&rest[i - 1]), numbers(&alone), "text {i}");
    }
    assert_eq!(encoder.encode_iter(many(0), EncodeOptions::default()).count(), 0);
    // An error ends it, and counts the texts from the first one.
    let cut = std::sync::Mutex::new(Vec::new());
    let on_truncated = |i: usize| cut.lock().unwrap().push(i);
    let options = EncodeOptions::default().with_on_truncated(&on_truncated);
    let long = |i: usize| if i == 8195 { "a ".repeat(20) } else { String::new() };
    assert_eq!(encoder.encode_iter((0..8200).map(long), options).filter(Result::is_ok).count(), 8200);
    assert_eq!(*cut.lock().unwrap(), [8195]);
    let mut failing = encoder.encode_iter(["a", "b"], options.with_prompt_name("no"));
    says(failing.next().unwrap(), &["prompt_name is no"]);
    assert!(failing.next().is_none());
}

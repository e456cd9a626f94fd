//! The search among vectors, and the fingerprint of a model.

use std::sync::Mutex;

use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::search::Vectors;
use candle_attention_text::{EncodeOptions, SentenceEncoder, fingerprint};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::{fixture, says};
use crate::models::lines;
use crate::models::tiny;

/// The largest change of a score by rounding to f16.
const ROUNDED: f64 = 1e-3;

fn encoder() -> SentenceEncoder {
    SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &Device::Cpu).unwrap()
}

fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn embedded(texts: &[&str], encoder: &SentenceEncoder) -> Vectors {
    let mut vectors = Vectors::new(encoder.embedding_size()).unwrap();
    vectors.embed(texts, encoder, &EncodeOptions::default()).unwrap();
    assert_eq!(vectors.len(), texts.len());
    vectors
}

/// The product of each row with the query at length 1, in f64.
fn brute_force(rows: &Tensor, query: &[f32]) -> Vec<f64> {
    let rows = rows.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
    let length = query.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let product = |row: &Vec<f64>| row.iter().zip(query).map(|(a, &b)| a * f64::from(b)).sum::<f64>() / length;
    rows.iter().map(product).collect()
}

#[test]
fn order_and_scores_equal_brute_force() {
    // A model that does not normalise: the cosine is not its product.
    let folder = tiny();
    let modules = std::fs::read_to_string(folder.path().join("modules.json")).unwrap();
    let mut modules: Vec<serde_json::Value> = serde_json::from_str(&modules).unwrap();
    modules.pop();
    std::fs::write(folder.path().join("modules.json"), serde_json::to_string(&modules).unwrap()).unwrap();
    let encoder = SentenceEncoder::from_folder(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let texts = lines(2500);
    let texts = borrowed(&texts);
    let vectors = embedded(&texts, &encoder);
    let exact = encoder.encode(&texts, &EncodeOptions::default()).unwrap();
    let lengths = exact.to_dtype(DType::F64).unwrap().sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
    assert!((lengths.get(0).unwrap().to_vec1::<f64>().unwrap()[0] - 1.0).abs() > 0.1);
    let exact = exact.to_dtype(DType::F64).unwrap().broadcast_div(&lengths).unwrap();
    let kept = exact.to_dtype(DType::F32).unwrap().to_dtype(DType::F16).unwrap();
    let mut worst = 0f64;
    for text in ["the cat", "hello world", "zebra"] {
        let query = encoder.encode(&[text], &EncodeOptions::default()).unwrap().get(0).unwrap();
        let query = query.to_vec1::<f32>().unwrap();
        let (kept, exact) = (brute_force(&kept, &query), brute_force(&exact, &query));
        for top_k in [0, 1, 10, 2499, 2500, 4000] {
            let found = vectors.search(&query, top_k).unwrap();
            assert_eq!(found.len(), top_k.min(texts.len()));
            let mut want: Vec<usize> = (0..texts.len()).collect();
            want.sort_by(|&a, &b| kept[b].total_cmp(&kept[a]));
            for (hit, &want) in found.iter().zip(&want) {
                // Another text only where f32 cannot tell the two apart.
                assert!((kept[hit.index] - kept[want]).abs() < 1e-6, "{text}: {hit:?}, want text {want}");
                assert!((f64::from(hit.score) - kept[hit.index]).abs() < 1e-6, "{text}: {hit:?}");
                worst = worst.max((f64::from(hit.score) - exact[hit.index]).abs());
            }
            let mut seen: Vec<usize> = found.iter().map(|hit| hit.index).collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), found.len());
        }
    }
    println!("f16 moves a score by {worst:e} at most, {} numbers", encoder.embedding_size());
    assert!(worst < ROUNDED);
    let itself = encoder.encode(&texts[77..78], &EncodeOptions::default()).unwrap().get(0).unwrap();
    assert_eq!(vectors.search(&itself.to_vec1().unwrap(), 1).unwrap()[0].index, 77);
    says(vectors.search(&[1.0; 23], 1), &["the embedding of the query has shape [23], expected (24)"]);
    says(vectors.search(&[f32::NAN; 24], 1), &["the embedding of the query is not finite"]);
    assert!(Vectors::new(24).unwrap().search(&[1.0; 24], 5).unwrap().is_empty());
}

#[test]
fn texts_of_equal_scores_are_in_their_own_order() {
    let encoder = encoder();
    let texts = ["hello world", "the cat", "hello world", "the cat", "the cat"];
    let vectors = embedded(&texts, &encoder);
    let query = encoder.encode(&["the cat"], &EncodeOptions::default()).unwrap().get(0).unwrap().to_vec1().unwrap();
    for top_k in 1..=5 {
        let found: Vec<usize> = vectors.search(&query, top_k).unwrap().iter().map(|hit| hit.index).collect();
        assert_eq!(found, [1, 3, 4, 0, 2][..top_k]);
    }
}

/// Texts are embedded in chunks, with one progress over all of them. Chunks leave no trace in the vectors.
#[test]
fn chunks_of_texts_are_embedded_as_one() {
    let encoder = encoder();
    let texts = lines(1500);
    let texts = borrowed(&texts);
    let counts = Mutex::new(Vec::new());
    let on_progress = |done: usize, all: usize| counts.lock().unwrap().push((done, all));
    let options = EncodeOptions::default().with_batch_size(700).with_on_progress(&on_progress);
    let mut vectors = Vectors::new(24).unwrap();
    vectors.embed(&texts, &encoder, &options).unwrap();
    assert_eq!(*counts.lock().unwrap(), [(700, 1500), (1400, 1500), (1500, 1500)]);
    let query = encoder.encode(&["the cat"], &EncodeOptions::default()).unwrap().get(0).unwrap().to_vec1().unwrap();
    let whole = vectors.search(&query, 1500).unwrap();
    let mut parts = embedded(&texts[..1030], &encoder);
    parts.embed(&texts[1030..], &encoder, &EncodeOptions::default()).unwrap();
    assert_eq!(parts.search(&query, 1500).unwrap(), whole);
}

#[test]
fn fingerprint_depends_on_the_loaded_files_alone() {
    let own = fingerprint(fixture("tiny-bert")).unwrap();
    assert_eq!(own.len(), 64);
    let changed = |file: &str| {
        let folder = tiny();
        let mut bytes = std::fs::read(folder.path().join(file)).unwrap_or_default();
        bytes.push(b' ');
        std::fs::write(folder.path().join(file), bytes).unwrap();
        fingerprint(folder.path()).unwrap()
    };
    let files = ["model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json", "modules.json"];
    let mut all: Vec<String> = files.map(changed).into_iter().chain([own.clone()]).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), files.len() + 1);
    assert_eq!(changed("README.md"), own);
    assert_eq!(fingerprint(tiny().path()).unwrap(), own);
    let renamed = tiny();
    let path = |name: &str| renamed.path().join(name);
    std::fs::rename(path("sentence_bert_config.json"), path("sentence_other_config.json")).unwrap();
    assert_ne!(fingerprint(renamed.path()).unwrap(), own);
    // Shards of any name that the index lists.
    let sharded = tiny();
    let path = |name: &str| sharded.path().join(name);
    std::fs::rename(path("model.safetensors"), path("model-1.bin")).unwrap();
    let tensors = Checkpoint::open(path("model-1.bin")).unwrap();
    let map: serde_json::Map<String, Value> = tensors.names().map(|name| (name.into(), "model-1.bin".into())).collect();
    std::fs::write(path("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    let before = fingerprint(sharded.path()).unwrap();
    let mut bytes = std::fs::read(path("model-1.bin")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path("model-1.bin"), bytes).unwrap();
    assert_ne!(fingerprint(sharded.path()).unwrap(), before);
    // The base model of an adapter.
    let (base, adapted) = (tiny(), tempfile::tempdir().unwrap());
    crate::common::programs::copy_folder(&fixture("lora/sentences"), adapted.path());
    let config = adapted.path().join("adapter_config.json");
    let mut keys: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    keys["base_model_name_or_path"] = base.path().to_str().unwrap().into();
    std::fs::write(&config, keys.to_string()).unwrap();
    let before = fingerprint(adapted.path()).unwrap();
    let weights = base.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(weights, bytes).unwrap();
    assert_ne!(fingerprint(adapted.path()).unwrap(), before);
    says(fingerprint("/no/such/folder"), &["/no/such/folder: No such file"]);
}

#[test]
fn wrong_vectors_are_named() {
    let mut vectors = Vectors::new(3).unwrap();
    vectors.push(&[1.0, 2.0, 2.0]).unwrap();
    let message = |result: candle_attention::Result<()>| result.unwrap_err().to_string();
    assert_eq!(message(vectors.push(&[1.0])), "vector 1 has shape [1], expected (3)");
    assert_eq!(message(vectors.push(&[1.0, f32::NAN, 0.0])), "vector 1 is not finite, expected finite numbers");
    let query = vectors.search(&[0.0; 2], 1).map(drop);
    assert_eq!(message(query), "the embedding of the query has shape [2], expected (3)");
    assert_eq!(message(Vectors::new(0).map(drop)), "the size of an embedding is 0, expected at least 1");
    let other = message(vectors.append(Vectors::new(2).unwrap()));
    assert_eq!(other, "the size of the vectors is 2, expected 3");
    // Embeddings of another size.
    let embedded = message(vectors.embed(&["the cat"], &encoder(), &EncodeOptions::default()));
    assert_eq!(embedded, "the embedding of `the cat` has shape [24], expected (3)");
    assert_eq!(vectors.len(), 1);
    // Vectors whose size no memory has are an error too, not the end of the program.
    let huge = Vectors::new(usize::MAX).unwrap().embed(&["the cat"; 2], &encoder(), &EncodeOptions::default());
    assert!(message(huge).starts_with("the embedding of `the cat` has shape [24], expected ("));
}

#[test]
fn equal_scores_keep_their_order() {
    let mut vectors = Vectors::new(2).unwrap();
    for vector in [[0.0, 1.0], [5.0, 0.0], [0.0, 0.0], [2.0, 0.0], [-1.0, 0.0]] {
        vectors.push(&vector).unwrap();
    }
    let found: Vec<_> = vectors.search(&[1.0, 0.0], 9).unwrap().iter().map(|hit| (hit.index, hit.score)).collect();
    assert_eq!(found, [(1, 1.0), (3, 1.0), (0, 0.0), (2, 0.0), (4, -1.0)]);
    assert!(vectors.search(&[1.0, 0.0], 0).unwrap().is_empty());
}

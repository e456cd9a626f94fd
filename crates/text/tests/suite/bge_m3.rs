//! The three heads of BGE-M3 against their formulas in PyTorch (`tests/golden/sparse.py`).

use std::path::Path;

use candle_attention::Error;
use candle_attention_text::{EncodeOptions, M3Encoder, max_sim};
use candle_core::{DType, Device, Tensor};

use crate::common::programs::copy_folder;
use crate::common::{Golden, assert_close, fixture, max_diff, says};

const CPU: Device = Device::Cpu;
const MODEL: f64 = 2e-5;

fn open(folder: &Path) -> Result<M3Encoder, Error> {
    M3Encoder::from_folder(folder, DType::F32, &CPU)
}

#[test]
fn the_three_embeddings_of_a_text() {
    let encoder = open(&fixture("sparse/bge_m3")).unwrap();
    let golden = Golden::open("sparse/bge_m3.safetensors");
    let said = std::fs::read_to_string(fixture("sparse/splade.json")).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let texts: Vec<&str> = said["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let options = EncodeOptions::default();
    let embeddings = encoder.encode_all(&texts, &options).unwrap();
    let (dense, sparse) = (golden.get("dense"), golden.get("sparse"));
    for (i, (text, embedding)) in texts.iter().zip(&embeddings).enumerate() {
        assert_close("dense", &embedding.dense, &dense.get(i).unwrap(), MODEL);
        assert_close("tokens", &embedding.tokens, &golden.get(&format!("tokens.{i}")), MODEL);
        let mut weights = vec![0f32; sparse.dim(1).unwrap()];
        for (id, weight) in embedding.sparse.indices.iter().zip(&embedding.sparse.values) {
            weights[*id as usize] = *weight;
        }
        assert_close("sparse", &Tensor::new(weights, &CPU).unwrap(), &sparse.get(i).unwrap(), MODEL);
        assert!(embedding.sparse.indices.is_sorted_by(|a, b| a < b));
        // A text has the same bits alone as in a batch.
        let alone = encoder.encode_all(&[text], &options).unwrap().remove(0);
        assert_eq!(alone.sparse, embedding.sparse);
        assert_eq!(max_diff(&alone.tokens, &embedding.tokens).max(max_diff(&alone.dense, &embedding.dense)), 0.0);
    }
    assert!(embeddings[0].sparse.indices.len() > 2 && embeddings[5].sparse.indices.is_empty());
    let tokens: Vec<Tensor> = embeddings.iter().map(|embedding| embedding.tokens.clone()).collect();
    let scores = max_sim(&tokens[0], &tokens).unwrap();
    // Each vector is nearest to itself, at a distance of 0.
    assert!((f64::from(scores[0]) - tokens[0].dim(0).unwrap() as f64).abs() < 1e-5, "{scores:?}");
    assert_eq!(encoder.max_seq_length(), 40);
    says(encoder.encode_all(&texts, &options.with_prompt_name("query")), &["prompt_name is query"]);
}

#[test]
fn heads_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("sparse/bge_m3"), folder.path());
    let [sparse, colbert] =
        ["sparse_linear", "colbert_linear"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let kept = std::fs::read(&sparse).unwrap();
    std::fs::copy(&colbert, &sparse).unwrap();
    says(open(folder.path()), &["sparse_linear: weight", "[12, 12]", "[1, 12]"]);
    std::fs::remove_file(&sparse).unwrap();
    std::fs::write(folder.path().join("sparse_linear.pt"), "a pickle").unwrap();
    says(open(folder.path()), &["sparse_linear.pt", "save its tensors as sparse_linear.safetensors"]);
    std::fs::write(&sparse, kept).unwrap();
    std::fs::remove_file(&colbert).unwrap();
    says(open(folder.path()), &["colbert_linear.safetensors"]);
}

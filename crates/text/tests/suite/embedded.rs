//! The model of `weights/`, which is part of the crate.

use std::path::{Path, PathBuf};

use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};

use crate::common::{LAYER, assert_close, max_diff, says};

/// Whole files, the model card included.
const MOST_BYTES: u64 = 3 << 20;

fn folder() -> PathBuf {
    crate::common::repository().join("weights")
}

fn encode(encoder: &SentenceEncoder, texts: &[&str]) -> Tensor {
    encoder.encode(texts, &EncodeOptions::default()).unwrap()
}

#[test]
fn embedded_model_equals_its_folder() {
    let long = "a long text ".repeat(100);
    let texts = ["A cat sleeps on the sofa.", "", "Fußball, 你好, naïve café — 😀", "x", &long];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let embedded = SentenceEncoder::embedded(dtype, &Device::Cpu).unwrap();
        let read = SentenceEncoder::from_folder(folder(), dtype, &Device::Cpu).unwrap();
        assert_eq!(embedded.embedding_size(), read.embedding_size());
        assert_eq!(embedded.max_seq_length(), read.max_seq_length());
        assert_eq!(max_diff(&encode(&embedded, &texts), &encode(&read, &texts)), 0.0, "{dtype:?}");
    }
    says(SentenceEncoder::embedded(DType::U8, &Device::Cpu), &["the encoder has dtype u8"]);
}

/// Cosine similarities by sentence-transformers 6.2.0 (torch 2.15.0, transformers 5.23.0, f32) of this folder.
#[test]
fn embedded_model_equals_sentence_transformers() {
    let texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Stocks fell sharply today."];
    let embeddings = encode(&SentenceEncoder::embedded(DType::F32, &Device::Cpu).unwrap(), &texts);
    let got = embeddings.matmul(&embeddings.t().unwrap()).unwrap();
    let want = [[1.0, 0.506779, 0.133854], [0.506779, 1.0, 0.236757], [0.133854, 0.236757, 1f32]];
    assert_close("similarities", &got, &Tensor::new(&want, &Device::Cpu).unwrap(), LAYER);
    let first = Tensor::new(&[-0.1078f32, 0.3340, -0.0320, -0.1228], &Device::Cpu).unwrap();
    assert_close("first numbers", &embeddings.get(0).unwrap().narrow(0, 0, 4).unwrap(), &first, 1e-4);
}

/// Each text is nearer to the one that means about the same than to any other.
#[test]
fn paraphrases_are_nearest_neighbors() {
    let pairs = [
        ("A cat sleeps on the sofa.", "A kitten naps on the couch."),
        ("a chess game", "Play chess against the computer."),
        ("The compiler reports a type error.", "Your program does not compile because the types differ."),
        ("How do I install a package?", "Installing software with the package manager"),
        ("a viewer for pictures", "This program shows images."),
        ("He plays the piano in an orchestra.", "a musician with a keyboard instrument"),
    ];
    let texts: Vec<&str> = pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
    let embeddings = encode(&SentenceEncoder::embedded(DType::F32, &Device::Cpu).unwrap(), &texts);
    let similarities = embeddings.matmul(&embeddings.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
    for (i, row) in similarities.iter().enumerate() {
        let nearest = (0..row.len()).filter(|&j| j != i).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        assert_eq!(texts[nearest], texts[i ^ 1], "nearest to `{}`: {row:?}", texts[i]);
    }
}

#[test]
fn embedded_model_fits_the_size_limit() {
    let size = |folder: &Path| -> u64 {
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
        files.filter(|file| file.path().is_file()).map(|file| file.metadata().unwrap().len()).sum()
    };
    let bytes = size(&folder()) + size(&folder().join("1_Pooling"));
    assert!(bytes <= MOST_BYTES, "weights/ has {bytes} bytes, more than {MOST_BYTES}");
}

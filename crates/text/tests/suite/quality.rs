//! Real weights mean something: embeddings of 50 news texts agree with what people judged similar.
//!
//! The texts and judgments are those of Lee, Pincombe and Welsh (2005), as the PyPI package gensim 4.4.0 has them in
//! `gensim/test/test_data`, the folder that `CANDLE_ATTENTION_LEE` names.

use std::collections::HashSet;
use std::path::PathBuf;

use candle_attention::{ComputeType, Quantization};
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{D, DType, Device, Tensor};

/// What sentence-transformers 6.2.0 (torch 2.15.0, f32) reaches with the same weights.
const MINILM: f64 = 0.508270;
const EMBEDDED: f64 = 0.558779;

fn folder(variable: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set")))
}

/// The texts, one per line in Latin-1.
fn texts() -> Vec<String> {
    let bytes = std::fs::read(folder("CANDLE_ATTENTION_LEE").join("lee.cor")).unwrap();
    let text: String = bytes.into_iter().map(char::from).collect();
    text.split('\n').map(str::to_string).collect()
}

/// The mean judgment of each pair of texts, 0 to 1, row by row above the diagonal.
fn judgments(count: usize) -> Vec<f64> {
    let file = std::fs::read_to_string(folder("CANDLE_ATTENTION_LEE").join("similarities0-1.txt")).unwrap();
    let rows: Vec<Vec<f64>> =
        file.lines().map(|line| line.split_whitespace().map(|number| number.parse().unwrap()).collect()).collect();
    assert!(rows.len() == count && rows.iter().all(|row| row.len() == count));
    (0..count).flat_map(|i| rows[i][i + 1..].to_vec()).collect()
}

/// The rank of each number; equal numbers share the mean of their ranks.
fn ranks(numbers: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|&i, &j| numbers[i].total_cmp(&numbers[j]));
    let mut ranks = vec![0.0; numbers.len()];
    let mut start = 0;
    for equal in order.chunk_by(|&i, &j| numbers[i] == numbers[j]) {
        let rank = start as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|&i| ranks[i] = rank);
        start += equal.len();
    }
    ranks
}

/// Pearson's correlation.
fn correlation(xs: &[f64], ys: &[f64]) -> f64 {
    let centered = |numbers: &[f64]| {
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        numbers.iter().map(|number| number - mean).collect::<Vec<_>>()
    };
    let (xs, ys) = (centered(xs), centered(ys));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&xs, &ys) / (dot(&xs, &xs) * dot(&ys, &ys)).sqrt()
}

/// The embeddings of texts in f64, of length 1.
fn embeddings(encoder: &SentenceEncoder, texts: &[String]) -> Tensor {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let embeddings = encoder.encode(&texts, &EncodeOptions::default()).unwrap().to_dtype(DType::F64).unwrap();
    let lengths = embeddings.sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
    embeddings.broadcast_div(&lengths).unwrap()
}

/// The cosine of each pair of embeddings.
fn cosines(embeddings: &Tensor) -> Vec<Vec<f64>> {
    embeddings.matmul(&embeddings.t().unwrap()).unwrap().to_vec2().unwrap()
}

/// Spearman's correlation of the cosines of all pairs of texts with the judgments.
fn agreement(encoder: &SentenceEncoder) -> f64 {
    let texts = texts();
    let cosines = cosines(&embeddings(encoder, &texts));
    let cosines: Vec<f64> = (0..texts.len()).flat_map(|i| cosines[i][i + 1..].to_vec()).collect();
    let agreement = correlation(&ranks(&cosines), &ranks(&judgments(texts.len())));
    println!("Spearman's correlation with the judgments: {agreement:.6}");
    agreement
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2 and Lee's texts: set CANDLE_ATTENTION_MINILM and CANDLE_ATTENTION_LEE"]
fn published_weights_agree_with_people_as_in_sentence_transformers() {
    let encoder = SentenceEncoder::from_folder(folder("CANDLE_ATTENTION_MINILM"), DType::F32, &Device::Cpu).unwrap();
    assert!((agreement(&encoder) - MINILM).abs() < 1e-4);
}

#[test]
#[ignore = "needs Lee's texts: set CANDLE_ATTENTION_LEE"]
fn the_embedded_model_agrees_with_people_as_in_sentence_transformers() {
    let encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu).unwrap();
    assert!((agreement(&encoder) - EMBEDDED).abs() < 1e-4);
}

/// The ten nearest others of each text.
fn nearest(embeddings: &Tensor) -> Vec<HashSet<usize>> {
    let of_text = |(i, cosines): (usize, Vec<f64>)| {
        let mut others: Vec<usize> = (0..cosines.len()).filter(|&other| other != i).collect();
        others.sort_by(|&a, &b| cosines[b].total_cmp(&cosines[a]));
        others.into_iter().take(10).collect()
    };
    cosines(embeddings).into_iter().enumerate().map(of_text).collect()
}

/// Weights in few bits against f32: the agreement with people, and on the 1,000 texts of the benchmarks the embeddings
/// and the nearest ten. Prints the table of docs/performance.md.
fn few_bits_are_near_f32(open: impl Fn(ComputeType) -> SentenceEncoder) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/peers/sentences.txt");
    let texts: Vec<String> = std::fs::read_to_string(file).unwrap().lines().map(str::to_string).collect();
    assert_eq!(texts.len(), 1000);
    let exact = open(DType::F32.into());
    let (judged, want) = (agreement(&exact), embeddings(&exact, &texts));
    let nearest_want = nearest(&want);
    let mut rows = vec![format!("| f32 | {judged:.4} | 1 | 1 | 1 |")];
    for (format, limits) in
        [(Quantization::Int8, [0.005, 0.995]), (Quantization::Q8_0, [0.005, 0.999]), (Quantization::Q4_0, [0.02, 0.95])]
    {
        let encoder = open(format.into());
        let (found, got) = (agreement(&encoder), embeddings(&encoder, &texts));
        let cosines = (&want * &got).unwrap().sum(D::Minus1).unwrap().to_vec1::<f64>().unwrap();
        let mean = cosines.iter().sum::<f64>() / cosines.len() as f64;
        let least = cosines.iter().copied().fold(1.0, f64::min);
        let nearest_got = nearest(&got);
        let shared = nearest_got.iter().zip(&nearest_want).map(|(got, want)| got.intersection(want).count());
        let top = shared.sum::<usize>() as f64 / (10 * texts.len()) as f64;
        rows.push(format!("| {format} | {found:.4} | {mean:.5} | {least:.5} | {top:.3} |"));
        println!("{}", rows[rows.len() - 1]);
        assert!((found - judged).abs() < limits[0], "{format}: {found} against {judged} in f32");
        assert!(mean > limits[1], "{format}: mean cosine {mean}");
    }
    println!(
        "| | Spearman | mean cosine | least cosine | of the nearest ten |\n|---|---|---|---|---|\n{}",
        rows.join("\n")
    );
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2 and Lee's texts: set CANDLE_ATTENTION_MINILM and CANDLE_ATTENTION_LEE"]
fn published_weights_in_few_bits_are_near_f32() {
    let folder = folder("CANDLE_ATTENTION_MINILM");
    few_bits_are_near_f32(|compute_type| SentenceEncoder::from_folder(&folder, compute_type, &Device::Cpu).unwrap());
}

#[test]
#[ignore = "needs Lee's texts: set CANDLE_ATTENTION_LEE"]
fn the_embedded_model_in_few_bits_is_near_f32() {
    few_bits_are_near_f32(|compute_type| SentenceEncoder::embedded(compute_type, &Device::Cpu).unwrap());
}

#[test]
fn equal_numbers_share_a_rank() {
    assert_eq!(ranks(&[0.5, 0.1, 0.5, 0.9]), [1.5, 0.0, 1.5, 3.0]);
    assert_eq!(correlation(&[1.0, 2.0, 4.0], &[2.0, 4.0, 8.0]), 1.0);
}

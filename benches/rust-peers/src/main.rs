//! Other Rust libraries as sides of the comparison by `../peers/compare.py`. The program takes commands line by line on
//! standard input. The words of a command are separated by tabs:
//!
//! - `rten MODEL INPUT THREADS`: load an encoder in ONNX format and its input (`ids`)
//! - `fastembed MODEL FOLDER FILE THREADS`: load a sentence encoder in ONNX format and the lines of a file
//! - `candding FOLDER FILE`: load a sentence encoder and the lines of a file
//! - `run N`: run what is loaded N times and print the seconds of each run
//! - `save PATH`: run it once and write `output`
//! - `memory`: run it once and print the peak of resident memory meanwhile, in bytes (Linux)

#[path = "../../peers/peak.rs"]
mod peak;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{Device, Tensor};
use fastembed::{InitOptionsUserDefined, Pooling, TextEmbedding, TokenizerFiles, UserDefinedEmbeddingModel};
use rten::{Model, ModelOptions, RunOptions, ThreadPool, Value};
use rten_tensor::NdTensor;
use rten_tensor::prelude::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
/// Runs once; gives the output's numbers and its last dimension.
type Work = Box<dyn FnMut() -> Result<(Vec<f32>, usize)>>;

/// Texts in a batch of the sentence encoders, as compare.py has them for the others.
const BATCH: usize = 32;
/// Tokens at which a text is cut, as in the model's `sentence_bert_config.json`.
const MAX_TOKENS: usize = 256;

fn main() -> Result<()> {
    let mut work: Work = Box::new(|| Err("nothing is loaded yet".into()));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split('\t').collect();
        let answer = match words[..] {
            ["rten", model, input, threads] => {
                work = rten(model, input, threads.parse()?)?;
                "ready".to_string()
            }
            ["fastembed", model, folder, file, threads] => {
                work = fastembed(model, Path::new(folder), file, threads.parse()?)?;
                "ready".to_string()
            }
            ["candding", folder, file] => {
                work = candding(folder, file)?;
                "ready".to_string()
            }
            ["run", times] => {
                let times: usize = times.parse()?;
                let seconds = (0..times).map(|_| {
                    let start = Instant::now();
                    let output = work()?;
                    let seconds = start.elapsed().as_secs_f64();
                    std::hint::black_box(output);
                    Ok(seconds.to_string())
                });
                seconds.collect::<Result<Vec<_>>>()?.join(" ")
            }
            ["save", path] => {
                let (numbers, width) = work()?;
                let shape = (numbers.len() / width, width);
                let output = Tensor::from_vec(numbers, shape, &Device::Cpu)?;
                candle_core::safetensors::save(&HashMap::from([("output", output)]), path)?;
                "saved".to_string()
            }
            ["memory"] => {
                peak::reset()?;
                std::hint::black_box(work()?);
                peak::bytes()?.to_string()
            }
            _ => return Err(format!("unknown command: {line}").into()),
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Weights are packed when the model is loaded: the faster of its two settings.
fn rten(model: &str, input: &str, threads: usize) -> Result<Work> {
    let model: Model = ModelOptions::with_all_ops().prepack_weights(true).load_file(model)?;
    let (ids, mask) = (model.node_id("input_ids")?, model.node_id("attention_mask")?);
    let output = model.node_id("output")?;
    let pool = Arc::new(ThreadPool::with_num_threads(threads));
    let tensors = candle_core::safetensors::load(input, &Device::Cpu)?;
    let tokens = tensors.get("ids").ok_or("the input holds no ids")?;
    let (b, s) = tokens.dims2()?;
    let tokens: Vec<i32> = tokens.flatten_all()?.to_vec1::<i64>()?.into_iter().map(|id| id as i32).collect();
    let tokens = NdTensor::from_data([b, s], tokens);
    let ones = NdTensor::full([b, s], 1i32);
    Ok(Box::new(move || {
        let options = RunOptions::default().with_thread_pool(Some(pool.clone()));
        let inputs = vec![(ids, tokens.view().into()), (mask, ones.view().into())];
        let [hidden]: [Value; 1] = model.run_n(inputs, [output], Some(options))?;
        let hidden: NdTensor<f32, 3> = hidden.try_into()?;
        let width = hidden.size(2);
        Ok((hidden.into_data(), width))
    }))
}

fn fastembed(model: &str, folder: &Path, file: &str, threads: usize) -> Result<Work> {
    let read = |name: &str| std::fs::read(folder.join(name));
    let files = TokenizerFiles {
        tokenizer_file: read("tokenizer.json")?,
        config_file: read("config.json")?,
        special_tokens_map_file: read("special_tokens_map.json")?,
        tokenizer_config_file: read("tokenizer_config.json")?,
    };
    let model = UserDefinedEmbeddingModel::new(std::fs::read(model)?, files).with_pooling(Pooling::Mean);
    let options = InitOptionsUserDefined::new().with_max_length(MAX_TOKENS).with_intra_threads(threads);
    let mut encoder = TextEmbedding::try_new_from_user_defined(model, options)?;
    let texts = lines(file)?;
    Ok(Box::new(move || joined(encoder.embed(&texts, Some(BATCH))?)))
}

fn candding(folder: &str, file: &str) -> Result<Work> {
    let encoder = candding::TextEmbedding::builder(folder).batch_size(BATCH).build()?;
    let texts = lines(file)?;
    Ok(Box::new(move || joined(encoder.embed(&texts, None)?)))
}

fn lines(file: &str) -> Result<Vec<String>> {
    Ok(std::fs::read_to_string(file)?.lines().map(str::to_string).collect())
}

fn joined(rows: Vec<Vec<f32>>) -> Result<(Vec<f32>, usize)> {
    let width = rows.first().ok_or("no embeddings")?.len();
    Ok((rows.concat(), width))
}

//! Our side of the comparisons by `compare.py` and `gpu.py` beside this file. It takes commands line by line on standard
//! input, so that both sides can alternate in one run. The words of a command are separated by tabs:
//!
//! - `device NAME`: use `cpu` (the default) or `cuda` from now on
//! - `backend NAME`: force layers to use this backend from now on; `any` for none
//! - `layer CHECKPOINT HEADS INPUT DTYPE`: load an attention layer and its input (`query`, optionally `lengths`)
//! - `encoder FOLDER INPUT DTYPE`: load a BERT model and its input (`ids`)
//! - `candle FOLDER INPUT DTYPE`: the same with the model of candle-transformers
//! - `sentences FOLDER FILE DTYPE`: load a sentence encoder and the lines of a file
//! - `run N`: run what is loaded N times and print the seconds of each run
//! - `save PATH`: run it once and write `output`
//! - `memory`: run it once and print the peak of resident memory meanwhile, in bytes (Linux)

mod peak;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Instant;

use candle_attention::checkpoint::{Checkpoint, infer_config};
use candle_attention::{AttentionInputs, AttentionMask, AttentionOptions, Backend, ComputeType, MultiHeadAttention};
use candle_attention_text::{EncodeOptions, SentenceEncoder, TextModel, TextModelConfig};
use candle_core::{DType, Device, Tensor};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Work = Box<dyn Fn() -> Result<Tensor>>;

const CPU: Device = Device::Cpu;

/// The device and backend that commands choose.
struct Target {
    device: Device,
    backend: Option<Backend>,
}

fn main() -> Result<()> {
    let mut target = Target { device: CPU, backend: None };
    let mut work: Work = Box::new(|| Err("nothing is loaded yet".into()));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split('\t').collect();
        let answer = match words[..] {
            ["device", name] => {
                target.device = if name == "cuda" { Device::new_cuda(0)? } else { CPU };
                "ready".to_string()
            }
            ["backend", name] => {
                target.backend = if name == "any" { None } else { Some(name.parse()?) };
                "ready".to_string()
            }
            ["layer", checkpoint, heads, input, dtype] => {
                work = layer(&target, checkpoint, heads.parse()?, input, dtype.parse()?)?;
                "ready".to_string()
            }
            ["encoder", folder, input, dtype] => {
                work = encoder(&target.device, folder, input, dtype.parse()?)?;
                "ready".to_string()
            }
            ["candle", folder, input, dtype] => {
                work = candle_transformers(folder, input, dtype.parse::<ComputeType>()?.dtype())?;
                "ready".to_string()
            }
            ["sentences", folder, file, dtype] => {
                work = sentences(folder, file, dtype.parse()?)?;
                "ready".to_string()
            }
            ["run", times] => {
                let times: usize = times.parse()?;
                let seconds = (0..times).map(|_| {
                    let start = Instant::now();
                    let output = work()?;
                    target.device.synchronize()?;
                    let seconds = start.elapsed().as_secs_f64();
                    std::hint::black_box(output);
                    Ok(seconds.to_string())
                });
                seconds.collect::<Result<Vec<_>>>()?.join(" ")
            }
            ["save", path] => {
                let output = work()?.to_dtype(DType::F32)?.to_device(&CPU)?;
                candle_core::safetensors::save(&HashMap::from([("output", output)]), path)?;
                "saved".to_string()
            }
            ["memory"] => {
                peak::reset()?;
                std::hint::black_box(work()?);
                target.device.synchronize()?;
                peak::bytes()?.to_string()
            }
            _ => return Err(format!("unknown command: {line}").into()),
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// The lengths of the sequences if the input is a ragged batch, one sequence stored after another.
fn lengths_of(input: &Checkpoint) -> Result<Option<Vec<usize>>> {
    let lengths = input.contains("lengths").then(|| input.tensor("lengths", &CPU)).transpose()?;
    let lengths = lengths.map(|lengths| lengths.to_dtype(DType::U32)?.to_vec1::<u32>()).transpose()?;
    Ok(lengths.map(|lengths| lengths.into_iter().map(|n| n as usize).collect()))
}

fn layer(target: &Target, checkpoint: &str, heads: usize, input: &str, compute: ComputeType) -> Result<Work> {
    let device = &target.device;
    let source = Checkpoint::open(checkpoint)?.at("", compute, device);
    let layer = MultiHeadAttention::load(&infer_config(&source, heads)?, source)?;
    let input = Checkpoint::open(input)?;
    let (xs, lengths, mask) = (
        input.tensor("query", &CPU)?.to_dtype(compute.dtype())?.to_device(device)?,
        lengths_of(&input)?,
        AttentionMask::full(),
    );
    let mut options = AttentionOptions::default();
    options.backend = target.backend;
    Ok(Box::new(move || match &lengths {
        Some(lengths) => Ok(layer.attend_with(&AttentionInputs::ragged(&xs, lengths, &mask), &options)?.output),
        None => Ok(layer.attend_with(&AttentionInputs::self_attention(&xs, &mask), &options)?.output),
    }))
}

fn encoder(device: &Device, folder: &str, input: &str, compute: ComputeType) -> Result<Work> {
    let config = TextModelConfig::from_file(format!("{folder}/config.json"))?;
    let model = TextModel::load(&config, Checkpoint::open(folder)?.at("", compute, device))?;
    let input = Checkpoint::open(input)?;
    let ids = input.tensor("ids", &CPU)?.to_dtype(DType::U32)?;
    let (b, s) = ids.dims2()?;
    let (ids, types, lengths) = (ids.flatten_all()?.to_vec1::<u32>()?, vec![0; b * s], vec![s; b]);
    Ok(Box::new(move || Ok(model.forward_ragged(&ids, &types, &lengths)?.reshape((b, s, ()))?)))
}

/// The model of candle-transformers, as a peer.
fn candle_transformers(folder: &str, input: &str, dtype: DType) -> Result<Work> {
    use candle_transformers::models::bert;
    let config: bert::Config = serde_json::from_str(&std::fs::read_to_string(format!("{folder}/config.json"))?)?;
    let tensors = candle_core::safetensors::load(format!("{folder}/model.safetensors"), &CPU)?;
    let model = bert::BertModel::load(candle_nn::VarBuilder::from_tensors(tensors, dtype, &CPU), &config)?;
    let ids = Checkpoint::open(input)?.tensor("ids", &CPU)?.to_dtype(DType::U32)?;
    let types = ids.zeros_like()?;
    Ok(Box::new(move || Ok(model.forward(&ids, &types, None)?)))
}

fn sentences(folder: &str, file: &str, compute: ComputeType) -> Result<Work> {
    let encoder = SentenceEncoder::from_folder(folder, compute, &CPU)?;
    let text = std::fs::read_to_string(file)?;
    Ok(Box::new(move || Ok(encoder.encode(&text.lines().collect::<Vec<_>>(), &EncodeOptions::default())?)))
}

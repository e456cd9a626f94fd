//! Our side of the comparisons by `compare.py` beside this file and by `benches/gpu`. It takes commands line by line on
//! standard input, so that both sides can alternate in one run. The words of a command are separated by tabs:
//!
//! - `device NAME`: use `cpu` (the default) or `cuda` from now on
//! - `backend NAME`: force layers to use this backend from now on; `any` for none
//! - `layer CHECKPOINT HEADS INPUT DTYPE`: load an attention layer and its input (`query`, optionally `lengths`)
//! - `attention INPUT BATCH MASK DTYPE`: load `query`, `key` and `value`, each `(tokens, heads, d)`, as so many
//!   sequences; the mask is `full` or `causal`
//! - `step CHECKPOINT HEADS INPUT BATCH DTYPE`: load an attention layer of a decoder and write all tokens of the input
//!   (`query`, `(tokens, hidden)`) into a cache but the last of each sequence, which a run adds
//! - `encoder FOLDER INPUT DTYPE`: load an encoder and its input (`ids`, optionally `lengths`)
//! - `candle FOLDER INPUT DTYPE`: the same with the model of candle-transformers
//! - `sentences FOLDER FILE DTYPE`: load a sentence encoder and the lines of a file
//! - `run N`: run what is loaded N times and print the seconds of each run
//! - `queue N`: run it N times, wait for the device once, and print the seconds of one run
//! - `save PATH`: run it once and write `output`
//! - `memory`: run it once and print the peak of resident memory meanwhile, in bytes (Linux)

mod peak;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::time::Instant;

use candle_attention::checkpoint::{Checkpoint, infer_config};
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{
    AttentionInputs, AttentionMask, AttentionOptions, Backend, ComputeType, KvCache, MultiHeadAttention,
};
use candle_attention_text::{EncodeOptions, SentenceEncoder, TextModel, TextModelConfig};
use candle_core::{DType, Device, Tensor};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Work = Box<dyn FnMut() -> Result<Tensor>>;

const CPU: Device = Device::Cpu;

/// The device and backend that commands choose, and the models that the last commands have loaded, by their words: the
/// next input of a model does not load it again.
struct Target {
    device: Device,
    backend: Option<Backend>,
    model: Option<(String, Rc<TextModel>)>,
    encoder: Option<(String, Rc<SentenceEncoder>)>,
}

/// The model of `slot` if it was loaded by the same words, else the one that `load` returns.
fn kept<T>(slot: &mut Option<(String, Rc<T>)>, words: String, load: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
    if let Some((known, model)) = slot
        && *known == words
    {
        return Ok(model.clone());
    }
    *slot = None;
    let model = Rc::new(load()?);
    *slot = Some((words, model.clone()));
    Ok(model)
}

fn main() -> Result<()> {
    let mut target = Target { device: CPU, backend: None, model: None, encoder: None };
    let mut work: Work = Box::new(|| Err("nothing is loaded yet".into()));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split('\t').collect();
        let answer = match words[..] {
            ["device", name] => {
                let device = if name == "cuda" { Device::new_cuda(0)? } else { CPU };
                target = Target { device, model: None, encoder: None, ..target };
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
            ["attention", input, batch, mask, dtype] => {
                work = attention(&target, input, batch.parse()?, mask, dtype.parse()?)?;
                "ready".to_string()
            }
            ["step", checkpoint, heads, input, batch, dtype] => {
                work = step(&target, checkpoint, heads.parse()?, input, batch.parse()?, dtype.parse()?)?;
                "ready".to_string()
            }
            ["encoder", folder, input, dtype] => {
                work = encoder(&mut target, folder, input, dtype.parse()?)?;
                "ready".to_string()
            }
            ["candle", folder, input, dtype] => {
                work = candle_transformers(folder, input, dtype.parse::<ComputeType>()?.dtype())?;
                "ready".to_string()
            }
            ["sentences", folder, file, dtype] => {
                work = sentences(&mut target, folder, file, dtype.parse()?)?;
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
            ["queue", times] => {
                let times: usize = times.parse()?;
                let start = Instant::now();
                for _ in 0..times {
                    std::hint::black_box(work()?);
                }
                target.device.synchronize()?;
                (start.elapsed().as_secs_f64() / times as f64).to_string()
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

/// The tensors of an input by name, on the device of the target.
fn tensors<const N: usize>(target: &Target, input: &str, names: [&str; N], dtype: DType) -> Result<[Tensor; N]> {
    let input = Checkpoint::open(input)?;
    let tensors = names.map(|name| input.tensor(name, &CPU)?.to_dtype(dtype)?.to_device(&target.device));
    let tensors: Vec<Tensor> = tensors.into_iter().collect::<candle_core::Result<_>>()?;
    Ok(tensors.try_into().expect("as many as names"))
}

/// `(tokens, …)` as sequences of the same length, `(b, s, …)`.
fn batched(tokens: &Tensor, b: usize) -> Result<Tensor> {
    let dims = tokens.dims();
    Ok(tokens.reshape([&[b, dims[0] / b], &dims[1..]].concat())?)
}

fn attention(target: &Target, input: &str, batch: usize, mask: &str, compute: ComputeType) -> Result<Work> {
    let mask = match mask {
        "full" => AttentionMask::full(),
        "causal" => AttentionMask::causal(),
        other => return Err(format!("the mask is {other}, expected full or causal").into()),
    };
    let [q, k, v] = tensors(target, input, ["query", "key", "value"], compute.dtype())?;
    let [q, k, v] = [batched(&q, batch)?, batched(&k, batch)?, batched(&v, batch)?];
    let backend = target.backend;
    Ok(Box::new(move || Ok(attend_bshd(&q, &k, &v, &SdpaOptions::new(&mask).with_backend(backend))?.output)))
}

fn step(
    target: &Target,
    checkpoint: &str,
    heads: usize,
    input: &str,
    batch: usize,
    compute: ComputeType,
) -> Result<Work> {
    let source = Checkpoint::open(checkpoint)?.at("", compute, &target.device);
    let config = infer_config(&source, heads)?.with_mask(AttentionMask::causal());
    let layer = MultiHeadAttention::load(&config, source)?;
    let [xs] = tensors(target, input, ["query"], compute.dtype())?;
    let xs = batched(&xs, batch)?;
    let before = xs.dim(1)? - 1;
    let mut cache = KvCache::fixed(before + 1);
    layer.step(&xs.narrow(1, 0, before)?, &mut cache)?;
    let token = xs.narrow(1, before, 1)?.contiguous()?;
    Ok(Box::new(move || {
        cache.truncate(before)?;
        Ok(layer.step(&token, &mut cache)?)
    }))
}

fn encoder(target: &mut Target, folder: &str, input: &str, compute: ComputeType) -> Result<Work> {
    let Target { device, model, .. } = target;
    let model = kept(model, format!("{folder} {compute}"), || {
        let config = TextModelConfig::from_file(format!("{folder}/config.json"))?;
        Ok(TextModel::load(&config, Checkpoint::open(folder)?.at("", compute, device))?)
    })?;
    let input = Checkpoint::open(input)?;
    let ids = input.tensor("ids", &CPU)?.to_dtype(DType::U32)?;
    let (lengths, shape) = match lengths_of(&input)? {
        Some(lengths) => (lengths, None),
        None => (vec![ids.dim(1)?; ids.dim(0)?], Some(ids.dims2()?)),
    };
    let ids = ids.flatten_all()?.to_vec1::<u32>()?;
    let types = vec![0; ids.len()];
    Ok(Box::new(move || {
        let hidden = model.forward_ragged(&ids, &types, &lengths)?;
        Ok(shape.map_or(Ok(hidden.clone()), |(b, s)| hidden.reshape((b, s, ())))?)
    }))
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

fn sentences(target: &mut Target, folder: &str, file: &str, compute: ComputeType) -> Result<Work> {
    let Target { device, encoder, .. } = target;
    let load = || Ok(SentenceEncoder::from_folder(folder, compute, device)?);
    let encoder = kept(encoder, format!("{folder} {compute}"), load)?;
    let text = std::fs::read_to_string(file)?;
    Ok(Box::new(move || Ok(encoder.encode(&text.lines().collect::<Vec<_>>(), &EncodeOptions::default())?)))
}

//! Our side of `decoding.py` beside this file: one attention layer of a decoder with 8 running sequences. It takes
//! commands `WORK N` line by line on standard input, and prints the seconds of N runs. The works are
//!
//! - `alone`: a prompt of 300 tokens in a cache of its own
//! - `join`: the same prompt into one of the 8 rows, while the others wait
//! - `append`: the cache of such a prompt becomes the ninth sequence of the batch
//! - `step`: a token for each of the 8 sequences, which have 100, 200, … 800 tokens
//! - `attend BATCH TOKENS DTYPE`: `attend_bshd` alone, one query of 16 heads over so many keys and values of 8 heads of
//!   128 values
//! - `read BYTES`: the sum of a buffer, which every thread reads a part of
//! - `layer TOKENS DTYPE`: a step of a layer with such heads after so many tokens
//! - `prompt CHUNK DTYPE`: 2,048 tokens through this layer, so many at a time

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Instant;

use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, Error, KvCache, MultiHeadAttention,
    Result,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

const HIDDEN: usize = 1024;
const PROMPT: usize = 300;
/// Tokens of the running sequences, and room for more.
const LENGTHS: [usize; 8] = [100, 200, 300, 400, 500, 600, 700, 800];
const CAPACITY: usize = 1024;

fn random(b: usize, s: usize) -> Result<Tensor> {
    Ok(Tensor::randn(0f32, 1., (b, s, HIDDEN), &Device::Cpu)?)
}

/// Adds the first `lengths` tokens of `xs` to the cache, and returns the seconds that this took.
fn add(layer: &MultiHeadAttention, xs: &Tensor, cache: &mut KvCache, lengths: &[usize]) -> Result<f64> {
    let inputs = AttentionInputs::self_attention(xs, AttentionMask::full()).with_cache_lengths(cache, lengths);
    let start = Instant::now();
    std::hint::black_box(layer.attend_with(&inputs, &AttentionOptions::default())?.output);
    Ok(start.elapsed().as_secs_f64())
}

fn run(layer: &MultiHeadAttention, running: &KvCache, work: &str) -> Result<f64> {
    let mut batch = running.try_clone()?;
    match work {
        "alone" => add(layer, &random(1, PROMPT)?, &mut KvCache::fixed(CAPACITY), &[PROMPT]),
        "join" => {
            let mut lengths = LENGTHS;
            lengths[0] = 0;
            batch.truncate_sequences(&lengths)?;
            let mut new = [0; LENGTHS.len()];
            new[0] = PROMPT;
            add(layer, &random(LENGTHS.len(), PROMPT)?, &mut batch, &new)
        }
        "append" => {
            let mut own = KvCache::fixed(CAPACITY);
            add(layer, &random(1, PROMPT)?, &mut own, &[PROMPT])?;
            let start = Instant::now();
            batch.append_sequences(&own)?;
            Ok(start.elapsed().as_secs_f64())
        }
        "step" => {
            // Not the first write into the copy.
            add(layer, &random(LENGTHS.len(), 1)?, &mut batch, &[1; LENGTHS.len()])?;
            add(layer, &random(LENGTHS.len(), 1)?, &mut batch, &[1; LENGTHS.len()])
        }
        other => Err(Error::value("a work", other, "alone, join, append or step")),
    }
}

/// Query heads, key-value heads and values per head of the works with parameters.
const HEADS: [usize; 3] = [16, 8, 128];
const LONG_PROMPT: usize = 2048;

/// A work with parameters: what it needs, and one run of it.
type Run = Box<dyn FnMut() -> Result<f64>>;

/// The work of a line, prepared.
fn prepared(line: &str) -> std::result::Result<Run, Box<dyn std::error::Error>> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["attend", batch, tokens, dtype] => attend(batch.parse()?, tokens.parse()?, dtype.parse()?),
        ["read", bytes] => Ok(read(bytes.parse()?)),
        ["layer", tokens, dtype] => layer_step(tokens.parse()?, dtype.parse()?),
        ["prompt", chunk, dtype] => prompt(chunk.parse()?, dtype.parse()?),
        _ => Err(format!("no such work: {line}").into()),
    }
}

fn seconds<R>(run: impl FnOnce() -> Result<R>) -> Result<f64> {
    let start = Instant::now();
    std::hint::black_box(run()?);
    Ok(start.elapsed().as_secs_f64())
}

fn attend(b: usize, tokens: usize, dtype: DType) -> std::result::Result<Run, Box<dyn std::error::Error>> {
    let [h, h_kv, d] = HEADS;
    let random = |s, heads| Tensor::randn(0f32, 1., (b, s, heads, d), &Device::Cpu)?.to_dtype(dtype);
    let (q, k, v) = (random(1, h)?, random(tokens, h_kv)?, random(tokens, h_kv)?);
    let first = |tensor: &Tensor| tensor.narrow(0, 0, 1);
    let of_first = |backend| {
        let options = SdpaOptions::new(AttentionMask::full()).with_backend(backend);
        attend_bshd(&first(&q)?, &first(&k)?, &first(&v)?, &options)?.output.to_dtype(DType::F32).map_err(Error::from)
    };
    let difference = (of_first(None)? - of_first(Some(Backend::Eager))?)?.abs()?.flatten_all()?.max(0)?;
    if difference.to_scalar::<f32>()? > 1e-2 {
        return Err(format!("another result than by the eager backend: {difference}").into());
    }
    let mask = AttentionMask::full();
    Ok(Box::new(move || seconds(|| attend_bshd(&q, &k, &v, &SdpaOptions::new(&mask)))))
}

fn read(bytes: usize) -> Run {
    let (buffer, threads) = (vec![1f32; bytes / 4], rayon::current_num_threads());
    Box::new(move || {
        let parts: Vec<_> = buffer.chunks(buffer.len().div_ceil(threads)).collect();
        seconds(|| {
            rayon::scope(|scope| {
                let (own, others) = parts.split_first().expect("a part");
                others.iter().for_each(|part| scope.spawn(|_| _ = std::hint::black_box(sum(part))));
                std::hint::black_box(sum(own));
            });
            Ok(())
        })
    })
}

fn sum(xs: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        #[target_feature(enable = "avx512f")]
        fn with_avx512(xs: &[f32]) -> f32 {
            lanes(xs)
        }
        // SAFETY: the processor has the instructions.
        return unsafe { with_avx512(xs) };
    }
    lanes(xs)
}

/// By as many sums as the compiler needs for vectors in parallel.
#[inline(always)]
fn lanes(xs: &[f32]) -> f32 {
    let mut sums = [0.0; 128];
    for chunk in xs.chunks_exact(128) {
        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum()
}

fn grouped_layer(dtype: DType) -> Result<MultiHeadAttention> {
    let [h, h_kv, d] = HEADS;
    let config = AttentionConfig::new(HIDDEN, h).with_num_key_value_heads(h_kv).with_head_dim(d);
    let vb = VarBuilder::from_varmap(&VarMap::new(), dtype, &Device::Cpu);
    MultiHeadAttention::new(&config.with_mask(AttentionMask::causal()), vb)?.frozen()
}

fn layer_step(tokens: usize, dtype: DType) -> std::result::Result<Run, Box<dyn std::error::Error>> {
    let (layer, mut cache) = (grouped_layer(dtype)?, KvCache::fixed(tokens + 1));
    layer.step(&random(1, tokens)?.to_dtype(dtype)?, &mut cache)?;
    let token = random(1, 1)?.to_dtype(dtype)?;
    Ok(Box::new(move || {
        cache.truncate(tokens)?;
        seconds(|| layer.step(&token, &mut cache))
    }))
}

fn prompt(chunk: usize, dtype: DType) -> std::result::Result<Run, Box<dyn std::error::Error>> {
    let (layer, mut cache) = (grouped_layer(dtype)?, KvCache::fixed(LONG_PROMPT));
    let xs = random(1, LONG_PROMPT)?.to_dtype(dtype)?;
    let chunks = (0..LONG_PROMPT / chunk).map(|i| Ok(xs.narrow(1, i * chunk, chunk)?.contiguous()?));
    let chunks = chunks.collect::<Result<Vec<_>>>()?;
    Ok(Box::new(move || {
        cache.truncate(0)?;
        seconds(|| chunks.iter().try_for_each(|chunk| layer.step(chunk, &mut cache).map(|_| ())))
    }))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let config = AttentionConfig::new(HIDDEN, 16).with_num_key_value_heads(8).with_mask(AttentionMask::causal());
    let layer = MultiHeadAttention::new(&config, vb)?.frozen()?;
    let mut running = KvCache::fixed(CAPACITY);
    add(&layer, &random(LENGTHS.len(), LENGTHS[LENGTHS.len() - 1])?, &mut running, &LENGTHS)?;
    let mut works: HashMap<String, Run> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (work, times) = line.rsplit_once(' ').ok_or("expected a work and a number")?;
        if work.contains(' ') && !works.contains_key(work) {
            let kind = |work: &str| work.split(' ').next().map(str::to_string);
            works.retain(|other, _| kind(other) != kind(work));
            works.insert(work.to_string(), prepared(work)?);
        }
        let mut one = || match works.get_mut(work) {
            Some(prepared) => prepared(),
            None => run(&layer, &running, work),
        };
        let seconds = (0..times.parse()?).map(|_| Ok(one()?.to_string()));
        println!("{}", seconds.collect::<Result<Vec<_>>>()?.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

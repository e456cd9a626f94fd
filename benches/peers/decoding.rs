//! Our side of `decoding.py` beside this file: one attention layer of a decoder with 8 running sequences. It takes
//! commands `WORK N` line by line on standard input, and prints the seconds of N runs. The works are
//!
//! - `alone`: a prompt of 300 tokens in a cache of its own
//! - `join`: the same prompt into one of the 8 rows, while the others wait
//! - `append`: the cache of such a prompt becomes the ninth sequence of the batch
//! - `step`: a token for each of the 8 sequences, which have 100, 200, … 800 tokens

use std::io::{BufRead, Write};
use std::time::Instant;

use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, KvCache, MultiHeadAttention, Result,
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

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let config = AttentionConfig::new(HIDDEN, 16).with_num_key_value_heads(8).with_mask(AttentionMask::causal());
    let layer = MultiHeadAttention::new(&config, vb)?.frozen()?;
    let mut running = KvCache::fixed(CAPACITY);
    add(&layer, &random(LENGTHS.len(), LENGTHS[LENGTHS.len() - 1])?, &mut running, &LENGTHS)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (work, times) = line.split_once(' ').ok_or("expected a work and a number")?;
        let seconds = (0..times.parse()?).map(|_| Ok(run(&layer, &running, work)?.to_string()));
        println!("{}", seconds.collect::<Result<Vec<_>>>()?.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

//! Our side of `mechanisms.py` beside this file: attention layers with what newer models add, and without. It takes
//! commands `WORK N` line by line on standard input, and prints the seconds of N runs. The works are the names of
//! [`layer`], each a self-attention over 4 sequences of 256 tokens, and `latent CACHED` and `expanded CACHED`: a step of
//! one token after so many cached ones, with the sizes of DeepSeek-V2-Lite.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Instant;

use candle_attention::position::{
    Disentangled, GatedRelativeBias, Position, RelativeKey, RelativeKey2d, RelativeSinusoids, Rotary,
};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, GateActivation, GateOver, HeadNorm,
    KvCache, LatentAttention, MultiHeadAttention, NormKind, NormOver, OutputGate, Result, Step, Steps,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

const HIDDEN: usize = 768;
const HEADS: usize = 12;
const BATCH: usize = 4;
/// Tokens of a sequence, or 16 × 16 patches.
const TOKENS: usize = 256;
/// Of DeepSeek-V2-Lite.
const LATENT_HIDDEN: usize = 2048;
const LATENT_HEADS: usize = 16;
const LATENT: [usize; 4] = [512, 128, 64, 128];

/// The configuration of a work.
fn layer(work: &str) -> Result<AttentionConfig> {
    let plain = AttentionConfig::new(HIDDEN, HEADS);
    let rotary = || plain.clone().with_position(Rotary::default());
    let norm = Step::Norm(HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6));
    let position = |position: Position| plain.clone().with_position(position);
    Ok(match work {
        "plain" => plain,
        "rotary" => rotary(),
        "norms after rotation" => {
            let steps = Steps::default().with_queries(vec![Step::Rotate, norm]).with_keys(vec![Step::Rotate, norm]);
            rotary().with_steps(steps.with_values(vec![norm]))
        }
        "gate per element" => {
            plain.clone().with_output_gate(OutputGate::new(GateActivation::Sigmoid, GateOver::Element))
        }
        "gate per head" => plain.clone().with_output_gate(OutputGate::new(GateActivation::Sigmoid, GateOver::Head)),
        "norm of the context" => {
            plain.clone().with_context_norm(HeadNorm::new(NormKind::Rms, NormOver::AllHeads, 1e-6))
        }
        "DeBERTa" => position(Disentangled::new(TOKENS).into()),
        "Shaw" => position(RelativeKey::new(64, 8).into()),
        "Transformer-XL" => position(RelativeSinusoids::default().into()),
        "SAM" => position(RelativeKey2d::new([16, 16]).into()),
        "WavLM" => position(GatedRelativeBias::new(320, 800).into()),
        other => return Err(Error::value("a work", other, "one that `mechanisms.py` names")),
    })
}

fn frozen(config: &AttentionConfig) -> Result<MultiHeadAttention> {
    MultiHeadAttention::new(config, VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu))?.frozen()
}

/// A decoder's layer over a cache, with latent attention or with its keys and values.
fn decoder(is_latent: bool) -> Result<MultiHeadAttention> {
    let [rank, nope, rope, value] = LATENT;
    let config = AttentionConfig::new(LATENT_HIDDEN, LATENT_HEADS).with_mask(AttentionMask::causal());
    let rotary = Rotary::default();
    match is_latent {
        true => frozen(&config.with_latent(LatentAttention::new(rank, nope, rope, value)).with_position(rotary)),
        false => frozen(&config.with_head_dim(nope + rope).with_value_head_dim(value).with_position(rotary)),
    }
}

/// A layer with what its runs need.
struct Prepared {
    layer: MultiHeadAttention,
    cache: Option<KvCache>,
}

impl Prepared {
    fn new(work: &str) -> Result<Self> {
        let Some((form @ ("latent" | "expanded"), cached)) = work.split_once(' ') else {
            return Ok(Self { layer: frozen(&layer(work)?)?, cache: None });
        };
        let cached: usize =
            cached.parse().map_err(|_| Error::value("a number of cached tokens", cached, "a number"))?;
        let (layer, mut cache) = (decoder(form == "latent")?, KvCache::fixed(cached + 1));
        layer.step(&Tensor::randn(0f32, 1., (1, cached, LATENT_HIDDEN), &Device::Cpu)?, &mut cache)?;
        Ok(Self { layer, cache: Some(cache) })
    }

    fn run(&mut self) -> Result<f64> {
        let Some(cache) = &mut self.cache else {
            let xs = Tensor::randn(0f32, 1., (BATCH, TOKENS, HIDDEN), &Device::Cpu)?;
            let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
            let start = Instant::now();
            std::hint::black_box(self.layer.attend_with(&inputs, &AttentionOptions::default())?.output);
            return Ok(start.elapsed().as_secs_f64());
        };
        let xs = Tensor::randn(0f32, 1., (1, 1, LATENT_HIDDEN), &Device::Cpu)?;
        let cached = cache.len();
        let start = Instant::now();
        std::hint::black_box(self.layer.step(&xs, cache)?);
        let seconds = start.elapsed().as_secs_f64();
        cache.truncate(cached)?;
        Ok(seconds)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut prepared: HashMap<String, Prepared> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (work, times) = line.rsplit_once(' ').ok_or("expected a work and a number")?;
        if !prepared.contains_key(work) {
            prepared.insert(work.to_string(), Prepared::new(work)?);
        }
        let one = prepared.get_mut(work).expect("inserted");
        let seconds = (0..times.parse()?).map(|_| Ok(one.run()?.to_string())).collect::<Result<Vec<_>>>()?;
        println!("{}", seconds.join(" "));
        std::io::stdout().flush()?;
    }
    Ok(())
}

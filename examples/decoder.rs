//! A Llama decoder composed around `MultiHeadAttention`: loads a model folder and continues a sequence of token ids.

mod shared;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_attention::checkpoint::{Checkpoint, ModelAttention, WeightSource};
use candle_attention::norm::RmsNorm;
use candle_attention::{AttentionInputs, AttentionOptions, KvCache};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{Embedding, Linear};
use clap::Parser;
use shared::Result;

/// Continues a sequence of token ids by greedy decoding with a key-value cache, and prints the new ids.
///
/// Example: decoder tests/fixtures/compose/llama --count 16 5 61 17 2 40 33 8
#[derive(Parser)]
#[command(name = "decoder", verbatim_doc_comment)]
struct Arguments {
    /// The folder of a Llama: config.json and model.safetensors or its shards
    model: PathBuf,
    /// The number of ids to add
    #[arg(long, default_value_t = 16)]
    count: usize,
    /// The ids to continue
    #[arg(required = true)]
    ids: Vec<u32>,
}

/// `xs + attention(norm(xs))`, then `xs + mlp(norm(xs))`.
pub struct Layer {
    input_norm: RmsNorm,
    attention: ModelAttention,
    mlp_norm: RmsNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Layer {
    /// xs `(1, s, hidden_size)`: the tokens after the ones in the cache.
    fn forward(&self, xs: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        let normed = self.input_norm.forward(xs)?;
        // The mask is the model's own, causal. Rotary positions continue where the cache ends.
        let inputs = AttentionInputs::self_attention(&normed, self.attention.mask());
        let xs = (xs + self.attention.layer.attend_cached(&inputs, cache, &AttentionOptions::default())?.output)?;
        let normed = self.mlp_norm.forward(&xs)?;
        let hidden = (self.gate_proj.forward(&normed)?.silu()? * self.up_proj.forward(&normed)?)?; // SwiGLU
        Ok((xs + self.down_proj.forward(&hidden)?)?)
    }
}

/// Embeddings, layers, the final norm, and the head that scores the vocabulary.
pub struct Decoder {
    embed_tokens: Embedding,
    /// Each layer needs a cache of its own.
    pub layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
}

impl Decoder {
    /// Loads the model of a folder.
    pub fn load(folder: &Path) -> Result<Self> {
        let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(folder.join("config.json"))?)?;
        let number = |key: &str| json[key].as_f64().ok_or(format!("config.json: `{key}` is not a number"));
        let (checkpoint, device) = (Checkpoint::open(folder)?, Device::Cpu);
        let weights = checkpoint.at("model", DType::F32, &device);
        let weight = |name: &str| weights.get(name, &weights.shape(name)?.unwrap_or_default());
        let linear = |name: &str| weight(&format!("{name}.weight")).map(|weight| Linear::new(weight, None));
        let eps = number("rms_norm_eps")?;
        let size = number("hidden_size")? as usize;
        let norm = |name: &str| RmsNorm::load(size, eps, weights.child(name));
        let layer = |i: usize| {
            let attention = format!("model.layers.{i}.self_attn");
            Ok(Layer {
                input_norm: norm(&format!("layers.{i}.input_layernorm"))?,
                attention: checkpoint.attention(&attention, &json, DType::F32, &device)?,
                mlp_norm: norm(&format!("layers.{i}.post_attention_layernorm"))?,
                gate_proj: linear(&format!("layers.{i}.mlp.gate_proj"))?,
                up_proj: linear(&format!("layers.{i}.mlp.up_proj"))?,
                down_proj: linear(&format!("layers.{i}.mlp.down_proj"))?,
            })
        };
        let layers = (0..number("num_hidden_layers")? as usize).map(layer).collect::<Result<Vec<_>>>()?;
        let embeddings = weight("embed_tokens.weight")?; // (vocab_size, hidden_size)
        // Tied embeddings: without a head of its own, the model uses the token embeddings.
        let head = if checkpoint.contains("lm_head.weight") {
            checkpoint.at("", DType::F32, &device).get("lm_head.weight", embeddings.dims())?
        } else {
            embeddings.clone()
        };
        let embed_tokens = Embedding::new(embeddings.clone(), embeddings.dim(1)?);
        Ok(Self { embed_tokens, layers, norm: norm("norm")?, lm_head: Linear::new(head, None) })
    }

    /// The scores of the next token after each of `ids`, `(1, s, vocab_size)`; `ids` continue the tokens in the caches.
    pub fn forward(&self, ids: &[u32], caches: &mut [KvCache]) -> Result<Tensor> {
        let mut xs = self.embed_tokens.forward(&Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            xs = layer.forward(&xs, cache)?;
        }
        Ok(self.lm_head.forward(&self.norm.forward(&xs)?)?)
    }
}

fn main() -> ExitCode {
    shared::run(|| {
        let Arguments { model, count, mut ids } = Arguments::parse();
        let decoder = Decoder::load(&model)?;
        let mut caches: Vec<KvCache> = decoder.layers.iter().map(|_| KvCache::growing()).collect();
        for _ in 0..count {
            let logits = decoder.forward(&ids, &mut caches)?;
            let best = logits.squeeze(0)?.argmax(D::Minus1)?.to_vec1::<u32>()?;
            ids = best[best.len() - 1..].to_vec(); // the earlier ids are in the caches
            println!("{}", ids[0]);
        }
        Ok(())
    })
}

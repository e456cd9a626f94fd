//! A whole Qwen3 composed around the attention layer: loads a model folder and continues rows of token ids.

#[allow(dead_code)] // Every program uses a part of it.
mod tokens;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_attention::checkpoint::{Checkpoint, ModelAttention};
use candle_attention::norm::{Norm, rms_norm};
use candle_attention::{AttentionInputs, AttentionMask, AttentionOptions, KvCache, PaddedIds};
use candle_attention_cli::shared::Result;
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{Embedding, Linear, VarBuilder, embedding, linear_no_bias};
use clap::Parser;
use tokens::{Config, check_ids, lm_head};

/// Continues rows of token ids by greedy decoding with a key-value cache, and prints the new ids of each row.
///
/// The model in tests/fixtures has random weights: its ids mean nothing. They are those of transformers on this model.
///
/// Example: qwen3 tests/fixtures/compose/qwen3 --count 12 5,61,17,2,40,33,8,21,50 7,12,3,44 63
#[derive(Parser)]
#[command(name = "qwen3", verbatim_doc_comment)]
struct Arguments {
    #[command(flatten)]
    tokens: tokens::Arguments,
}

/// `xs + attention(norm(xs))`, then `xs + mlp(norm(xs))`.
struct Layer {
    input_norm: Norm,
    attention: ModelAttention,
    mlp_norm: Norm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Layer {
    fn load(config: &Config, vb: VarBuilder) -> Result<Self> {
        let (hidden, inner) = (config.size("hidden_size")?, config.size("intermediate_size")?);
        let eps = config.number("rms_norm_eps")?;
        Ok(Self {
            input_norm: rms_norm(hidden, eps, vb.pp("input_layernorm"))?,
            // With grouped heads, norms of queries and keys, rotary positions, and the mask of this layer.
            attention: ModelAttention::load(&config.json, vb.pp("self_attn"))?,
            mlp_norm: rms_norm(hidden, eps, vb.pp("post_attention_layernorm"))?,
            gate_proj: linear_no_bias(hidden, inner, vb.pp("mlp.gate_proj"))?,
            up_proj: linear_no_bias(hidden, inner, vb.pp("mlp.up_proj"))?,
            down_proj: linear_no_bias(inner, hidden, vb.pp("mlp.down_proj"))?,
        })
    }

    /// xs `(b, s, hidden_size)`: `lengths[i]` tokens of row `i` after the ones in the cache, then padding.
    fn forward(&self, xs: &Tensor, lengths: &[usize], cache: &mut KvCache) -> Result<Tensor> {
        let normed = self.input_norm.forward(xs)?;
        // The layer is causal by itself. Each row continues at its own end.
        let inputs = AttentionInputs::self_attention(&normed, AttentionMask::full());
        let options = AttentionOptions::default();
        let xs = (xs + self.attention.layer.attend_with(&inputs.with_cache_lengths(cache, lengths), &options)?.output)?;
        let normed = self.mlp_norm.forward(&xs)?;
        let inner = (self.gate_proj.forward(&normed)?.silu()? * self.up_proj.forward(&normed)?)?; // SwiGLU
        Ok((&xs + self.down_proj.forward(&inner)?)?)
    }
}

/// Embeddings, layers, the final norm, and the head that scores the vocabulary.
pub struct Qwen3 {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: Norm,
    lm_head: Linear,
    config: Config,
}

impl Qwen3 {
    /// Loads the model of a folder.
    pub fn load(folder: &Path) -> Result<Self> {
        let config = Config::from_folder(folder)?;
        config.expect("model_type", "qwen3")?;
        config.expect("hidden_act", "silu")?;
        let vb = Checkpoint::open(folder)?.var_builder(DType::F32, &Device::Cpu);
        let (vocab, hidden) = (config.size("vocab_size")?, config.size("hidden_size")?);
        let model = vb.pp("model");
        let embed_tokens = embedding(vocab, hidden, model.pp("embed_tokens"))?;
        let lm_head = lm_head(&embed_tokens, &vb)?;
        let layers = 0..config.size("num_hidden_layers")?;
        let layers = layers.map(|i| Layer::load(&config, model.pp("layers").pp(i))).collect::<Result<_>>()?;
        let norm = rms_norm(hidden, config.number("rms_norm_eps")?, model.pp("norm"))?;
        Ok(Self { embed_tokens, layers, norm, lm_head, config })
    }

    /// Empty caches, one for each layer.
    pub fn caches(&self) -> Vec<KvCache> {
        self.layers.iter().map(|_| KvCache::growing()).collect()
    }

    /// The scores of the token after each of these, `(b, s, vocab_size)`; the rows continue the tokens in the caches,
    /// and may have no new token. What stands at padding is undefined.
    pub fn forward(&self, rows: &[Vec<u32>], caches: &mut [KvCache]) -> Result<Tensor> {
        let tokens = PaddedIds::new(rows, 0, &Device::Cpu)?;
        let mut xs = self.embed_tokens.forward(&tokens.ids)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            xs = layer.forward(&xs, &tokens.lengths, cache)?;
        }
        Ok(self.lm_head.forward(&self.norm.forward(&xs)?)?)
    }

    /// The `count` ids that follow each row.
    pub fn generate(&self, mut rows: Vec<Vec<u32>>, count: usize) -> Result<Vec<Vec<u32>>> {
        check_ids(&rows, &self.config)?;
        let (mut caches, mut generated) = (self.caches(), vec![Vec::new(); rows.len()]);
        for _ in 0..count {
            let best = self.forward(&rows, &mut caches)?.argmax(D::Minus1)?.to_vec2::<u32>()?;
            for (i, row) in rows.iter_mut().enumerate() {
                *row = vec![best[i][row.len() - 1]]; // the earlier ids are in the caches
                generated[i].push(row[0]);
            }
        }
        Ok(generated)
    }
}

fn main() -> ExitCode {
    let generate = |model: PathBuf, rows, count| Qwen3::load(&model)?.generate(rows, count);
    candle_attention_cli::shared::program::run(|| Arguments::parse().tokens.print(generate))
}

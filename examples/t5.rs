//! A whole T5 composed around the attention layer: an encoder, and a decoder that attends to what it read.

#[allow(dead_code)] // Every program uses a part of it.
mod tokens;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_attention::checkpoint::{Checkpoint, ModelAttention};
use candle_attention::norm::{Norm, rms_norm};
use candle_attention::{AttentionInputs, AttentionMask, AttentionOptions, CrossCache, KvCache, PaddedIds};
use candle_attention_cli::shared::Result;
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{Embedding, Linear, VarBuilder, embedding, linear_no_bias};
use clap::Parser;
use tokens::{Config, check_ids, lm_head};

/// Reads rows of token ids and prints what the decoder makes of each, by greedy decoding with caches.
///
/// The model in tests/fixtures has random weights: its ids mean nothing. They are those of transformers on this model.
///
/// Example: t5 tests/fixtures/compose/t5 --count 12 5,11,17,2,39,33,8,21,30,1 7,12,3,1
#[derive(Parser)]
#[command(name = "t5", verbatim_doc_comment)]
struct Arguments {
    #[command(flatten)]
    tokens: tokens::Arguments,
}

/// Self-attention, in a decoder cross-attention, and a feed-forward part: `xs + part(norm(xs))` each.
struct Block {
    norms: Vec<Norm>,
    attention: ModelAttention,
    cross: Option<ModelAttention>,
    inner: Linear,
    gate: Option<Linear>,
    output: Linear,
}

impl Block {
    fn load(config: &Config, decoder: bool, vb: VarBuilder) -> Result<Self> {
        let (hidden, ff, eps) = (config.size("d_model")?, config.size("d_ff")?, config.number("layer_norm_epsilon")?);
        let (inner, gate) = match config.json.get("feed_forward_proj").map(|name| name.as_str()) {
            None | Some(Some("relu")) => ("wi", None),
            Some(Some("gated-gelu")) => ("wi_0", Some("wi_1")),
            Some(_) => return Err(config.wrong("feed_forward_proj", "\"relu\" or \"gated-gelu\"")),
        };
        let parts = if decoder { 3 } else { 2 };
        let dense = vb.pp(parts - 1).pp("DenseReluDense");
        // Only block 0 has a table of relative biases. By its prefix, another block finds it there.
        Ok(Self {
            norms: (0..parts).map(|i| Ok(rms_norm(hidden, eps, vb.pp(i).pp("layer_norm"))?)).collect::<Result<_>>()?,
            attention: ModelAttention::load(&config.json, vb.pp("0.SelfAttention"))?,
            cross: decoder.then(|| ModelAttention::load(&config.json, vb.pp("1.EncDecAttention"))).transpose()?,
            inner: linear_no_bias(hidden, ff, dense.pp(inner))?,
            gate: gate.map(|gate| linear_no_bias(hidden, ff, dense.pp(gate))).transpose()?,
            output: linear_no_bias(ff, hidden, dense.pp("wo"))?,
        })
    }

    fn feed_forward(&self, xs: &Tensor) -> Result<Tensor> {
        let normed = self.norms[self.norms.len() - 1].forward(xs)?;
        let inner = match &self.gate {
            Some(gate) => (self.inner.forward(&normed)?.gelu()? * gate.forward(&normed)?)?,
            None => self.inner.forward(&normed)?.relu()?,
        };
        Ok((xs + self.output.forward(&inner)?)?)
    }
}

/// Embeddings, both stacks with their last norms, and the head that scores the vocabulary.
pub struct T5 {
    shared: Embedding,
    encoder: (Vec<Block>, Norm),
    decoder: (Vec<Block>, Norm),
    lm_head: Linear,
    output_scale: f64,
    start: u32,
    config: Config,
}

impl T5 {
    /// Loads the model of a folder.
    pub fn load(folder: &Path) -> Result<Self> {
        let config = Config::from_folder(folder)?;
        config.expect("model_type", "t5")?;
        let vb = Checkpoint::open(folder)?.var_builder(DType::F32, &Device::Cpu);
        let (hidden, eps) = (config.size("d_model")?, config.number("layer_norm_epsilon")?);
        let shared = embedding(config.size("vocab_size")?, hidden, vb.pp("shared"))?;
        let stack = |name: &str, layers: &str| -> Result<_> {
            let block = |i| Block::load(&config, name == "decoder", vb.pp(name).pp("block").pp(i).pp("layer"));
            let blocks = (0..config.size(layers)?).map(block).collect::<Result<_>>()?;
            Ok((blocks, rms_norm(hidden, eps, vb.pp(name).pp("final_layer_norm"))?))
        };
        // T5 1.0 scales the output, 1.1 does not; before transformers 5, tied embeddings meant 1.0.
        let json = &config.json;
        let scaled = json["scale_decoder_outputs"].as_bool().or(json["tie_word_embeddings"].as_bool());
        let output_scale = if scaled.unwrap_or(true) { (hidden as f64).powf(-0.5) } else { 1.0 };
        let (encoder, decoder) = (stack("encoder", "num_layers")?, stack("decoder", "num_decoder_layers")?);
        let start = u32::try_from(config.size("decoder_start_token_id")?)?;
        check_ids(&[vec![start]], &config)?;
        Ok(Self { lm_head: lm_head(&shared, &vb)?, shared, encoder, decoder, output_scale, start, config })
    }

    /// What the encoder makes of padded rows, `(b, s, d_model)`.
    pub fn encode(&self, tokens: &PaddedIds) -> Result<Tensor> {
        let mut xs = self.shared.forward(&tokens.ids)?;
        for block in &self.encoder.0 {
            let normed = block.norms[0].forward(&xs)?;
            xs = (xs + block.attention.layer.attend(&normed, &normed, &normed, tokens.mask())?)?;
            xs = block.feed_forward(&xs)?;
        }
        Ok(self.encoder.1.forward(&xs)?)
    }

    /// The caches of each block: one for its own tokens, one with keys and values of what the encoder read.
    pub fn caches(&self, memory: &Tensor) -> Result<Vec<(KvCache, CrossCache)>> {
        let cross = self.decoder.0.iter().filter_map(|block| block.cross.as_ref());
        cross.map(|cross| Ok((KvCache::growing(), cross.layer.cross_cache(memory, memory)?))).collect()
    }

    /// The scores of the token after each of `ids` `(b, s)`, which follow those in the caches. `lengths` are those that
    /// the encoder read.
    pub fn decode(&self, ids: &Tensor, lengths: &[usize], caches: &mut [(KvCache, CrossCache)]) -> Result<Tensor> {
        let (mut xs, options) = (self.shared.forward(ids)?, AttentionOptions::default());
        for (block, (own, memory)) in self.decoder.0.iter().zip(caches) {
            let normed = block.norms[0].forward(&xs)?;
            xs = (xs + block.attention.layer.step(&normed, own)?)?; // causal by itself
            if let Some(cross) = &block.cross {
                let (normed, mask) = (block.norms[1].forward(&xs)?, AttentionMask::lengths(lengths));
                xs = (xs
                    + cross
                        .layer
                        .attend_with(&AttentionInputs::cross_cached(&normed, memory, mask), &options)?
                        .output)?;
            }
            xs = block.feed_forward(&xs)?;
        }
        Ok(self.lm_head.forward(&(self.decoder.1.forward(&xs)? * self.output_scale)?)?)
    }

    /// The first `count` ids that the decoder makes of each row.
    pub fn generate(&self, rows: &[Vec<u32>], count: usize) -> Result<Vec<Vec<u32>>> {
        check_ids(rows, &self.config)?;
        let tokens = PaddedIds::new(rows, 0, &Device::Cpu)?;
        let mut caches = self.caches(&self.encode(&tokens)?)?;
        let mut generated = vec![Tensor::full(self.start, (rows.len(), 1), &Device::Cpu)?];
        for step in 0..count {
            generated.push(self.decode(&generated[step], &tokens.lengths, &mut caches)?.argmax(D::Minus1)?);
        }
        Ok(Tensor::cat(&generated, 1)?.narrow(1, 1, count)?.to_vec2()?)
    }
}

fn main() -> ExitCode {
    let generate = |model: PathBuf, rows: Vec<_>, count| T5::load(&model)?.generate(&rows, count);
    candle_attention_cli::shared::program::run(|| Arguments::parse().tokens.print(generate))
}

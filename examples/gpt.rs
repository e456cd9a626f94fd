//! A GPT composed around the attention layer: trained from nothing, frozen, and written as a GPT-2 that transformers
//! loads.

#[allow(dead_code)] // Every program uses a part of it.
mod tokens;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use candle_attention::checkpoint::{Checkpoint, ModelAttention, layouts};
use candle_attention::norm::{Norm, layer_norm};
use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
use candle_attention_cli::shared::{Result, print};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{AdamW, Init, Linear, Optimizer, VarBuilder, VarMap, loss::cross_entropy, sampling::gumbel_softmax};
use clap::Parser;
use serde_json::{Value, json};
use tokens::{
    Config, Tensors, check_output, copies, frozen, frozen_linear, logits_output, pieces, read_text, save_logits,
    save_model,
};

/// Trains a small GPT on the bytes of a text, writes it as a GPT-2 (config.json and model.safetensors), and prints what
/// it has learned to write. After 200 steps that is the letters of the text and its most frequent words.
///
/// Example: gpt benches/peers/sentences.txt target/gpt --steps 200
#[derive(Parser)]
#[command(name = "gpt", verbatim_doc_comment)]
struct Arguments {
    #[command(flatten)]
    training: tokens::Training,
}

/// What the scores are divided by before a byte is drawn: less than 1 prefers the likely ones.
const TEMPERATURE: f64 = 0.5;

/// The config.json of a model of these sizes. One token is one byte.
pub fn config(n_embd: usize, n_layer: usize, n_head: usize, n_positions: usize) -> Value {
    json!({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": n_positions,
        "n_embd": n_embd, "n_layer": n_layer, "n_head": n_head, "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1,
        "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": null, "eos_token_id": null})
}

/// `xs + attention(norm(xs))`, then `xs + mlp(norm(xs))`.
struct Block {
    ln_1: Norm,
    attention: MultiHeadAttention,
    ln_2: Norm,
    mlp: [Linear; 2],
}

/// Embeddings of bytes and positions, blocks, the last norm; the head that scores the vocabulary is `wte`.
pub struct Gpt {
    wte: Tensor,
    wpe: Tensor,
    blocks: Vec<Block>,
    ln_f: Norm,
}

impl Gpt {
    /// The model of `vb`, new if that is a `VarMap`. `attention` makes the layer of a block.
    fn build(
        config: &Config,
        vb: VarBuilder,
        attention: impl Fn(VarBuilder) -> Result<MultiHeadAttention>,
    ) -> Result<Self> {
        let (vb, n, normal) = (vb.pp("transformer"), config.size("n_embd")?, Init::Randn { mean: 0.0, stdev: 0.05 });
        // GPT-2 stores the weight of a linear layer as (in, out).
        let conv1d = |input: usize, out: usize, vb: VarBuilder| -> Result<Linear> {
            Ok(Linear::new(vb.get_with_hints((input, out), "weight", normal)?.t()?, Some(vb.get(out, "bias")?)))
        };
        let block = |vb: VarBuilder| -> Result<Block> {
            let mlp = [conv1d(n, 4 * n, vb.pp("mlp.c_fc"))?, conv1d(4 * n, n, vb.pp("mlp.c_proj"))?];
            let norm = |name: &str| layer_norm(n, 1e-5, vb.pp(name));
            Ok(Block { ln_1: norm("ln_1")?, attention: attention(vb.pp("attn"))?, ln_2: norm("ln_2")?, mlp })
        };
        let wte = vb.get_with_hints((256, n), "wte.weight", normal)?;
        let wpe = vb.get_with_hints((config.size("n_positions")?, n), "wpe.weight", normal)?;
        let blocks = (0..config.size("n_layer")?).map(|i| block(vb.pp("h").pp(i))).collect::<Result<_>>()?;
        Ok(Self { wte, wpe, blocks, ln_f: layer_norm(n, 1e-5, vb.pp("ln_f"))? })
    }

    /// A new model on variables.
    pub fn new(json: &Value, variables: &VarMap) -> Result<Self> {
        let sizes = Config::new("config.json", json.clone());
        let config = AttentionConfig::new(sizes.size("n_embd")?, sizes.size("n_head")?);
        let config = config.with_mask(AttentionMask::causal()).with_dropout(0.1);
        let vb = VarBuilder::from_varmap(variables, DType::F32, &Device::Cpu);
        Self::build(&sizes, vb, |vb| Ok(MultiHeadAttention::new(&config, vb)?))
    }

    /// The model of a folder that `main` or transformers has written.
    pub fn load(folder: &Path) -> Result<Self> {
        let config = Config::from_folder(folder)?;
        config.expect("model_type", "gpt2")?;
        let vb = Checkpoint::open(folder)?.var_builder(DType::F32, &Device::Cpu);
        Self::build(&config, vb, |vb| Ok(ModelAttention::load(&config.json, vb)?.layer))
    }

    /// The scores of the byte after each of ids `(b, s)`: `(b, s, 256)`. With `train`, dropout is applied.
    pub fn forward(&self, ids: &Tensor, train: bool) -> Result<Tensor> {
        let embedded = self.wte.index_select(&ids.flatten_all()?, 0)?.reshape((ids.dim(0)?, ids.dim(1)?, ()))?;
        let mut xs = embedded.broadcast_add(&self.wpe.narrow(0, 0, ids.dim(1)?)?)?;
        for Block { ln_1, attention, ln_2, mlp: [c_fc, c_proj] } in &self.blocks {
            xs = (&xs + attention.forward_t(&ln_1.forward(&xs)?, train)?)?;
            xs = (&xs + c_proj.forward(&c_fc.forward(&ln_2.forward(&xs)?)?.gelu()?)?)?;
        }
        Ok(Linear::new(self.wte.clone(), None).forward(&self.ln_f.forward(&xs)?)?)
    }

    /// The mean loss of every byte of ids `(b, s + 1)` but the first.
    pub fn loss(&self, ids: &Tensor, train: bool) -> Result<Tensor> {
        let s = ids.dim(1)? - 1;
        let logits = self.forward(&ids.narrow(1, 0, s)?, train)?;
        Ok(cross_entropy(&logits.flatten_to(1)?, &ids.narrow(1, 1, s)?.flatten_all()?)?)
    }

    /// `text` and `count` bytes after it, each drawn from the scores.
    pub fn continued(&self, text: &str, count: usize) -> Result<String> {
        let (n_positions, mut bytes) = (self.wpe.dim(0)?, text.as_bytes().to_vec());
        for _ in 0..count {
            let seen = &bytes[bytes.len().saturating_sub(n_positions)..];
            let ids = Tensor::from_iter(seen.iter().map(|&byte| u32::from(byte)), &Device::Cpu)?.unsqueeze(0)?;
            let scores = self.forward(&ids, false)?.get(0)?.get(seen.len() - 1)?;
            bytes.push(gumbel_softmax(&scores, TEMPERATURE, 0)?.to_scalar::<u32>()? as u8);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The model as it is now, for inference: fused kernels on packed weights.
    pub fn frozen(&self) -> Result<Self> {
        let block = |Block { ln_1, attention, ln_2, mlp: [c_fc, c_proj] }: &Block| -> Result<Block> {
            let (ln_1, attention, ln_2) = (ln_1.frozen()?, attention.frozen()?, ln_2.frozen()?);
            Ok(Block { ln_1, attention, ln_2, mlp: [frozen_linear(c_fc)?, frozen_linear(c_proj)?] })
        };
        let blocks = self.blocks.iter().map(block).collect::<Result<_>>()?;
        Ok(Self { wte: frozen(&self.wte)?, wpe: frozen(&self.wpe)?, blocks, ln_f: self.ln_f.frozen()? })
    }

    /// The tensors by their names in GPT-2: the variables have these, but for the attention.
    pub fn tensors(&self, variables: &VarMap) -> Result<Tensors> {
        let mut tensors = copies(variables)?;
        tensors.retain(|name, _| !name.contains(".attn."));
        let layout = layouts().find(|layout| layout.name() == "gpt2").ok_or("there is no layout gpt2")?;
        for (i, Block { attention, .. }) in self.blocks.iter().enumerate() {
            let named = attention.weights()?.to_layout(attention.config(), layout)?.into_iter();
            tensors.extend(named.map(|(name, tensor)| (format!("transformer.h.{i}.attn.{name}"), tensor)));
        }
        Ok(tensors)
    }
}

fn main() -> ExitCode {
    candle_attention_cli::shared::program::run(|| {
        let tokens::Training { text, output, steps, logits, force } = Arguments::parse().training;
        let (json, variables, s) = (config(32, 2, 4, 64), VarMap::new(), 64);
        check_output(&output, &json)?;
        let logits = logits_output(logits.as_deref(), force)?;
        let [train, held_out] = &read_text(&text)?;
        let mut out = print::stdout_beside_files();
        let model = Gpt::new(&json, &variables)?;
        let mut optimizer = AdamW::new_lr(variables.all_vars(), 3e-3)?;
        let evaluation = pieces(held_out, 8, s, 0)?;
        for step in 1..=steps {
            let loss = model.loss(&pieces(train, 8, s, step)?, true)?;
            optimizer.backward_step(&loss)?;
            if step == 1 || step % 20 == 0 || step == steps {
                let held_out = model.frozen()?.loss(&evaluation, false)?.to_scalar::<f32>()?;
                writeln!(out, "step {step}: loss {:.3}, held out {held_out:.3}", loss.to_scalar::<f32>()?)?;
                out.flush()?;
            }
        }
        writeln!(out, "\n{}", print::plain(model.frozen()?.continued("The ", 300)?))?;
        out.flush()?;
        save_model(&output, &json, model.tensors(&variables)?)?;
        match logits {
            Some(logits) => save_logits(&logits, &evaluation, |ids| Gpt::load(&output)?.forward(ids, false)),
            None => Ok(()),
        }
    })
}

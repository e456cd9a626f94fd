//! A decoder that writes: Llama, SmolLM2, Mistral, Qwen 2 and 3, Gemma 2 and 3, composed around the attention layer.

#[allow(dead_code)] // Every program uses a part of it.
pub(crate) mod tokens;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use candle_attention::checkpoint::{Checkpoint, CheckpointSource, ModelAttention, WeightSource};
use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::{ComputeType, KvCache, NormKind, PaddedIds};
use candle_attention_cli::shared::device::Compute;
use candle_attention_cli::shared::{Result, interrupt, print, program};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::Embedding;
use clap::Parser;
use tokens::chat::{Files, Sampling};
use tokens::{Config, check_ids};

/// Writes what follows a prompt, token by token as it comes; with several prompts, all at once and each in the end.
///
/// Example: generate smollm2.gguf "Why is the sky blue?" --count 60
#[derive(Parser)]
#[command(name = "generate", verbatim_doc_comment)]
struct Arguments {
    /// A model folder, a GGUF file, or an id on the Hugging Face Hub
    model: String,
    /// The prompts, of any lengths
    #[arg(required = true)]
    prompts: Vec<String>,
    /// The most tokens to write after each prompt
    #[arg(long, default_value_t = 128)]
    count: usize,
    /// Continue the prompt itself, without the chat template of the model
    #[arg(long)]
    raw: bool,
    /// What the system says before the prompt
    #[arg(long, conflicts_with = "raw")]
    system: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    compute: Compute,
}

/// A layer: attention and a feed-forward part, each added to its input. Gemma also normalizes what is added.
struct Layer {
    norms: [Norm; 2],
    after: Option<[Norm; 2]>,
    attention: ModelAttention,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    is_gelu: bool,
}

impl Layer {
    fn load(config: &Config, source: &CheckpointSource) -> Result<Self> {
        let (hidden, inner) = (config.size("hidden_size")?, config.size("intermediate_size")?);
        let norms = |[a, b]: [&str; 2]| Result::Ok([norm(config, source, a)?, norm(config, source, b)?]);
        let is_gemma = is_gemma(config);
        let second = if is_gemma { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        let after = ["post_attention_layernorm", "post_feedforward_layernorm"];
        let mlp = source.child("mlp");
        Ok(Self {
            norms: norms(["input_layernorm", second])?,
            after: is_gemma.then(|| norms(after)).transpose()?,
            // Grouped heads, norms of queries and keys, rotary positions and the mask of this layer are in it.
            attention: ModelAttention::load(&config.json, source.child("self_attn"))?,
            gate_proj: Linear::load(&mlp, "gate_proj", inner, hidden)?,
            up_proj: Linear::load(&mlp, "up_proj", inner, hidden)?,
            down_proj: Linear::load(&mlp, "down_proj", hidden, inner)?,
            is_gelu: is_gemma,
        })
    }

    /// xs `(b, s, hidden_size)`: `lengths[i]` tokens of row `i` after the ones in the cache, then padding.
    fn forward(&self, xs: &Tensor, lengths: &[usize], cache: &mut KvCache) -> Result<Tensor> {
        let added = |xs: &Tensor, i: usize, part: Tensor| match &self.after {
            Some(norms) => xs + norms[i].forward(&part)?,
            None => xs + part,
        };
        let attended = self.attention.step_with(&self.norms[0].forward(xs)?, cache, None, lengths)?;
        let xs = added(xs, 0, attended)?;
        let normed = self.norms[1].forward(&xs)?;
        let gate = self.gate_proj.forward(&normed)?;
        let gate = if self.is_gelu { gate.gelu()? } else { gate.silu()? }; // gelu is the approximation by tanh
        let inner = (gate * self.up_proj.forward(&normed)?)?;
        Ok(added(&xs, 1, self.down_proj.forward(&inner)?)?)
    }
}

fn is_gemma(config: &Config) -> bool {
    config.json["model_type"].as_str().is_some_and(|kind| kind.starts_with("gemma"))
}

fn norm(config: &Config, source: &CheckpointSource, name: &str) -> Result<Norm> {
    let kind = if is_gemma(config) { NormKind::RmsOffset } else { NormKind::Rms };
    let eps = config.number("rms_norm_eps")?;
    Ok(Norm::load(kind, false, config.size("hidden_size")?, eps, &source.child(name))?)
}

/// Embeddings, layers, the final norm, and the head that scores the vocabulary.
pub struct Decoder {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: Norm,
    lm_head: Linear,
    /// Gemma's factor on the embeddings.
    scale: Option<f64>,
    /// Gemma 2's cap on the scores.
    softcap: Option<f64>,
}

impl Decoder {
    /// Loads the model of a checkpoint, as its `config.json` says.
    pub fn load(config: &Config, checkpoint: &Checkpoint, compute: ComputeType, device: &Device) -> Result<Self> {
        let known = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"];
        if !known.iter().any(|kind| config.json["model_type"] == *kind) {
            return Err(config.wrong("model_type", &known.join(", ")));
        }
        let act = if is_gemma(config) { ("hidden_activation", "gelu_pytorch_tanh") } else { ("hidden_act", "silu") };
        config.expect(act.0, act.1)?;
        let (vocab, hidden) = (config.size("vocab_size")?, config.size("hidden_size")?);
        // GGUF files hold the decoder without its head's prefix.
        let prefix = if checkpoint.contains("model.embed_tokens.weight") { "model" } else { "" };
        let (root, model) = (checkpoint.at("", compute, device), checkpoint.at(prefix, compute, device));
        let table = model.child("embed_tokens");
        let own_head = checkpoint.contains("lm_head.weight");
        let head = if own_head { root.child("lm_head") } else { table.clone() };
        let layers = 0..config.size("num_hidden_layers")?;
        Ok(Self {
            embed_tokens: Embedding::new(table.get("weight", &[vocab, hidden])?, hidden),
            layers: layers.map(|i| Layer::load(config, &model.child(&format!("layers.{i}")))).collect::<Result<_>>()?,
            norm: norm(config, &model, "norm")?,
            lm_head: Linear::load_with_bias(&head, vocab, hidden, false)?,
            scale: is_gemma(config).then(|| (hidden as f64).sqrt()),
            softcap: config.json["final_logit_softcapping"].as_f64(),
        })
    }

    /// Empty caches, one for each layer: a layer with a window keeps no more than that.
    pub fn caches(&self) -> Vec<KvCache> {
        self.layers.iter().map(|layer| layer.attention.new_cache()).collect()
    }

    /// The hidden state of each of these tokens, `(b, s, hidden_size)`; the rows continue the tokens in the caches, and
    /// may have no new token. What stands at padding is undefined.
    fn hidden(&self, rows: &[Vec<u32>], caches: &mut [KvCache]) -> Result<Tensor> {
        let tokens = PaddedIds::new(rows, 0, self.embed_tokens.embeddings().device())?;
        let mut xs = self.embed_tokens.forward(&tokens.ids)?;
        if let Some(scale) = self.scale {
            xs = (xs * scale)?;
        }
        for (layer, cache) in self.layers.iter().zip(caches) {
            xs = layer.forward(&xs, &tokens.lengths, cache)?;
        }
        Ok(xs)
    }

    /// The scores `(…, vocab_size)` of the tokens after hidden states.
    fn scores(&self, hidden: &Tensor) -> Result<Tensor> {
        let scores = self.lm_head.forward(&self.norm.forward(hidden)?)?;
        Ok(match self.softcap {
            Some(cap) => ((scores / cap)?.tanh()? * cap)?,
            None => scores,
        })
    }

    /// The scores of the token after each of these, `(b, s, vocab_size)`.
    pub fn forward(&self, rows: &[Vec<u32>], caches: &mut [KvCache]) -> Result<Tensor> {
        self.scores(&self.hidden(rows, caches)?)
    }

    /// The scores of the token after each row, `(b, vocab_size)`.
    pub fn next(&self, rows: &[Vec<u32>], caches: &mut [KvCache]) -> Result<Tensor> {
        let hidden = self.hidden(rows, caches)?;
        let last = |(i, row): (usize, &Vec<u32>)| hidden.get(i)?.get(row.len() - 1);
        self.scores(&Tensor::stack(&rows.iter().enumerate().map(last).collect::<candle_core::Result<Vec<_>>>()?, 0)?)
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let Arguments { model, prompts, count, raw, system, mut sampling, compute } = arguments;
    let files = Files::open(&model)?;
    let ids = |prompt: &String| files.ids(prompt, system.as_deref(), raw);
    let mut rows = prompts.iter().map(ids).collect::<Result<Vec<_>>>()?;
    check_ids(&rows, &files.config)?;
    let decoder = Decoder::load(&files.config, &files.weights, compute.dtype.unwrap_or_default(), &compute.device)?;
    let (mut caches, mut out, mut shown) = (decoder.caches(), print::stdout(), 0);
    let (mut written, mut running) = (vec![Vec::new(); rows.len()], (0..rows.len()).collect::<Vec<_>>());
    let (prompt, start, mut first) = (rows.iter().map(Vec::len).sum::<usize>(), Instant::now(), None);
    interrupt::hold(true);
    while !running.is_empty() && count > 0 && !interrupt::asked() {
        let scores = decoder.next(&rows, &mut caches)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        first.get_or_insert_with(|| start.elapsed().as_secs_f64());
        let mut left = Vec::new();
        for (at, &i) in running.iter().enumerate() {
            let id = sampling.choose(&scores[at]);
            rows[at] = vec![id]; // the earlier ids are in the caches
            if files.ends.contains(&id) {
                continue;
            }
            written[i].push(id);
            if prompts.len() == 1 {
                let text = files.text(&written[i])?;
                let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER); // the next token may end the character
                write!(out, "{}", whole.get(shown..).unwrap_or_default())?;
                shown = shown.max(whole.len());
                out.flush()?;
            }
            if written[i].len() < count {
                left.push(at);
            }
        }
        if !left.is_empty() && left.len() < running.len() {
            caches.iter_mut().try_for_each(|cache| cache.select_sequences(&left))?;
        }
        (running, rows) = left.iter().map(|&at| (running[at], rows[at].clone())).unzip();
    }
    for (prompt, ids) in prompts.iter().zip(&written) {
        let text = files.text(ids)?;
        match prompts.len() {
            // Bytes that make no character were held back.
            1 => write!(out, "{}", text.get(shown..).unwrap_or_default())?,
            _ => writeln!(out, "{prompt}\n{text}\n")?,
        }
    }
    writeln!(out)?;
    out.flush()?;
    let (count, first) = (written.iter().map(Vec::len).sum::<usize>(), first.unwrap_or_default());
    let rate = count.saturating_sub(prompts.len()) as f64 / (start.elapsed().as_secs_f64() - first).max(1e-9);
    print::to_stderr(format_args!(
        "{prompt} tokens of prompts in {first:.2} s, then {count} tokens, {rate:.1} a second"
    ));
    Ok(())
}

fn main() -> ExitCode {
    program::run(|| run(Arguments::parse()))
}

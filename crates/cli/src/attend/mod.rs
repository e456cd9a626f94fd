//! Runs one attention layer of a checkpoint on tensors from a file, to compare it with another framework.

mod inputs;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::{Checkpoint, ModelConfig, detect, infer_config};
use candle_attention::io::read_json;
use candle_attention::{AttentionInputs, AttentionMask, AttentionOptions, Error, MultiHeadAttention, Position};
use candle_core::DType;
use clap::Parser;
use inputs::Inputs;
use serde_json::Value;

use super::shared::checkpoint::{check_finite, open};
use super::shared::device::{Compute, dtype_help};
use super::shared::model::{PATH_OR_ID, examples, or_hub_id};
use super::shared::output::{Kind, Output};
use super::shared::program::{Command, name_option};
use super::shared::{Result, about, fail, print};

/// Run one attention layer of a checkpoint on tensors from a file
///
/// The output file gets `output` (b, s_q, dim) and, with --weights, the attention weights `weights` (b, h, s_q, s_kv).
/// These tensors of the input file are read:
///
///   query              (b, s_q, dim)
///   key, value         (b, s_kv, dim) [default: key is the query, value is the key; a value needs a key]
///   attention_mask     (b, s_kv) of booleans, integers or floats: 1 = attend, 0 = hidden, as in transformers
///   attn_mask          (s_q, s_kv), (b, s_q, s_kv) or (b, h, s_q, s_kv), as in torch's scaled_dot_product_attention:
///                      booleans, True = attend (nn.MultiheadAttention: the opposite), or floats, added to the scores
///   key_padding_mask   (b, s_kv), as in nn.MultiheadAttention: booleans, True = hidden, or floats, added to the scores
///   lengths            (b) or (b, s_q): only the first keys are visible
///   additive           (b, h, s_q, s_kv), added to the scores
///   grid               (2): rows and columns of patches, for models whose images have any shape
///
/// A dimension b, h, s_q or s_kv of attn_mask and additive may be 1. All masks apply together. In floats, -inf and the
/// lowest number of the mask's own dtype hide the key; any other number is added, in an f64 mask also f32's lowest. A
/// query whose keys are all hidden gets zeros (torch gives the mean of the values for a row of lowest numbers).
/// In Python:
///
///   import torch
///   from safetensors.torch import save_file
///   save_file({"query": torch.randn(1, 5, 384), "attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}, "in.safetensors")
#[derive(Parser)]
#[command(
    name = "attend",
    verbatim_doc_comment,
    mut_arg("dtype", |arg| arg.help(dtype_help(false))),
    after_help = examples("Examples:
  candle-attention attend --model sentence-transformers/all-MiniLM-L6-v2 --prefix encoder.layer.0.attention \\
      --input in.safetensors --output out.safetensors
  candle-attention attend --model sentence-transformers/all-MiniLM-L6-v2 --prefix encoder.layer.1.attention \\
      --input in.safetensors --output attended.safetensors --weights --causal --plan")
)]
pub struct Attend {
    #[arg(
        long,
        alias = "checkpoint",
        value_name = PATH_OR_ID,
        help = or_hub_id("A model folder, a .safetensors or .gguf file, a .safetensors.index.json", "")
    )]
    model: PathBuf,
    /// The prefix of the layer's tensor names, such as encoder.layer.0.attention; empty if they have none
    #[arg(long)]
    prefix: String,
    /// The model's config.json: the layer gets its positions, norms, scale and causal or local mask from it
    /// [default: without --heads, the one beside the weights or in a GGUF file]
    #[arg(long, value_name = "FILE", conflicts_with = "heads")]
    config: Option<PathBuf>,
    /// Read config.json as that of this family, whatever its model_type, such as llama [default: its model_type]
    #[arg(long, value_name = "FAMILY", conflicts_with = "heads")]
    like: Option<String>,
    /// The number of heads, without a config.json [default: as config.json has it]
    #[arg(long)]
    heads: Option<usize>,
    /// The safetensors file with the input tensors
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// The safetensors file to write; a file that this command wrote before is replaced
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replace any file at --output [default: a file that this command did not write is an error]
    #[arg(long)]
    force: bool,
    /// Also write the attention weights [default: the output alone]
    #[arg(long)]
    weights: bool,
    #[command(flatten)]
    compute: Compute,
    /// Let each query see only keys up to its own position [default: as the masks and config.json have it]
    #[arg(long)]
    causal: bool,
    /// Print the backend that runs, and the reason against each other one [default: not printed]
    #[arg(long)]
    plan: bool,
}

impl Command for Attend {
    fn run(self) -> Result<()> {
        let checkpoint = open(&self.model)?;
        let path = checkpoint.path().unwrap_or(&self.model).to_path_buf();
        let config = model_config(&self, &path, &checkpoint)?;
        let output = Output::new(&self.output, Kind::Tensors("candle-attention attend 1"), self.force)?;
        let inputs = Inputs::read(&self.input, self.compute.dtype.unwrap_or_default().dtype(), &self.compute.device)?;
        let (layer, layout) = load(&self, config, &checkpoint)?;
        let causal = if self.causal { AttentionMask::causal() } else { AttentionMask::full() };
        let (config, mask) = (layer.config(), inputs.mask.and(causal));

        let call = AttentionInputs::new(&inputs.query, &inputs.key, &inputs.value, &mask);
        let options = AttentionOptions::default().with_return_attention_weights(self.weights);
        let options = inputs.grid.map_or(options, |grid| options.with_grid(grid));
        // Lines would damage tensors on standard output.
        let mut out = print::unless_taken(output.is_stdout());
        if self.plan {
            writeln!(out, "{}", layer.plan(&call, &options)?)?;
        }
        let attended = layer.attend_with(&call, &options).map_err(|e| about(&self.input, &e))?;
        let shape = attended.output.dims().to_vec();
        let finite = (&attended.output * 0.0)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()? == 0.0;
        // NaN in the inputs may be what is to be compared; in the weights it is damage.
        if !finite {
            check_finite(&path, &checkpoint, &self.prefix)?;
        }
        let mut results = HashMap::from([("output".to_string(), attended.output)]);
        results.extend(attended.attention_weights.map(|weights| ("weights".to_string(), weights)));
        output.write_tensors(results)?;
        if !finite {
            print::note(format_args!("the output holds NaN or infinities, the weights of the layer are finite"));
        }
        let position = match &config.position {
            Position::None => String::new(),
            position => format!(", position {position}"),
        };
        let mask = config.mask.clone().and(mask);
        writeln!(
            out,
            "layout {layout}, {} heads of {} elements, {} key-value heads{position}, mask {mask}: output {shape:?}",
            config.num_attention_heads,
            config.resolved_head_dim(),
            config.resolved_num_key_value_heads(),
        )?;
        Ok(out.flush()?)
    }
}

/// The configuration that the layer is read by, and where it is from; `None` with --heads.
fn model_config(arguments: &Attend, path: &Path, checkpoint: &Checkpoint) -> Result<Option<(PathBuf, Value)>> {
    if let Some(path) = &arguments.config {
        return Ok(Some((path.clone(), read_json(path)?)));
    }
    if arguments.heads.is_some() {
        return Ok(None);
    }
    let beside = path.with_file_name("config.json");
    match checkpoint.config()? {
        Some(config) if checkpoint.gguf().is_some() => Ok(Some((path.to_path_buf(), config))),
        Some(config) => Ok(Some((beside, config))),
        None => {
            let beside = beside.display();
            fail(&arguments.model, format!("no config.json beside it ({beside}): give --heads or --config"))
        }
    }
}

/// The layer and the name of its layout.
fn load(
    arguments: &Attend,
    config: Option<(PathBuf, Value)>,
    checkpoint: &Checkpoint,
) -> Result<(MultiHeadAttention, &'static str)> {
    let (compute_type, device) = (arguments.compute.dtype.unwrap_or_default(), &arguments.compute.device);
    let weights = checkpoint.path().unwrap_or(&arguments.model);
    checkpoint.check_prefix(&arguments.prefix).map_err(|e| about(weights, &e))?;
    let Some((path, json)) = config else {
        let source = checkpoint.at(&arguments.prefix, compute_type, device);
        let config = infer_config(&source, arguments.heads.unwrap_or_default()).map_err(|e| {
            about(weights, name_option(&e, |field| (field == "num_attention_heads").then_some("heads")))
        })?;
        let layout = detect(&source)?.name();
        return Ok((MultiHeadAttention::load(&config, source)?, layout));
    };
    let config = ModelConfig::new(&json).with_like(arguments.like.as_deref());
    let read = checkpoint.attention_with(&arguments.prefix, config, compute_type, device).map_err(|e| match e {
        Error::UnknownLayout { .. } | Error::MissingTensor { .. } | Error::UnsupportedTensor { .. } => {
            about(weights, &e)
        }
        e => about(&path, &e),
    })?;
    read.note.iter().for_each(|note| print::note(format_args!("{}: {note}", arguments.prefix.escape_debug())));
    Ok((read.layer, read.layout.name()))
}

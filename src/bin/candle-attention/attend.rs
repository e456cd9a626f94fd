//! Runs one attention layer of a checkpoint on tensors from a file, to compare it with another framework.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::PathBuf;

use super::shared::output::{Kind, Output};
use super::shared::program::Command;
use super::shared::{Result, about, device, print, read};
use candle_attention::checkpoint::{Checkpoint, ModelConfig, detect, infer_config};
use candle_attention::{AttentionInputs, AttentionMask, AttentionOptions, MultiHeadAttention, Position};
use candle_core::{DType, Device, Tensor};
use clap::Parser;

/// Runs one attention layer of a checkpoint.
///
/// The input file holds `query` (b, s_q, dim) and optionally `key` and `value` (b, s_kv, dim), `attention_mask`
/// (b, s_kv) with 1 = attend, `lengths` (b) or (b, s_q), and `additive` (b, h, s_q, s_kv), each dimension of its size or 1.
/// The output file gets `output` (b, s_q, dim) and, with --weights, the attention weights `weights` (b, h, s_q, s_kv).
///
/// Example: attend --checkpoint all-MiniLM-L6-v2 --prefix encoder.layer.0.attention --heads 12
///          --input in.safetensors --output out.safetensors
#[derive(Parser)]
#[command(name = "attend", verbatim_doc_comment)]
#[command(group = clap::ArgGroup::new("number_of_heads").required(true))]
pub struct Attend {
    /// A .safetensors file, a model folder, or a .safetensors.index.json
    #[arg(long)]
    checkpoint: PathBuf,
    /// The prefix of the layer's tensor names, such as encoder.layer.0.attention; empty if they have none
    #[arg(long)]
    prefix: String,
    /// The model's config.json: the layer gets its positions, norms, scale and causal or local mask from it
    #[arg(long, group = "number_of_heads")]
    config: Option<PathBuf>,
    /// With --config: read it as that of this family, whatever its model_type, such as llama
    #[arg(long, requires = "config")]
    like: Option<String>,
    /// The number of heads, without --config
    #[arg(long, group = "number_of_heads")]
    heads: Option<usize>,
    /// The safetensors file with the input tensors
    #[arg(long)]
    input: PathBuf,
    /// The safetensors file to write
    #[arg(long)]
    output: PathBuf,
    /// Also write the attention weights
    #[arg(long)]
    weights: bool,
    /// Compute in f32, f64, f16 or bf16
    #[arg(long, default_value = "f32", value_parser = device::dtype)]
    dtype: DType,
    /// Run on cpu, cuda[:N] or metal[:N]
    #[arg(long, default_value = "cpu", value_parser = device::device)]
    device: Device,
    /// Let each query see only keys up to its own position
    #[arg(long)]
    causal: bool,
    /// Print the backend that runs, and the reason against each other one
    #[arg(long)]
    plan: bool,
}

impl Command for Attend {
    fn run(self) -> Result<()> {
        attend(&self)
    }
}

fn attend(arguments: &Attend) -> Result<()> {
    let mut inputs = vec![arguments.checkpoint.as_path(), &arguments.input];
    inputs.extend(arguments.config.as_deref());
    let output = Output::new(&arguments.output, Kind::Tensors("candle-attention attend 1"), &inputs)?;
    let inputs = Inputs::read(arguments)?;
    let checkpoint = Checkpoint::open(&arguments.checkpoint)?;
    let (layer, layout) = load(arguments, &checkpoint)?;
    let (config, mask) = (layer.config(), inputs.mask);

    let call = AttentionInputs::new(&inputs.query, &inputs.key, &inputs.value, &mask);
    let options = AttentionOptions::default().with_return_attention_weights(arguments.weights);
    let mut out = print::stdout_beside_files();
    if arguments.plan {
        writeln!(out, "{}", layer.plan(&call, &options)?)?;
    }
    let attended = layer.attend_with(&call, &options)?;
    let shape = attended.output.dims().to_vec();
    let mut results = HashMap::from([("output".to_string(), attended.output)]);
    results.extend(attended.attention_weights.map(|weights| ("weights".to_string(), weights)));
    output.write_tensors(results)?;
    let position = match &config.position {
        Position::None => String::new(),
        position => format!(", position {position}"),
    };
    let mask = config.mask.clone().and(mask);
    writeln!(
        out,
        "layout {layout}, {} heads of {}, {} key-value heads{position}, mask {mask}: output {shape:?}",
        config.num_attention_heads,
        config.resolved_head_dim(),
        config.resolved_num_key_value_heads(),
    )?;
    Ok(out.flush()?)
}

/// The layer and the name of its layout.
fn load(arguments: &Attend, checkpoint: &Checkpoint) -> Result<(MultiHeadAttention, &'static str)> {
    let (dtype, device) = (arguments.dtype, &arguments.device);
    let Some(path) = &arguments.config else {
        let source = checkpoint.at(&arguments.prefix, dtype, device);
        let config = infer_config(&source, arguments.heads.unwrap_or_default())?;
        let layout = detect(&source)?.name();
        return Ok((MultiHeadAttention::load(&config, source)?, layout));
    };
    let json = read::json(path)?;
    let config = ModelConfig::new(&json).with_like(arguments.like.as_deref());
    let read = checkpoint.attention(&arguments.prefix, config, dtype, device).map_err(|e| about(path, &e))?;
    Ok((read.layer, read.layout.name()))
}

struct Inputs {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
}

const NAMES: [&str; 6] = ["query", "key", "value", "attention_mask", "lengths", "additive"];

impl Inputs {
    fn read(arguments: &Attend) -> Result<Self> {
        let path = &arguments.input;
        let file = Checkpoint::open(path)?;
        // A misspelled mask must not be ignored silently.
        if let Some(name) = file.names().find(|name| !NAMES.contains(name)) {
            return Err(format!("{}: unknown tensor `{name}`, expected {}", path.display(), NAMES.join(", ")).into());
        }
        let tensors = NAMES.iter().filter(|name| file.contains(name));
        let tensors = tensors.map(|name| Ok((*name, file.tensor(name, &Device::Cpu)?)));
        let tensors: BTreeMap<&str, Tensor> = tensors.collect::<Result<_>>()?;
        let float = |name: &str| -> Result<Option<Tensor>> {
            let Some(tensor) = tensors.get(name) else { return Ok(None) };
            if !tensor.dtype().is_float() {
                let dtype = tensor.dtype().as_str();
                return Err(format!("{}: `{name}` has dtype {dtype}, expected a float", path.display()).into());
            }
            Ok(Some(tensor.to_dtype(arguments.dtype)?.to_device(&arguments.device)?))
        };
        let missing = |name: &str| format!("{}: tensor `{name}` is missing", path.display());
        let query = float("query")?.ok_or_else(|| missing("query"))?;
        let (key, value) = match (float("key")?, float("value")?) {
            (Some(key), Some(value)) => (key, value),
            (Some(key), None) => (key.clone(), key),
            (None, None) => (query.clone(), query.clone()),
            (None, Some(_)) => return Err(missing("key").into()),
        };
        let mut mask = AttentionMask::full();
        if let Some(keep) = tensors.get("attention_mask") {
            let keep = AttentionMask::keep_keys(keep);
            mask = mask.and(keep.map_err(|error| format!("{}: `attention_mask`: {error}", path.display()))?);
        }
        if let Some(lengths) = tensors.get("lengths") {
            mask = mask.and(AttentionMask::lengths_tensor(lengths)?);
        }
        if let Some(additive) = tensors.get("additive") {
            let additive = AttentionMask::additive(additive);
            mask = mask.and(additive.map_err(|error| format!("{}: `additive`: {error}", path.display()))?);
        }
        if arguments.causal {
            mask = mask.and(AttentionMask::causal());
        }
        Ok(Self { query, key, value, mask })
    }
}

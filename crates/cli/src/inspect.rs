//! Lists the attention layers of a checkpoint from its headers alone, without reading the weights.

use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::{Checkpoint, LayerInfo, ModelConfig};
use candle_attention::ensure;
use candle_attention::io::read_json;
use clap::Parser;
use serde_json::Value;

use super::shared::checkpoint::open;
use super::shared::model::{PATH_OR_ID, examples, or_hub_id};
use super::shared::program::Command;
use super::shared::{Result, about, print};

/// List the attention layers of a checkpoint: prefix, layout, heads, dtype, parameters, positions, mask.
///
/// Reads the headers of the weights and config.json. What stands in brackets after a layer is why it cannot be loaded.
#[derive(Parser)]
#[command(
    name = "inspect",
    after_help = examples("Examples:
  candle-attention inspect sentence-transformers/all-MiniLM-L6-v2
  candle-attention inspect --model sentence-transformers/all-MiniLM-L6-v2 --check --json")
)]
pub struct Inspect {
    #[arg(
        required_unless_present = "model",
        value_name = PATH_OR_ID,
        help = or_hub_id("A model folder, a .safetensors or .gguf file, a .safetensors.index.json", "")
    )]
    checkpoint: Option<PathBuf>,
    /// The same as an option
    #[arg(long, value_name = PATH_OR_ID, conflicts_with = "checkpoint")]
    model: Option<PathBuf>,
    /// The model's config.json [default: the one beside the weights, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read config.json as that of this family, whatever its model_type, such as llama [default: its model_type]
    #[arg(long, value_name = "FAMILY")]
    like: Option<String>,
    /// Print one JSON object per layer, one per line [default: a table]
    #[arg(long)]
    json: bool,
    /// Also read the weights, and name the tensors with NaN or infinities [default: only headers are read]
    #[arg(long)]
    check: bool,
}

impl Command for Inspect {
    fn run(self) -> Result<()> {
        let checkpoint = open(self.checkpoint.or(self.model).as_deref().unwrap_or(Path::new("")))?;
        let beside = checkpoint.path().map(|path| path.with_file_name("config.json"));
        let config = self.config.clone().or_else(|| beside.filter(|path| path.symlink_metadata().is_ok()));
        let json: Option<Value> = match &config {
            Some(path) => Some(read_json(path)?),
            None => checkpoint.config()?,
        };
        let model = json.as_ref().map(|json| ModelConfig::new(json).with_like(self.like.as_deref()));
        let layers = checkpoint.attention_layers(model);
        let mut out = print::stdout();
        if self.json {
            for layer in &layers {
                print::json(&mut out, layer)?;
            }
        } else {
            print(&mut out, &layers, json.is_some())?;
        }
        out.flush()?;
        let mut noted = HashSet::new();
        for (layer, note) in layers.iter().filter_map(|layer| Some((layer, layer.note?))) {
            if noted.insert(note) {
                print::note(format_args!("{}: {note}", layer.prefix.escape_debug()));
            }
        }
        let beside = config.as_deref().or(checkpoint.path());
        if let (Some(path), Some(json)) = (beside, &json)
            && let Some(found) = missing_layers(&checkpoint, &layers, json)
        {
            print::note(format_args!("{}", about(path, &found)));
        }
        if self.check { check(&checkpoint, &layers) } else { Ok(()) }
    }
}

/// Reads the weights of all layers, and says whether they are finite.
fn check(checkpoint: &Checkpoint, layers: &[LayerInfo]) -> Result<()> {
    let (mut damaged, mut read) = (Vec::new(), HashSet::new());
    for LayerInfo { prefix, .. } in layers {
        // A layer inside another one, by its prefix, has been read with it.
        let mut outer = prefix.match_indices('.').map(|(end, _)| &prefix[..end]).chain([""]);
        if !outer.any(|outer| read.contains(outer)) {
            damaged.extend(checkpoint.non_finite(prefix)?);
            read.insert(prefix.as_str());
        }
    }
    ensure!(damaged.is_empty(), format!("NaN or infinities in {}", damaged.join(", ").escape_debug()).into());
    let unread: Vec<&LayerInfo> = layers.iter().filter(|layer| layer.problem.is_some()).collect();
    match unread.first() {
        None => print::to_stderr(format_args!("every weight is finite")),
        Some(LayerInfo { prefix, problem, .. }) => {
            let (all, prefix) = (layers.len(), prefix.escape_debug());
            let problem = problem.as_deref().unwrap_or_default();
            print::note(format_args!(
                "{} of {all} layers cannot be loaded, and are not checked in full, the first because of this: \
                 {prefix}: {problem}",
                unread.len()
            ));
        }
    }
    Ok(())
}

/// The keys of config.json that count layers, by the families that write them.
const COUNTS: [&str; 4] = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"];

/// A note if config.json counts more layers than the checkpoint has.
fn missing_layers(checkpoint: &Checkpoint, layers: &[LayerInfo], json: &Value) -> Option<String> {
    // Layers of ALBERT share their weights.
    if json.get("num_hidden_groups").is_some() {
        return None;
    }
    let (key, stated) = COUNTS.iter().find_map(|key| Some((key, json.get(key)?.as_u64()?)))?;
    // Where the numbers of a stack of layers stand: `encoder.layer` of `encoder.layer.0.attention`.
    let stack = |layer: &'_ LayerInfo| -> Option<String> {
        let parts: Vec<&str> = layer.prefix.split('.').collect();
        let number = parts.iter().position(|part| part.parse::<u64>().is_ok())?;
        Some(parts[..number].join("."))
    };
    let stacks: BTreeSet<String> = layers.iter().filter_map(stack).collect();
    let count = |stack: &String| {
        let start = if stack.is_empty() { String::new() } else { format!("{stack}.") };
        let numbers = checkpoint.names().filter_map(|name| name.strip_prefix(&start)?.split('.').next()?.parse().ok());
        numbers.collect::<BTreeSet<u64>>().len() as u64
    };
    let (found, stack) = stacks.iter().map(|stack| (count(stack), stack)).max()?;
    let stack = stack.escape_debug();
    (found < stated).then(|| format!("`{key}` is {stated}, but the checkpoint has {found} layers below `{stack}`"))
}

/// Prints one line per layer.
fn print(out: &mut impl Write, layers: &[LayerInfo], with_config: bool) -> Result<()> {
    if layers.is_empty() {
        return Ok(writeln!(out, "no attention layer of a known layout")?);
    }
    let parameters: usize = layers.iter().map(|layer| layer.parameters).sum();
    writeln!(out, "{} attention layers, {parameters} parameters", layers.len())?;
    // Prefixes come from the file, and must not control the terminal.
    let shown = |layer: &LayerInfo| layer.prefix.escape_debug().to_string();
    let width = layers.iter().map(|layer| shown(layer).chars().count()).max().unwrap_or(0);
    for layer in layers {
        let number = |n: Option<usize>| n.map_or("?".to_string(), |n| n.to_string());
        let LayerInfo { layout, dtype, parameters, .. } = layer;
        write!(out, "{:<width$}  {layout}  {dtype}  {parameters} parameters", shown(layer))?;
        if with_config {
            let (h, h_kv, d) = (layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim);
            write!(out, "  {} heads of {} elements", number(h), number(d))?;
            if h != h_kv {
                write!(out, ", {} key-value heads", number(h_kv))?;
            }
            let text = |t: &Option<String>| t.clone().unwrap_or_else(|| "?".to_string());
            write!(out, "  position {}  mask {}", text(&layer.position), text(&layer.mask))?;
        }
        match &layer.problem {
            Some(problem) => writeln!(out, "  ({problem})")?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

//! Lists the attention layers of a checkpoint from its headers alone, without reading the weights.

use std::collections::HashSet;
use std::path::PathBuf;

use super::shared::program::Command;
use super::shared::{Result, read};
use candle_attention::checkpoint::{Checkpoint, LayerInfo, ModelConfig};
use clap::Parser;

/// Lists the attention layers of a checkpoint: prefix, layout, heads, dtype, parameters, positions, mask.
///
/// Example: inspect all-MiniLM-L6-v2
#[derive(Parser)]
#[command(name = "inspect", verbatim_doc_comment)]
pub struct Inspect {
    /// A model folder, a .safetensors file, or a .safetensors.index.json
    checkpoint: PathBuf,
    /// The model's config.json [default: the one beside the weights, if it exists]
    #[arg(long)]
    config: Option<PathBuf>,
    /// Read config.json as that of this family, whatever its model_type, such as llama
    #[arg(long)]
    like: Option<String>,
    /// Print one JSON object per layer, one per line
    #[arg(long)]
    json: bool,
    /// Also read the weights, and name the tensors with NaN or infinities
    #[arg(long)]
    check: bool,
}

impl Command for Inspect {
    fn run(self) -> Result<()> {
        inspect(&self)
    }
}

fn inspect(arguments: &Inspect) -> Result<()> {
    let checkpoint = Checkpoint::open(&arguments.checkpoint)?;
    let beside = checkpoint.path().map(|path| path.with_file_name("config.json"));
    let config = arguments.config.clone().or_else(|| beside.filter(|path| path.symlink_metadata().is_ok()));
    let json = config.map(|path| read::json(&path)).transpose()?;
    let config = json.as_ref().map(|json| ModelConfig::new(json).with_like(arguments.like.as_deref()));
    let layers = checkpoint.attention_layers(config);
    if arguments.json {
        for layer in &layers {
            println!("{}", ascii(&serde_json::to_string(layer)?));
        }
    } else {
        print(&layers, json.is_some());
    }
    if arguments.check {
        let (mut damaged, mut read) = (Vec::new(), HashSet::new());
        for LayerInfo { prefix, .. } in &layers {
            // A layer inside another one, by its prefix, has been read with it.
            let mut outer = prefix.match_indices('.').map(|(end, _)| &prefix[..end]).chain([""]);
            if !outer.any(|outer| read.contains(outer)) {
                damaged.extend(checkpoint.non_finite(prefix)?);
                read.insert(prefix.as_str());
            }
        }
        if !damaged.is_empty() {
            return Err(format!("NaN or infinities in {}", damaged.join(", ").escape_debug()).into());
        }
        eprintln!("every weight is finite");
    }
    Ok(())
}

/// JSON with escapes in place of what is not ASCII: a name must not control the terminal.
fn ascii(json: &str) -> String {
    let mut units = [0; 2];
    let mut escaped =
        |c: char| c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    json.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c.to_string() } else { escaped(c) }).collect()
}

/// Prints one line per layer.
fn print(layers: &[LayerInfo], with_config: bool) {
    if layers.is_empty() {
        println!("no attention layer of a known layout");
        return;
    }
    let parameters: usize = layers.iter().map(|layer| layer.parameters).sum();
    println!("{} attention layers, {parameters} parameters", layers.len());
    // Prefixes come from the file, and must not control the terminal.
    let shown = |layer: &LayerInfo| layer.prefix.escape_debug().to_string();
    let width = layers.iter().map(|layer| shown(layer).chars().count()).max().unwrap_or(0);
    for layer in layers {
        let number = |n: Option<usize>| n.map_or("?".to_string(), |n| n.to_string());
        let LayerInfo { layout, dtype, parameters, .. } = layer;
        print!("{:<width$}  {layout}  {dtype}  {parameters} parameters", shown(layer));
        if with_config {
            let (h, h_kv, d) = (layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim);
            print!("  heads {} of {}", number(h), number(d));
            if h != h_kv {
                print!(", {} key-value heads", number(h_kv));
            }
            let text = |t: &Option<String>| t.clone().unwrap_or_else(|| "?".to_string());
            print!("  position {}  mask {}", text(&layer.position), text(&layer.mask));
        }
        match &layer.problem {
            Some(problem) => println!("  ({problem})"),
            None => println!(),
        }
    }
}

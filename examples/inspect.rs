//! Lists the attention layers of a checkpoint from its headers, without reading its weights.

mod shared;

use std::path::PathBuf;
use std::process::ExitCode;

use candle_attention::checkpoint::{Checkpoint, LayerInfo};
use clap::Parser;
use shared::Result;

/// Lists the attention layers of a checkpoint: prefix, layout, heads, dtype, parameters, positions, mask.
///
/// Example: inspect all-MiniLM-L6-v2
#[derive(Parser)]
#[command(name = "inspect", verbatim_doc_comment)]
struct Arguments {
    /// A model folder, a .safetensors file, or a .safetensors.index.json
    checkpoint: PathBuf,
    /// The model's config.json; by default the one beside the weights, if there is one
    #[arg(long)]
    config: Option<PathBuf>,
    /// Print one JSON object a layer and line
    #[arg(long)]
    json: bool,
    /// Read the weights too, and name tensors with NaN or infinities
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    shared::run(|| inspect(&arguments))
}

fn inspect(arguments: &Arguments) -> Result<()> {
    let checkpoint = Checkpoint::open(&arguments.checkpoint)?;
    let beside = checkpoint.path().with_file_name("config.json");
    let config = arguments.config.clone().or_else(|| beside.exists().then_some(beside));
    let json = config.map(|path| {
        let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|e| named(&e))?;
        serde_json::from_str::<serde_json::Value>(&text).map_err(|e| named(&e))
    });
    let json = json.transpose()?;
    let layers = checkpoint.attention_layers(json.as_ref());
    if arguments.json {
        for layer in &layers {
            println!("{}", serde_json::to_string(layer)?);
        }
    } else {
        print(&layers, json.is_some());
    }
    if arguments.check {
        let mut damaged = Vec::new();
        for layer in &layers {
            damaged.extend(checkpoint.non_finite(&layer.prefix)?);
        }
        match damaged.is_empty() {
            true => eprintln!("every weight is finite"),
            false => return Err(format!("NaN or infinities in {}", damaged.join(", ")).into()),
        }
    }
    Ok(())
}

/// A line a layer, like neighbours together.
fn print(layers: &[LayerInfo], with_config: bool) {
    if layers.is_empty() {
        println!("no attention layer of a known layout");
        return;
    }
    let parameters: usize = layers.iter().map(|layer| layer.parameters).sum();
    println!("{} attention layers, {parameters} parameters", layers.len());
    let width = layers.iter().map(|layer| layer.prefix.chars().count()).max().unwrap_or(0);
    for layer in layers {
        let number = |n: Option<usize>| n.map_or("?".to_string(), |n| n.to_string());
        let LayerInfo { prefix, layout, dtype, parameters, .. } = layer;
        print!("{prefix:<width$}  {layout}  {dtype}  {parameters} parameters");
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

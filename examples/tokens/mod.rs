//! What the examples that compose a whole model share: rows of token ids on the command line, config.json, training.

pub mod chat;
mod config;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use candle_attention::io::{write_file, write_tensors};
use candle_attention_cli::shared::output::{Kind, Output, check_folder, check_new_folder};
use candle_attention_cli::shared::{Result, about, print, read};
use candle_core::{Device, Tensor};
use candle_nn::{Embedding, Linear, VarBuilder, VarMap};
pub use config::Config;
use serde_json::Value;

/// A model and the rows of token ids that it gets.
#[derive(clap::Args)]
// clap names the group of arguments after the type, and so the one of the program that has them.
#[group(skip)]
pub struct Arguments {
    /// The folder of the model: config.json and model.safetensors or its shards
    model: PathBuf,
    /// The number of ids to generate for each row
    #[arg(long, default_value_t = 16)]
    count: usize,
    /// Rows of token ids, of any lengths: ids with commas between them
    #[arg(required = true, value_parser = row)]
    rows: Vec<Row>,
}

/// A type of its own: clap takes a `Vec` for an option that is repeated.
#[derive(Clone)]
struct Row(Vec<u32>);

fn row(text: &str) -> std::result::Result<Row, String> {
    let id = |id: &str| id.trim().parse().map_err(|_| format!("`{id}` is not a token id"));
    text.split(',').map(id).collect::<std::result::Result<_, _>>().map(Row)
}

impl Arguments {
    /// Prints the ids that `generate` makes of the folder, the rows and the number of ids.
    pub fn print(self, generate: impl FnOnce(PathBuf, Vec<Vec<u32>>, usize) -> Result<Vec<Vec<u32>>>) -> Result<()> {
        let mut out = print::stdout();
        for row in generate(self.model, self.rows.into_iter().map(|row| row.0).collect(), self.count)? {
            writeln!(out, "{}", row.iter().map(u32::to_string).collect::<Vec<_>>().join(","))?;
        }
        Ok(out.flush()?)
    }
}

/// A text to train on, and where the model goes.
#[derive(clap::Args)]
pub struct Training {
    /// The text; its last tenth is kept for the evaluation
    pub text: PathBuf,
    /// The folder to write: a new or an empty one, or one with a model of the same sizes that this program wrote
    pub output: PathBuf,
    /// The number of steps, of 8 pieces of text each
    #[arg(long, default_value_t = 200)]
    pub steps: usize,
    /// Also write `ids` and the `logits` of the written model to this safetensors file, to compare with transformers
    /// [default: not written]
    #[arg(long)]
    pub logits: Option<PathBuf>,
    /// Replace any file at --logits [default: a file that this program did not write is an error]
    #[arg(long, requires = "logits")]
    pub force: bool,
}

/// Checks that every row has ids, and each of them is in the vocabulary.
pub fn check_ids(rows: &[Vec<u32>], config: &Config) -> Result<()> {
    let vocab_size = config.size("vocab_size")?;
    for (number, row) in (1..).zip(rows) {
        if let Some(id) = row.iter().find(|id| **id as usize >= vocab_size) {
            let expected = format!("less than {vocab_size}, the vocab_size of {}", config.path().display());
            return Err(format!("row {number}: id {id}, expected {expected}").into());
        }
    }
    Ok(())
}

/// The head that scores the vocabulary: the model's own, or its token embeddings.
pub fn lm_head(embeddings: &Embedding, vb: &VarBuilder) -> Result<Linear> {
    let tied = embeddings.embeddings();
    let own = vb.contains_tensor("lm_head.weight");
    Ok(Linear::new(if own { vb.get(tied.dims(), "lm_head.weight")? } else { tied.clone() }, None))
}

/// A copy of the tensor as it is now, which tracks no gradient.
pub fn frozen(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.detach().force_contiguous()?)
}

/// A layer with copies of its weights as they are now.
pub fn frozen_linear(layer: &Linear) -> Result<Linear> {
    Ok(Linear::new(frozen(layer.weight())?, layer.bias().map(frozen).transpose()?))
}

/// Tensors by name.
pub type Tensors = HashMap<String, Tensor>;

/// Copies of all variables as they are now, by name.
pub fn copies(variables: &VarMap) -> Result<Tensors> {
    let variables = variables.data().lock().map_err(|_| "a thread has failed")?;
    variables.iter().map(|(name, variable)| Ok((name.clone(), frozen(variable)?))).collect()
}

/// Checks before the training that the model can be written to this folder: there is none, it is empty, or it holds a
/// model of this configuration.
pub fn check_output(folder: &Path, config: &Value) -> Result<()> {
    let Ok(metadata) = folder.metadata() else { return check_new_folder(folder) };
    if !metadata.is_dir() {
        return Err(about(folder, "is a file, expected a folder").into());
    }
    let stated = folder.join("config.json");
    let is_empty = std::fs::read_dir(folder).map_err(|error| about(folder, &error))?.next().is_none();
    if !is_empty && (!stated.exists() || candle_attention::io::read_json::<serde_json::Value>(&stated)? != *config) {
        return Err(about(folder, "holds other files: remove it, or write to another folder").into());
    }
    check_folder(folder, folder)
}

/// The bytes of a text but for its last tenth, and that tenth.
pub fn read_text(path: &Path) -> Result<[Vec<u8>; 2]> {
    let mut train = read::text(path)?.into_bytes();
    let held_out = train.split_off(train.len() - train.len() / 10);
    Ok([train, held_out])
}

/// `rows` pieces of `s + 1` bytes `(rows, s + 1)`, in equal distances over the text; other ones in each step.
pub fn pieces(text: &[u8], rows: usize, s: usize, step: usize) -> Result<Tensor> {
    let too_short = || format!("a part of the text has {} bytes, expected more than {s}", text.len());
    let starts = text.len().checked_sub(s).filter(|starts| *starts > 0).ok_or_else(too_short)?;
    let piece = |row: usize| &text[(step * 7919 + row * starts / rows) % starts..][..s + 1];
    let ids: Vec<u32> = (0..rows).flat_map(piece).map(|&byte| u32::from(byte)).collect();
    Ok(Tensor::from_vec(ids, (rows, s + 1), &Device::Cpu)?)
}

/// Writes config.json and model.safetensors, as transformers reads them. Each file is replaced as a whole; two models
/// must not mix, so another model's folder is refused.
pub fn save_model(folder: &Path, config: &Value, tensors: Tensors) -> Result<()> {
    check_output(folder, config)?;
    std::fs::create_dir_all(folder).map_err(|error| about(folder, &error))?;
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    write_tensors(&folder.join("model.safetensors"), tensors, metadata)?;
    // Last: without it nothing loads the folder.
    Ok(write_file(&folder.join("config.json"), serde_json::to_string_pretty(config)?)?)
}

/// The file for the logits, checked before the training.
pub fn logits_output(path: Option<&Path>, force: bool) -> Result<Option<Output>> {
    path.map(|path| Output::new(path, Kind::Tensors("candle-attention logits 1"), force)).transpose()
}

/// Writes ids `(b, s)`, without the last of each row, and what `logits` makes of them.
pub fn save_logits(output: &Output, ids: &Tensor, logits: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
    let ids = ids.narrow(1, 0, ids.dim(1)? - 1)?.contiguous()?;
    output.write_tensors(HashMap::from([("logits".into(), logits(&ids)?), ("ids".into(), ids)]))
}

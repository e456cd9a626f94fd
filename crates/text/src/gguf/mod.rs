//! A GGUF file as the folder of a model: the small files that its metadata stands for.
//!
//! Everything above this room reads a `config.json`, a `tokenizer.json` and `modules.json`; so a GGUF file becomes a
//! folder in memory that holds these.

mod merges;
mod tokenizer;

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::is_present;
use candle_attention::{Error, Result};
use serde_json::{Value, json};

/// The end of the names of GGUF files.
pub(crate) const EXTENSION: &str = "gguf";

/// The dense layers that a file may hold after pooling, and their modules in sentence-transformers.
pub(crate) const DENSE: [(&str, &str); 2] = [("dense_2.weight", "2_Dense"), ("dense_3.weight", "3_Dense")];

/// Whether a model is all in a GGUF file: the path is one, or a folder that holds one and has neither a `config.json`
/// nor a list of modules.
pub(crate) fn is_alone(path: &Path) -> Result<bool> {
    let is_gguf = |path: &Path| path.extension().is_some_and(|extension| extension == EXTENSION);
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(false) };
    if !metadata.is_dir() {
        return Ok(is_gguf(path));
    }
    for name in ["config.json", "modules.json", "adapter_config.json"] {
        if is_present(&path.join(name))? {
            return Ok(false);
        }
    }
    let entries = std::fs::read_dir(path).map_err(|e| Error::io(path, e))?;
    Ok(entries.into_iter().flatten().any(|entry| is_gguf(&entry.path())))
}

/// Refuses a model that is all in a GGUF file, for what is done with other ones only.
pub(crate) fn refuse(path: &Path, what: &str) -> Result<()> {
    match is_alone(path)? {
        true => Err(Error::file(path, format!("is GGUF, expected a folder with safetensors: {what}"))),
        false => Ok(()),
    }
}

/// The small files of the model folder that a GGUF file stands for, by their names; `None` for another checkpoint.
///
/// # Errors
/// If the architecture, the tokenizer or the pooling is not known, or a key of the metadata is missing or has another
/// type. The error holds the path.
pub(crate) fn files_of(checkpoint: &Checkpoint) -> Result<Option<BTreeMap<String, Vec<u8>>>> {
    let (Some(metadata), Some(config)) = (checkpoint.gguf(), checkpoint.config()?) else { return Ok(None) };
    let path = || checkpoint.path().unwrap_or(Path::new("<bytes>")).to_path_buf();
    let files = || {
        let architecture = metadata.architecture()?;
        let tokenizer = tokenizer::of(metadata, config["vocab_size"].as_u64().unwrap_or(0) as usize)?;
        let length = metadata.count(&format!("{architecture}.context_length"))?;
        let is_causal = ["qwen3", "llama"].contains(&architecture)
            && metadata.flag(&format!("{architecture}.attention.causal"))?.unwrap_or(true);
        let pooling = pooling(metadata.count(&format!("{architecture}.pooling_type"))?, is_causal)?;
        let mut files = vec![
            ("config.json".to_string(), config),
            ("tokenizer.json".to_string(), tokenizer.json),
            ("tokenizer_config.json".to_string(), with_length(tokenizer.config, length)),
            ("1_Pooling/config.json".to_string(), json!({"pooling_mode": pooling})),
        ];
        let mut modules = vec![("Transformer", ""), ("Pooling", "1_Pooling")];
        for (tensor, folder) in DENSE {
            if checkpoint.contains(tensor) {
                let shape = checkpoint.tensor_info(tensor)?.1;
                let &[outputs, inputs] = shape else {
                    let found = format!("has shape {shape:?}");
                    return Err(Error::Tensor { name: tensor.to_string(), found, expected: "a matrix".to_string() });
                };
                let dense = json!({
                    "in_features": inputs,
                    "out_features": outputs,
                    "bias": false,
                    "activation_function": "torch.nn.modules.linear.Identity",
                });
                files.push((format!("{folder}/config.json"), dense));
                modules.push(("Dense", folder));
            }
        }
        modules.push(("Normalize", "4_Normalize"));
        let modules = modules.iter().enumerate().map(
            |(i, (kind, path))| json!({"idx": i, "name": i.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}")}),
        );
        files.push(("modules.json".to_string(), modules.collect()));
        Ok(files)
    };
    let files = files().map_err(|e: Error| Error::file(path(), e))?;
    let text = |(name, json): (String, Value)| (name, json.to_string().into_bytes());
    Ok(Some(files.into_iter().map(text).collect()))
}

fn with_length(mut config: Value, length: Option<usize>) -> Value {
    if let Some(length) = length {
        config["model_max_length"] = length.into();
    }
    config
}

/// The pooling mode by llama.cpp's number for it; where there is none, the one of a folder without modules.
fn pooling(number: Option<usize>, is_causal: bool) -> Result<&'static str> {
    let what = "metadata `pooling_type`";
    match number {
        None if is_causal => Ok("lasttoken"),
        None | Some(1) => Ok("mean"),
        Some(2) => Ok("cls"),
        Some(3) => Ok("lasttoken"),
        Some(4) => Err(Error::value(what, "4 (rank: a reranker)", "1 (mean), 2 (first token) or 3 (last token)")),
        Some(other) => Err(Error::value(what, other, "1 (mean), 2 (first token) or 3 (last token)")),
    }
}

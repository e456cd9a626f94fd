//! A GGUF file as the folder of a model: the small files that its metadata stands for.
//!
//! Everything above this room reads a `config.json`, a `tokenizer.json` and `modules.json`; so a GGUF file becomes a
//! folder in memory that holds these.

pub(crate) mod head;
mod merges;
mod tokenizer;

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::checkpoint::{Checkpoint, GgufMetadata};
use candle_attention::io::is_present;
use candle_attention::{Error, Result};
use serde_json::{Value, json};

use crate::gguf::head::{Head, SCORE, classifier_pooling};
use crate::gguf::tokenizer::Usage;

pub(crate) use head::{check_classifier, check_embeds};
pub(crate) use tokenizer::MAX_VALUES;

/// The file of a model's chat template.
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";

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
    if is_alone(path)? {
        Err(Error::file(path, format!("is GGUF, expected a folder with safetensors: {what}")))
    } else {
        Ok(())
    }
}

/// The small files of a model folder, by their names, and its weights.
pub(crate) type Folder = (BTreeMap<String, Vec<u8>>, Checkpoint);

/// The model folder that a GGUF file stands for; `None` for another checkpoint.
///
/// # Errors
/// If the architecture, the tokenizer or the pooling is not known, or a key of the metadata is missing or has another
/// type. The error holds the path.
pub(crate) fn folder_of(checkpoint: &Checkpoint) -> Result<Option<Folder>> {
    let Some(metadata) = checkpoint.gguf() else { return Ok(None) };
    let Some(config) = checkpoint.config()? else { return Ok(None) };
    let path = || checkpoint.path().unwrap_or(Path::new("<bytes>")).to_path_buf();
    read_folder(checkpoint, metadata, config).map(Some).map_err(|e| Error::file(path(), e))
}

fn read_folder(checkpoint: &Checkpoint, metadata: &GgufMetadata, mut config: Value) -> Result<Folder> {
    let rows = config["vocab_size"].as_u64().unwrap_or(0) as usize;
    let tokenizer = tokenizer::read(metadata, rows, usage(metadata)?)?;
    let length = metadata.count(&format!("{}.context_length", metadata.architecture()?))?;
    let head = Head::read(checkpoint, metadata)?;
    let mut files = vec![
        ("tokenizer.json".to_string(), tokenizer.json),
        ("tokenizer_config.json".to_string(), with_length(tokenizer.config, length)),
    ];
    if let Some(head) = &head {
        head.configure(&mut config, metadata)?;
    }
    files.push(("config.json".to_string(), config));
    let pooling = pooling(pooling_type(metadata)?, is_causal(metadata)?)?;
    let is_reranker = is_reranker(checkpoint, metadata)?;
    if !is_reranker {
        files.extend(modules(checkpoint, pooling)?);
    }
    let text = |(name, json): (String, Value)| (name, json.to_string().into_bytes());
    let mut small: BTreeMap<_, _> = files.into_iter().map(text).collect();
    // Without modules, an encoder would read all texts through it.
    if let Some(template) = metadata.text("tokenizer.chat_template")?.filter(|_| !is_reranker) {
        small.insert(CHAT_TEMPLATE.to_string(), template.as_bytes().to_vec());
    }
    let weights = match head {
        Some(Head::Answers(template)) => {
            small.insert(CHAT_TEMPLATE.to_string(), template.into_bytes());
            checkpoint.clone()
        }
        _ => checkpoint.rename(|name| if name == head::ANSWERS { SCORE } else { name }.to_string())?,
    };
    Ok((small, weights))
}

/// `modules.json`, and the files of the modules behind the transformer.
fn modules(checkpoint: &Checkpoint, pooling: &str) -> Result<Vec<(String, Value)>> {
    let mut files = vec![("1_Pooling/config.json".to_string(), json!({"pooling_mode": pooling}))];
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
}

/// Notes for the user of a model in a GGUF file that lacks something its numbers depend on; none for other checkpoints.
///
/// # Errors
/// A key of the metadata has another type.
pub fn gguf_notes(checkpoint: &Checkpoint) -> Result<Vec<String>> {
    let Some(metadata) = checkpoint.gguf() else { return Ok(Vec::new()) };
    let (usage, head) = (usage(metadata)?, Head::read(checkpoint, metadata)?);
    let reads_last = match pooling_type(metadata)? {
        None => is_causal(metadata)?,
        Some(RANK) => !usage.is_encoder && matches!(head, Some(Head::Classifier)),
        Some(_) => usage.pools_last,
    };
    let ends = metadata.get("tokenizer.ggml.add_eos_token").is_some() || usage.adds_end(metadata)?;
    let mut notes = Vec::new();
    match metadata.architecture()? {
        "gemma-embedding" if !checkpoint.contains(DENSE[0].0) => notes.push(
            "lacks the two dense layers of EmbeddingGemma, so that its embeddings are not those of the model"
                .to_string(),
        ),
        "modern-bert" if matches!(head, Some(Head::Classifier)) && classifier_pooling(metadata)?.is_none() => notes
            .push(
                "does not state `classifier.pooling_type`: its head reads the mean of all tokens, as in llama.cpp"
                    .to_string(),
            ),
        _ if reads_last && !ends => notes.push(
            "does not state `add_eos_token`: the last token of a text is read, and no end token is added".to_string(),
        ),
        _ => {}
    }
    Ok(notes)
}

/// llama.cpp's number for the pooling of rerankers.
const RANK: usize = 4;

/// The number of the pooling, if the file states it.
fn pooling_type(metadata: &GgufMetadata) -> Result<Option<usize>> {
    metadata.count(&format!("{}.pooling_type", metadata.architecture()?))
}

/// Whether a file scores pairs and has no embeddings.
fn is_reranker(checkpoint: &Checkpoint, metadata: &GgufMetadata) -> Result<bool> {
    let answers = || Ok(matches!(Head::read(checkpoint, metadata)?, Some(Head::Answers(_))));
    if pooling_type(metadata)? == Some(RANK) { Ok(true) } else { answers() }
}

/// The architectures that are decoders.
const DECODERS: [&str; 2] = ["qwen3", "llama"];

fn is_causal(metadata: &GgufMetadata) -> Result<bool> {
    let architecture = metadata.architecture()?;
    let stated = metadata.flag(&format!("{architecture}.attention.causal"))?;
    Ok(DECODERS.contains(&architecture) && stated.unwrap_or(true))
}

fn usage(metadata: &GgufMetadata) -> Result<Usage> {
    let architecture = metadata.architecture()?;
    Ok(Usage {
        is_encoder: !DECODERS.contains(&architecture),
        pools_last: pooling_type(metadata)? == Some(3),
        has_one_separator: architecture == "modern-bert",
    })
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
        // Of a reranker, which has none.
        Some(RANK) => Ok("mean"),
        Some(other) => Err(Error::value(what, other, "1 (mean), 2 (first token), 3 (last token) or 4 (rank)")),
    }
}

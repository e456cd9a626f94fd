//! Writing a model folder with the files of transformers and sentence-transformers.

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::{create_folder, is_present, read_limited, write_file, write_new_folder, write_tensors};
use candle_attention::{Error, Result};
use candle_core::Tensor;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use crate::hash::Fingerprint;
use crate::train::config::TrainConfig;
use crate::train::vocabulary::to_json;

const CONFIG: &str = "config.json";
const POOLING: &str = "1_Pooling";
const WEIGHTS: &str = "model.safetensors";

/// Name of the run's mark in the metadata of the weights.
const MARK: &str = "candle_attention_run";

/// The files of a model beside its weights, by their names.
pub(super) type SmallFiles = Vec<(&'static str, Vec<u8>)>;

/// The configurations and the tokenizer of a sentence encoder. A module comes before the list that names it.
pub(super) fn small_files(config: &TrainConfig, tokenizer: &Tokenizer) -> Result<SmallFiles> {
    let mut small = vec![("tokenizer.json", to_json(tokenizer)?.into_bytes())];
    for (name, value) in files(config) {
        let text = serde_json::to_string_pretty(&value).map_err(|e| Error::file(name, e))?;
        small.push((name, (text + "\n").into_bytes()));
    }
    Ok(small)
}

/// What identifies a run in the models that it writes: its configuration without the number of steps, which a run may
/// be prolonged by, and the fingerprint `key` of its texts and its teacher.
pub(super) fn mark(config: &TrainConfig, key: &str) -> Result<String> {
    let config = TrainConfig { steps: 0, warmup_steps: None, ..config.clone() };
    let config = serde_json::to_string(&config).map_err(|e| Error::file(CONFIG, e))?;
    Ok([config.as_bytes(), key.as_bytes()].into_iter().collect::<Fingerprint>().hex())
}

/// Checks that the run of a mark may write to `folder`: there is nothing, a folder with hidden files alone, such as
/// what a killed writer left, or a model of this run.
pub(super) fn check_folder(folder: &Path, mark: &str) -> Result<()> {
    if !is_present(folder)? {
        return Ok(());
    }
    let wrong = |reason: &str| Err(Error::file(folder, reason));
    match std::fs::metadata(folder) {
        Err(_) => return wrong("is a link that leads nowhere, expected a folder"),
        Ok(metadata) if !metadata.is_dir() => return wrong("is a file, expected a folder"),
        Ok(_) => {}
    }
    let weights = folder.join(WEIGHTS);
    let found = Checkpoint::open(&weights).ok().and_then(|weights| weights.metadata().get(MARK).cloned());
    match found {
        Some(found) if found == mark => Ok(()),
        Some(_) => wrong(
            "holds the model of another run, with other settings, texts or teacher: remove the folder, or write to \
             another one",
        ),
        None => {
            for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
                let name = entry.map_err(|e| Error::io(folder, e))?.file_name();
                if !name.to_string_lossy().starts_with('.') {
                    return wrong(
                        "is a folder that this run did not make: its weights lack the mark of a run, as do those that \
                         earlier versions wrote; remove the folder, or write to another one",
                    );
                }
            }
            Ok(())
        }
    }
}

/// Checks also that the model of this run in `folder`, if there is one, differs in its weights alone: another version
/// of this crate may write other files.
///
/// Files can be replaced only one by one. Of two different models, a kill between two files would leave a mixture that
/// may even load.
pub(super) fn check_writable(folder: &Path, mark: &str, small: &SmallFiles) -> Result<()> {
    check_folder(folder, mark)?;
    for (name, bytes) in small {
        let path = folder.join(name);
        let limit = bytes.len() as u64;
        if is_present(&path)? && read_limited(&path, limit).ok().as_ref() != Some(bytes) {
            let reason = "belongs to another model: remove its folder, or write to another folder";
            return Err(Error::file(path, reason));
        }
    }
    Ok(())
}

/// Writes a sentence encoder to `folder`: a new folder, or new weights in a folder that is empty or holds the same
/// model.
pub(super) fn write_folder(
    folder: &Path,
    mark: String,
    small: &SmallFiles,
    weights: BTreeMap<String, Tensor>,
) -> Result<()> {
    check_writable(folder, &mark, small)?;
    let metadata = [("format", "pt".to_string()), (MARK, mark)].map(|(name, value)| (name.to_string(), value)).into();
    let fill = |folder: &Path| {
        // The mark comes first, so that the run may go on after a kill. Without a configuration nothing loads a folder
        // that is not complete, so it comes last.
        write_tensors(&folder.join(WEIGHTS), weights, metadata)?;
        create_folder(&folder.join(POOLING))?;
        let write = |(name, bytes): &(&str, Vec<u8>)| {
            let path = folder.join(name);
            if is_present(&path)? { Ok(()) } else { write_file(&path, bytes) }
        };
        small.iter().filter(|(name, _)| *name != CONFIG).try_for_each(write)?;
        small.iter().filter(|(name, _)| *name == CONFIG).try_for_each(write)
    };
    if is_present(folder)? {
        return fill(folder);
    }
    create_folder(folder.parent().unwrap_or(Path::new("")))?;
    write_new_folder(folder, fill)
}

/// The names and contents of the JSON files.
fn files(config: &TrainConfig) -> [(&'static str, Value); 6] {
    let module = |i: usize, path: &str, class: &str| {
        let class = format!("sentence_transformers.models.{class}");
        json!({ "idx": i, "name": i.to_string(), "path": path, "type": class })
    };
    let longest = config.max_position_embeddings;
    [
        (CONFIG, config.json()),
        (
            "tokenizer_config.json",
            json!({
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": true,
                "model_max_length": longest,
                "pad_token": "[PAD]",
                "unk_token": "[UNK]",
                "cls_token": "[CLS]",
                "sep_token": "[SEP]",
                "mask_token": "[MASK]",
            }),
        ),
        ("sentence_bert_config.json", json!({ "max_seq_length": longest, "do_lower_case": false })),
        (
            "1_Pooling/config.json",
            json!({ "word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": true }),
        ),
        (
            "modules.json",
            json!([
                module(0, "", "Transformer"),
                module(1, "1_Pooling", "Pooling"),
                module(2, "2_Normalize", "Normalize"),
            ]),
        ),
        ("config_sentence_transformers.json", json!({ "prompts": {}, "similarity_fn_name": "cosine" })),
    ]
}

//! Writing a model folder with the files of transformers and sentence-transformers.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_attention::io::{create_folder, write_file, write_new_folder, write_tensors};
use candle_attention::{Error, Result};
use candle_core::Tensor;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use crate::config::TrainConfig;
use crate::vocabulary::tokenizer_error;

/// Writes a sentence encoder to a new folder.
pub(super) fn write_folder(
    folder: &Path,
    config: &TrainConfig,
    tokenizer: &Tokenizer,
    weights: BTreeMap<String, Tensor>,
) -> Result<()> {
    create_folder(folder.parent().unwrap_or(Path::new("")))?;
    write_new_folder(folder, |folder| {
        let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
        write_tensors(&folder.join("model.safetensors"), weights, metadata)?;
        create_folder(&folder.join("1_Pooling"))?;
        write_file(&folder.join("tokenizer.json"), serde_json::to_string(tokenizer).map_err(tokenizer_error)?)?;
        for (name, value) in files(config) {
            let path = folder.join(name);
            let text = serde_json::to_string_pretty(&value).map_err(|e| Error::file(&path, e))?;
            write_file(&path, text + "\n")?;
        }
        Ok(())
    })
}

/// The names and contents of the JSON files.
fn files(config: &TrainConfig) -> [(&'static str, Value); 6] {
    let module = |i: usize, path: &str, class: &str| {
        let class = format!("sentence_transformers.models.{class}");
        json!({ "idx": i, "name": i.to_string(), "path": path, "type": class })
    };
    let longest = config.max_position_embeddings;
    [
        ("config.json", config.json()),
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

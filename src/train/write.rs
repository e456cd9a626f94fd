//! Writing a model folder with the files of transformers and sentence-transformers.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::Tensor;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use crate::error::{Error, Result};
use crate::io::{create_folder, write_atomic, write_bytes, write_tensors};
use crate::train::config::TrainConfig;
use crate::train::vocabulary::to_json;

/// Writes the configurations, the tokenizer and the weights of a sentence encoder to `folder`.
pub(super) fn write_folder(
    folder: &Path,
    config: &TrainConfig,
    tokenizer: &Tokenizer,
    weights: BTreeMap<String, Tensor>,
) -> Result<()> {
    create_folder(&folder.join("1_Pooling"))?;
    for (name, value) in files(config) {
        let path = folder.join(name);
        let text = serde_json::to_string_pretty(&value).map_err(|e| Error::file(&path, e))?;
        write_bytes(&path, format!("{text}\n").as_bytes())?;
    }
    write_bytes(&folder.join("tokenizer.json"), to_json(tokenizer)?.as_bytes())?;
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let path = folder.join("model.safetensors");
    write_atomic(&path, |part| write_tensors(part, &path, weights, metadata))
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
        (
            "modules.json",
            json!([
                module(0, "", "Transformer"),
                module(1, "1_Pooling", "Pooling"),
                module(2, "2_Normalize", "Normalize"),
            ]),
        ),
        ("sentence_bert_config.json", json!({ "max_seq_length": longest, "do_lower_case": false })),
        (
            "1_Pooling/config.json",
            json!({ "word_embedding_dimension": config.hidden_size, "pooling_mode_mean_tokens": true }),
        ),
        ("config_sentence_transformers.json", json!({ "prompts": {}, "similarity_fn_name": "cosine" })),
    ]
}

//! Folders of small text encoders.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

use crate::file::Entry;
use crate::folder::Folder;
use crate::json::{damage, file_of};
use crate::rarely;
use crate::repository;
use crate::templates::{entries_of, list};

/// A published text encoder, with one or two tiny layers.
pub struct Model {
    pub name: String,
    pub config: Value,
    pub entries: Vec<Entry>,
}

/// All of `tests/fixtures/encoders`.
pub static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let read = |path: &std::path::PathBuf| Model {
        name: path.file_name().expect("a name").to_string_lossy().into_owned(),
        config: serde_json::from_slice(&std::fs::read(path.join("config.json")).expect("a file")).expect("JSON"),
        entries: entries_of(&std::fs::read(path.join("model.safetensors")).expect("a file")),
    };
    list(&repository("tests/fixtures/encoders")).iter().map(read).collect()
});

/// A tokenizer whose ids every model of [`MODELS`] has.
pub static TOKENIZER: LazyLock<Value> = LazyLock::new(|| {
    let words = "[PAD] [UNK] [CLS] [SEP] [MASK] a b the . 1 ##a ##b ##e é";
    let vocab: serde_json::Map<String, Value> =
        words.split(' ').enumerate().map(|(id, word)| (word.to_string(), json!(id))).collect();
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].into_iter().enumerate();
    let added = special.map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    });
    let token = |id: &str, kind: usize| json!({"SpecialToken": {"id": id, "type_id": kind}});
    let sequence = |id: &str, kind: usize| json!({"Sequence": {"id": id, "type_id": kind}});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token("[CLS]", 0), sequence("A", 0), token("[SEP]", 0)],
            "pair": [token("[CLS]", 0), sequence("A", 0), token("[SEP]", 0), sequence("B", 1), token("[SEP]", 1)],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab},
    })
});

/// Keys of the small files of a folder.
const KEYS: &[&str] = &[
    "activation_fn",
    "activation_function",
    "bias",
    "content",
    "default_prompt_name",
    "do_lower_case",
    "idx",
    "in_features",
    "include_prompt",
    "mask_token",
    "max_seq_length",
    "model_input_names",
    "model_max_length",
    "name",
    "out_features",
    "path",
    "pooling_mode",
    "pooling_mode_cls_token",
    "pooling_mode_lasttoken",
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_mean_tokens",
    "pooling_mode_weightedmean_tokens",
    "prompts",
    "query",
    "type",
    "use_residual",
    "word_embedding_dimension",
];

const WORDS: &[&str] = &[
    "",
    ".",
    "..",
    "/",
    "1_Pooling",
    "2_Dense",
    "3_Normalize",
    "a/../..",
    "cls",
    "lasttoken",
    "max",
    "mean",
    "mean_sqrt_len_tokens",
    "query",
    "token_type_ids",
    "x.Dense",
    "x.Dropout",
    "x.GELU",
    "x.Identity",
    "x.LayerNorm",
    "x.Normalize",
    "x.Pooling",
    "x.Sigmoid",
    "x.Tanh",
    "x.Transformer",
    "[MASK]",
    "weightedmean",
];

/// Writes a JSON file, mostly undamaged.
fn write(u: &mut Unstructured, folder: &Folder, file: &str, mut json: Value) -> Result<()> {
    let count = if rarely(u, 4)? { u.int_in_range(1..=3)? } else { 0 };
    damage(u, &mut json, count, KEYS, WORDS)?;
    folder.write(file, file_of(u, &json)?.as_bytes());
    Ok(())
}

/// Writes the files beside the weights, the configuration and the tokenizer: which modules run, and settings.
pub fn write_settings(u: &mut Unstructured, folder: &Folder, width: usize) -> Result<()> {
    if u.arbitrary()? {
        let pooling = match u.int_in_range(0..=2)? {
            0 => json!({"word_embedding_dimension": width, "pooling_mode_mean_tokens": true}),
            1 => json!({"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true, "include_prompt": false}),
            _ => json!({"pooling_mode": ["mean", "weightedmean", "lasttoken", "mean_sqrt_len_tokens"]}),
        };
        write(u, folder, "1_Pooling/config.json", pooling)?;
        let module = |path: &str, kind: &str| json!({"idx": 0, "name": "0", "path": path, "type": format!("x.{kind}")});
        let mut modules = vec![module("", "Transformer"), module("1_Pooling", "Pooling")];
        if rarely(u, 4)? {
            let (out, inputs) = (3, width * if rarely(u, 2)? { 1 } else { 2 });
            let dense = json!({"in_features": inputs, "out_features": out, "bias": true,
                               "activation_function": "x.Tanh"});
            write(u, folder, "2_Dense/config.json", dense)?;
            let tensor = |name: &str, shape: Vec<usize>| Entry {
                name: name.to_string(),
                dtype: "F32".to_string(),
                shape,
                data: None,
                offsets: None,
            };
            let mut entries = vec![tensor("linear.bias", vec![out]), tensor("linear.weight", vec![out, inputs])];
            if rarely(u, 8)? {
                crate::file::damage(u, &mut entries)?;
            }
            if let Some((header, data)) = crate::file::header(&entries, 1 << 16) {
                let file = crate::file::safetensors(&header, &data, header.len() as u64);
                folder.write("2_Dense/model.safetensors", &file);
            }
            modules.push(module("2_Dense", "Dense"));
        }
        if u.arbitrary()? {
            modules.push(module("3_Normalize", "Normalize"));
        }
        write(u, folder, "modules.json", Value::Array(modules))?;
    }
    if rarely(u, 4)? {
        let prompts = json!({"prompts": {"query": "the a", "document": ""}, "default_prompt_name": "query"});
        write(u, folder, "config_sentence_transformers.json", prompts)?;
    }
    if rarely(u, 4)? {
        write(u, folder, "sentence_bert_config.json", json!({"max_seq_length": 8, "do_lower_case": true}))?;
    }
    if rarely(u, 4)? {
        let tokenizer = json!({"model_max_length": 8, "mask_token": {"content": "[MASK]"},
                               "model_input_names": ["input_ids", "token_type_ids"]});
        write(u, folder, "tokenizer_config.json", tokenizer)?;
    }
    Ok(())
}

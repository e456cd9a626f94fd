//! Tests of text encoders, without a network and without a published model: against golden values of the libraries that
//! own the formulas, and with invalid input.

mod adapters;
mod bge_m3;
mod browser;
mod buckets;
#[allow(dead_code, unused_imports, reason = "the suites of all packages share it")]
#[path = "../../../../tests/common/mod.rs"]
mod common;
mod embedded;
mod encoder;
mod encoders;
mod gguf_heads;
mod gguf_models;
mod heads;
mod hostile_folders;
mod hostile_tokenizers;
mod jina;
mod library;
mod minilm;
mod model_names;
#[allow(dead_code, reason = "two suites share it")]
#[path = "../../../../tests/common/models.rs"]
mod models;
mod multi_vector;
mod ordinary_files;
mod own_encoders;
mod published_quantized;
mod quality;
mod quantized;
mod rerankers;
mod search;
mod sentence_models;
mod sentence_modules;
mod sentence_outputs;
mod soak;
mod sparse;
mod task_heads;
mod token_classifier;
mod visualize;
mod visualize_page;
mod visualize_tokens;
mod windows;

//! Tests of the whole crate, without a network and without a model: against golden values of the libraries that own the
//! formulas, against a naive reference in f64, and with invalid input. `tests/golden` holds the scripts that made the
//! golden values.

mod absurd;
mod adapters;
mod attend_program;
mod bge_m3;
mod browser;
mod buckets;
mod cache_edits;
mod cache_programs;
mod cached_rotation;
mod caches;
mod checkpoints;
#[cfg(feature = "cli")]
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod compose;
mod cross_cache;
mod debug;
mod distances;
mod embedded;
mod empty;
mod encoder;
mod encoders;
mod examples;
mod explicit_positions;
mod families;
mod family_keys;
mod fixtures;
mod frozen;
mod gradients;
#[cfg(feature = "cli")]
mod head_programs;
mod heads;
mod hidden;
mod hostile;
mod hostile_folders;
mod hostile_headers;
mod hostile_sizes;
mod hostile_tokenizers;
#[cfg(feature = "hub")]
mod hub;
mod inspect;
mod inspect_program;
mod jina;
#[cfg(unix)]
mod kills;
mod layer;
mod layouts;
mod locks;
mod lora;
mod lora_tasks;
mod lora_training;
mod manifest;
mod masks;
mod memory;
mod minilm;
mod model_types;
mod multi_vector;
mod norms;
mod part;
mod plans;
mod positions;
mod programs;
mod prune_program;
mod quality;
mod ragged;
mod rerankers;
mod resume;
mod retrieval_programs;
mod right_or_refused;
mod search;
mod seeds;
mod sentence_models;
mod sentence_modules;
mod sentence_outputs;
mod sizes;
mod soak;
mod sources;
mod sparse;
mod task_heads;
mod token_classifier;
mod train;
mod train_arguments;
mod train_folders;
#[cfg(unix)]
mod train_process;
mod train_program;
mod visualize;
mod visualize_page;
mod visualize_tokens;
mod writing;

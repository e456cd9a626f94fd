//! Tests of the layer, without a network and without a model: against golden values of the libraries that own the
//! formulas, against a naive reference in f64, and with invalid input. `tests/golden` holds the scripts that made the
//! golden values.

mod absurd;
mod cache_batches;
mod cache_edits;
mod cache_layers;
mod cache_programs;
mod cached_rotation;
mod caches;
mod call_inputs;
mod checkpoints;
#[allow(dead_code, unused_imports, reason = "the suites of all packages share it")]
#[path = "../common/mod.rs"]
mod common;
mod compose;
mod config_kinds;
mod cross_cache;
mod distances;
mod empty;
mod everywhere;
mod explicit_positions;
mod families;
mod family_keys;
mod family_layouts;
mod files;
mod first_tries;
mod fixtures;
mod frozen;
mod gates;
mod gguf;
mod gradients;
mod hidden;
mod hostile;
mod hostile_headers;
mod hostile_sizes;
mod inspect;
#[cfg(unix)]
mod kills;
mod latent;
mod layer;
mod layouts;
mod locks;
mod lora_names;
mod manifest;
mod mask_functions;
mod masks;
mod masks_in_dtypes;
mod masks_or;
mod messages;
mod model_types;
mod norms;
mod part;
mod plans;
mod positions;
mod projections;
mod quantized;
mod ragged;
mod relative_tables;
mod right_or_refused;
mod rows;
mod seeds;
mod sizes;
mod steps;
mod training;
mod writing;

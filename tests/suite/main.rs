//! Everything that needs no network and no model: against goldens of the systems that own the formulas, against a
//! naive f64 reference, and with bad input. `tests/golden` holds the scripts that made the goldens.

mod caches;
mod checkpoints;
mod common;
mod compose;
mod embedded;
mod encoder;
mod encoders;
mod examples;
mod families;
mod gradients;
mod heads;
mod hostile;
mod hub;
mod inspect;
mod jina;
mod layer;
mod layouts;
mod masks;
mod minilm;
mod naive;
mod positions;
mod ragged;
mod search;
mod seeds;
mod task_heads;
mod train;
mod train_program;
mod visualize;
mod visualize_page;
mod writing;

//! Values and gradients, on every path.

mod all_calls;
mod compressed_keys;
mod concurrent_writes;
mod differential;
mod empty_inputs;
mod explicit_positions;
mod frozen;
mod gates;
mod global_tokens;
pub mod gradients;
mod latent;
mod library;
mod limits;
mod norms;
mod positions;
mod ragged;
mod relative_tables;
mod span_convolution;
mod steps;
mod training;
mod value_convolution;

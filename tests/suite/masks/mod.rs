//! Masks of every kind.

mod distances;
mod dtypes;
mod every_kind;
mod functions;
mod hidden_keys;
mod or_masks;
mod score_functions;

//! The encoder itself: token ids to hidden states.

pub(crate) mod block;
pub(crate) mod config;
mod config_keys;
mod embedding_gate;
pub(crate) mod embeddings;
pub(crate) mod feed_forward;
pub(crate) mod hidden_states;
pub(crate) mod mixer;
pub(crate) mod mlp;
pub(crate) mod options;
pub(crate) mod places;
pub(crate) mod pooling;
mod ragged;
mod row_stream;
mod share;
mod short_convolution;
mod stream;
pub(crate) mod table;
mod tensor_stream;
pub(crate) mod text_model;

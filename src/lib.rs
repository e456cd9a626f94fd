#![doc = include_str!("../README.md")]

mod attention;
pub mod checkpoint;
mod config;
#[cfg(feature = "encoder")]
pub mod encoder;
mod error;
mod families;
mod io;
mod kernels;
mod macros;
mod mask;
mod ops;
pub mod position;
pub mod pruning;
pub mod sdpa;
#[cfg(feature = "encoder")]
pub mod search;
mod tensor;
#[cfg(feature = "train")]
pub mod train;
#[cfg(feature = "visualize")]
pub mod visualize;
pub mod weights;

pub use attention::kv_cache::KvCache;
pub use attention::{AttentionInputs, AttentionOptions, MultiHeadAttention, Observe, Observed, TopKeys};
pub use config::{AttentionConfig, NormKind, NormOver, ProjectionBias, QkNorm, Scoring};
pub use error::{Error, Result};
pub use mask::{AttentionMask, PaddedIds};
pub use position::Position;
pub use sdpa::{Attended, Backend, Plan};

#![doc = include_str!("../README.md")]

mod attention;
mod cache;
pub mod checkpoint;
mod config;
#[cfg(feature = "encoder")]
pub mod encoder;
mod error;
mod gpu;
pub mod heads;
mod kernels;
mod mask;
mod part;
pub mod position;
mod projection;
mod ragged;
pub mod sdpa;
#[cfg(feature = "encoder")]
pub mod search;
mod select;
mod setters;
mod slice;
mod spread;
mod steps;
#[cfg(feature = "train")]
pub mod train;
#[cfg(feature = "visualize")]
pub mod visualize;

pub use attention::{AttentionInputs, AttentionOptions, MultiHeadAttention, Observe, Observed, TopKeys};
pub use cache::KvCache;
pub use config::{AttentionConfig, NormKind, NormOver, ProjectionBias, QkNorm, Scoring};
pub use error::{Error, Result};
pub use mask::AttentionMask;
pub use position::Position;
pub use ragged::PaddedIds;
pub use sdpa::{Attended, Backend, Plan};

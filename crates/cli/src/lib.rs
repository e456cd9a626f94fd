//! The commands of the program `candle-attention`, one file or folder per command.
//!
//! The program (`main.rs`) has all of them. The examples of the repository run `encode`, `attend` and `inspect` as
//! programs of their own, so that they compile without the feature `program`.
#![cfg_attr(not(feature = "program"), allow(dead_code, reason = "three commands use a part"))]

pub mod attend;
#[cfg(feature = "program")]
pub mod attention_map;
#[cfg(feature = "program")]
pub mod bench;
#[cfg(feature = "program")]
pub mod classify;
#[cfg(feature = "program")]
pub mod completions;
pub mod encode;
#[cfg(feature = "program")]
pub mod fill_mask;
pub mod inspect;
#[cfg(feature = "program")]
pub mod man;
#[cfg(feature = "program")]
pub mod prune;
#[cfg(feature = "program")]
pub mod quantize;
#[cfg(feature = "program")]
pub mod rerank;
#[cfg(feature = "program")]
pub mod search;
pub mod shared;
#[cfg(feature = "program")]
pub mod train;

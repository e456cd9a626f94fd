//! Attention weights as pictures: a heat map for the terminal, a grid of heads as SVG, an interactive HTML page with
//! all layers and heads.
//!
//! [`AttentionMaps`] takes the attention weights of any layer, as tensors, and labels for its queries and keys; the
//! encoders of `candle-attention-text` make one from a text (its feature `visualize`). The pictures are written as
//! text by hand: a plotting library draws a heat map with one rectangle per cell, ten times the size of the paths used
//! here.
//!
//! ```
//! use candle_attention_visualize::{AttentionMaps, TerminalColor};
//! use candle_core::{Device, Tensor};
//! // (heads, queries, keys)
//! let weights = Tensor::new(&[[[0.9f32, 0.1], [0.25, 0.75]]], &Device::Cpu)?;
//! let maps = AttentionMaps::new(&["le", "chat"], &["the", "cat"]).with_layer(0, &weights)?;
//! println!("{}", maps.terminal(0, 0, TerminalColor::None, 80)?);
//! let (svg, page) = (maps.svg(0)?, maps.html()?);
//! # assert!(svg.starts_with("<svg") && page.starts_with("<!doctype html>"));
//! # Ok::<(), candle_attention::Error>(())
//! ```

mod html;
mod maps;
mod svg;
mod terminal;
mod tokens;
mod view;

pub use maps::AttentionMaps;
pub use terminal::TerminalColor;
pub use tokens::TokenMarks;

/// Compiles the code block of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

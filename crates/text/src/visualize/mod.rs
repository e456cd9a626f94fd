//! Attention weights as pictures: a heat map for the terminal, a grid of heads as SVG, an interactive HTML page with
//! all layers and heads.
//!
//! [`AttentionMaps`] takes the attention weights of any layer and labels for its queries and keys;
//! [`SentenceEncoder::attention`](crate::SentenceEncoder::attention) makes one from a text. The room depends on tensors
//! alone, not on the encoder, so that maps of any model can be drawn. The pictures are written as text by hand: a
//! plotting library draws a heat map with one rectangle per cell, ten times the size of the paths used here.
//!
//! ```
//! use candle_attention_text::visualize::{AttentionMaps, TerminalColor};
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

pub use maps::AttentionMaps;
pub use terminal::TerminalColor;
pub use tokens::TokenMarks;

//! Multi-head attention for [Candle](candle_core): one layer for every kind of mask, position scheme and published
//! checkpoint layout, and a text encoder built on it.
//!
//! [`MultiHeadAttention`] is a [`candle_nn::Module`]. It is trainable, runs on CPUs, NVIDIA GPUs and Apple GPUs, loads its
//! weights from safetensors files in any known layout, and reports which kernel a call runs on.
//!
//! # A new layer
//!
//! ```
//! use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//!
//! let parameters = VarMap::new();
//! let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
//! let attention = MultiHeadAttention::new(&AttentionConfig::new(64, 4), vb)?; // hidden_size, num_attention_heads
//!
//! let xs = Tensor::randn(0f32, 1., (2, 5, 64), &Device::Cpu)?; // (b, s, hidden_size)
//! assert_eq!(attention.forward(&xs)?.dims(), [2, 5, 64]);
//!
//! let mask = AttentionMask::causal().and(AttentionMask::lengths(&[5, 3]));
//! assert_eq!(attention.attend(&xs, &xs, &xs, &mask)?.dims(), [2, 5, 64]); // queries, keys, values, mask
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A layer of a checkpoint
//!
//! ```no_run
//! use candle_attention::{AttentionConfig, MultiHeadAttention, checkpoint::Checkpoint};
//! use candle_core::{DType, Device};
//!
//! let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?; // a folder, a .safetensors file, or a sharded index
//! let layer = checkpoint.at("encoder.layer.0.attention", DType::F32, &Device::Cpu);
//! let attention = MultiHeadAttention::load(&AttentionConfig::new(384, 12), layer)?;
//! # Ok::<(), candle_attention::Error>(())
//! ```
//!
//! # Modules
//!
//! | Module | Contents |
//! |---|---|
//! | crate root | [`MultiHeadAttention`], [`AttentionConfig`], [`AttentionMask`], [`Position`], [`KvCache`], [`CrossCache`], [`Plan`], [`Error`]; [`metal_device`] |
//! | [`position`] | rotary embeddings, ALiBi, relative biases, disentangled attention |
//! | [`sdpa`] | scaled dot-product attention on query, key and value tensors, without projections |
//! | [`weights`] | the weights of a layer as plain tensors |
//! | [`checkpoint`] | opening, inspecting, reading and writing safetensors checkpoints |
//! | [`io`] | writing files and folders that appear complete or not at all, bounded reads |
//! | [`norm`] | layer and RMS norms that train, unlike candle's |
//! | [`pruning`] | head importance and head pruning |
#![cfg_attr(
    feature = "encoder",
    doc = "| [`encoder`] | sentence embeddings, classifiers, cross-encoders, masked-token prediction |",
    doc = "| [`lora`] | LoRA adapters: reading, merging, training |",
    doc = "| [`search`] | semantic search over the lines of a text |"
)]
#![cfg_attr(feature = "train", doc = "| [`train`] | training a small encoder |")]
#![cfg_attr(feature = "visualize", doc = "| [`visualize`] | attention maps for the terminal, as SVG and as HTML |")]
//!
//! candle itself is re-exported as `candle_core` and `candle_nn`, in the versions whose tensors this crate takes.
//!
//! # Cargo features
//!
//! | Feature | Default | Adds |
//! |---|---|---|
//! | `encoder` | yes | the modules `encoder` and `search` |
//! | `train` | yes | the module `train` |
//! | `visualize` | yes | the module `visualize` |
//! | `x86-v4` | yes | AVX-512 for candle's own matrix products, in the whole program |
//! | `hub` | no | downloads from the Hugging Face Hub |
//! | `png` | no | attention maps as PNG |
//! | `cuda`, `cudnn`, `flash-attn` | no | NVIDIA GPUs |
//! | `metal` | no | Apple GPUs |
//! | `accelerate`, `mkl` | no | CPU products by Apple's or Intel's library |
//!
//! With `default-features = false` the layer, its checkpoints and pruning remain, which depend only on candle and on crates
//! that candle itself needs, and candle is compiled as it would be without this crate. A feature changes speed or reach, never the result that a call defines.
//!
//! # Errors
//!
//! Every function returns [`Result`] with this crate's [`Error`], which can be matched. `forward` of candle's traits returns
//! [`candle_core::Result`]; [`Error::find_in`] finds this crate's error in it.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attention;
pub mod checkpoint;
mod config;
#[cfg(feature = "encoder")]
pub mod encoder;
mod error;
mod families;
pub mod io;
mod kernels;
#[cfg(feature = "encoder")]
pub mod lora;
mod macros;
mod mask;
pub mod norm;
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

pub use candle_core;
pub use candle_nn;

pub use attention::cache::{CrossCache, KvCache};
pub use attention::{AttentionInputs, AttentionOptions, AttentionStats, MultiHeadAttention, ObserveOptions, TopKeys};
pub use config::{AttentionConfig, NormKind, NormOver, ProjectionBias, QkNorm, Scoring};
pub use error::{Error, Result};
pub use mask::{AttentionMask, PaddedIds};
pub use position::Position;
pub use sdpa::{AttentionOutput, Backend, Plan};
pub use tensor::metal_device;

/// Compiles the code blocks of the README and of `docs/` as doctests.
#[cfg(all(doctest, feature = "encoder"))]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("../docs/decoding.md")]
    struct Decoding;
    #[doc = include_str!("../docs/encoder.md")]
    struct Encoder;
    #[doc = include_str!("../docs/train-your-own-block.md")]
    struct TrainYourOwnBlock;
    #[doc = include_str!("../docs/pruning-and-attention-maps.md")]
    struct PruningAndAttentionMaps;
}

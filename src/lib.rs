//! Multi-head attention for [Candle](candle_core): one layer for every kind of mask, position scheme and published
//! checkpoint layout.
//!
//! [`MultiHeadAttention`] is a [`candle_nn::Module`]. It is trainable, loads its weights from safetensors files in any
//! known layout, returns its attention weights, and reports which kernel a call runs on. It has kernels for CPUs and
//! NVIDIA GPUs, and uses candle's on Apple GPUs; this version has run on CPUs only.
//!
//! # A new layer
//!
//! ```
//! use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, MultiHeadAttention};
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//!
//! let parameters = VarMap::new();
//! let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
//! let config = AttentionConfig::new(64, 4); // hidden_size, num_attention_heads
//! let attention = MultiHeadAttention::new(&config, vb)?;
//!
//! let xs = Tensor::randn(0f32, 1., (2, 5, 64), &Device::Cpu)?; // (b, s, hidden_size)
//! assert_eq!(attention.forward(&xs)?.dims(), [2, 5, 64]);
//!
//! let mask = AttentionMask::causal().and(AttentionMask::lengths(&[5, 3]));
//! let ys = attention.attend(&xs, &xs, &xs, &mask)?; // queries, keys, values; no mask is `None`
//! assert_eq!(ys.dims(), [2, 5, 64]);
//!
//! // The `attention_mask` of a tokenizer: 1 for a token, 0 for padding.
//! let tokens = Tensor::new(&[[1i64, 1, 1, 1, 1], [1, 1, 1, 0, 0]], &Device::Cpu)?;
//! let ys = attention.attend(&xs, &xs, &xs, &AttentionMask::keep_keys(&tokens)?)?;
//!
//! let options = AttentionOptions::default().with_return_attention_weights(true);
//! let attended = attention.attend_with(&AttentionInputs::self_attention(&xs, &mask), &options)?;
//! assert_eq!(attended.attention_weights.unwrap().dims(), [2, 4, 5, 5]); // (b, h, s_q, s_kv)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Queries, keys and values of your own
//!
//! ```
//! use candle_attention::AttentionMask;
//! use candle_attention::sdpa::{SdpaOptions, attend_bshd};
//! use candle_core::{DType, Device, Tensor};
//!
//! let q = Tensor::randn(0f32, 1., (2, 5, 8, 64), &Device::Cpu)?; // (b, s_q, h, d)
//! let (k, v) = (q.narrow(2, 0, 2)?, q.narrow(2, 2, 2)?); // (b, s_kv, h_kv, d): 4 query heads share each
//! let attended = attend_bshd(&q, &k, &v, &SdpaOptions::new(AttentionMask::causal()))?;
//! assert_eq!(attended.output.dims(), [2, 5, 8, 64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A layer of a checkpoint
//!
//! As its model runs it, with positions, mask and scale:
//!
//! ```no_run
//! use candle_attention::checkpoint::Checkpoint;
//! use candle_core::{DType, Device};
//!
//! // A folder, a .safetensors or .gguf file, or a sharded index.
//! let checkpoint = Checkpoint::open("Qwen3-0.6B")?;
//! let layer = checkpoint.attention("model.layers.0.self_attn", DType::F32, &Device::Cpu)?;
//! # Ok::<(), candle_attention::Error>(())
//! ```
//!
//! Without a `config.json`, [`MultiHeadAttention::load`] takes a configuration of yours, which then has to say what no
//! weight shows: positions, causal mask, window, scale.
//!
//! # Modules
//!
//! | Module | Contents |
//! |---|---|
//! | crate root | [`MultiHeadAttention`], [`AttentionConfig`], [`AttentionMask`], [`Position`], [`Steps`], [`KvCache`], [`CrossCache`], [`KeyValues`], [`Plan`], [`Error`]; [`metal_device`] |
//! | [`position`] | rotary embeddings, ALiBi, relative biases and keys, disentangled attention |
//! | [`sdpa`] | scaled dot-product attention on query, key and value tensors, without projections |
//! | [`weights`] | the weights of a layer as plain tensors |
//! | [`checkpoint`] | opening, inspecting, reading and writing checkpoints |
//! | [`lora`] | LoRA adapters: reading, merging, training |
//! | [`io`] | atomic writes, bounded reads, safetensors, JSON |
//! | [`norm`] | layer and RMS norms that train, unlike candle's |
//! | [`ops`] | linear layers with packed weights |
//! | [`pruning`] | head importance and head pruning |
//! | [`ragged`] | batches of sequences one after another, without padding |
//! | [`tensor`] | frozen copies of models, and elements of tensors as slices |
//!
//! `docs/calls.md` lists every way to call a layer.
//!
//! Text encoders on this layer are the crate `candle-attention-text`. The guides are in `docs/` of the repository:
//! checkpoints, caches and positions, training a block, statistics and pruning, devices, performance. candle itself is
//! re-exported as `candle_core` and `candle_nn`, in the versions whose tensors this crate takes.
//!
//! # Cargo features
//!
//! | Feature | Default | Adds |
//! |---|---|---|
//! | `checkpoints` | yes | [`checkpoint`], [`lora`] and [`io`]: published layouts, model types, few bits, adapters |
//! | `x86-v4` | yes | AVX-512 for candle's own matrix products, in the whole program |
//! | `cuda`, `cudnn`, `flash-attn`, `flash-attn-v3` | no | NVIDIA GPUs |
//! | `metal` | no | Apple GPUs |
//! | `accelerate`, `mkl` | no | CPU products by Apple's or Intel's library |
//!
//! The crate depends only on candle and on crates that candle itself needs. With `default-features = false` it is the
//! layer alone, with weights of a [`VarBuilder`](candle_nn::VarBuilder) or of tensors, and candle is compiled as it
//! would be without this crate. A feature changes speed or reach, never the result that a call defines.
//!
//! # Errors
//!
//! Every function returns [`Result`] with this crate's [`Error`], which can be matched. `forward` of candle's traits
//! returns [`candle_core::Result`]; [`Error::find_in`] finds this crate's error in it. candle and this crate have types
//! of these two names: import names, or one crate by `*`, and not both.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attention;
#[cfg(feature = "checkpoints")]
pub mod checkpoint;
mod config;
pub mod error;
#[cfg(feature = "checkpoints")]
mod families;
#[cfg(feature = "checkpoints")]
pub mod io;
mod kernels;
#[cfg(feature = "checkpoints")]
pub mod lora;
mod macros;
mod mask;
pub mod norm;
pub mod ops;
pub mod position;
pub mod pruning;
pub mod ragged;
pub mod sdpa;
#[cfg(test)]
#[path = "../crates/kernels/tests/support/mod.rs"]
mod support;
pub mod tensor;
pub mod weights;

pub use candle_core;
pub use candle_nn;

pub use attention::mechanisms::*;
pub use attention::{
    AttentionInputs, AttentionOptions, AttentionStats, CrossCache, KeyValues, KvCache, MultiHeadAttention,
    ObserveOptions, TopKeys,
};
pub use config::{
    AttentionConfig, CallInput, Factor, HeadNorm, KeyValueSource, LatentAttention, NormKind, NormOver, ProjectionBias,
    Scoring, Step, Steps,
};
pub use error::{Error, Result};
pub use mask::{AttentionMask, CallMask, PaddedIds};
pub use ops::{ComputeType, ProjectionKind, Quantization};
pub use position::Position;
pub use sdpa::{AttentionOutput, Backend, Plan};
pub use tensor::metal_device;

/// Compiles the code blocks of the README and of `docs/` as doctests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/calls.md")]
    struct Calls;
    #[doc = include_str!("../docs/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("../docs/checkpoint-formats.md")]
    struct CheckpointFormats;
    #[doc = include_str!("../docs/decoding.md")]
    struct Decoding;
    #[doc = include_str!("../docs/from-pytorch-and-candle.md")]
    struct FromPytorchAndCandle;
    #[doc = include_str!("../docs/pruning-and-attention-maps.md")]
    struct PruningAndAttentionMaps;
    #[doc = include_str!("../docs/train-your-own-block.md")]
    struct TrainYourOwnBlock;
}

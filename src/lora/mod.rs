//! LoRA adapters: low-rank changes of a model's weights, as the library PEFT saves them.
//!
//! LoRA ([Hu 2021](https://arxiv.org/abs/2106.09685)) replaces a weight `W` `(out, in)` by `W + scale · B A` with `A`
//! `(r, in)` and `B` `(out, r)`. An adapter is a folder with `adapter_config.json` and `adapter_model.safetensors`.
//!
//! [`LoraAdapter::apply`] wraps a source of weights: what is loaded from the [`AdaptedSource`] has the adapter merged,
//! be it one layer, an encoder or a model with a task head, in any layout, because a weight is changed under its name
//! in the checkpoint before anything else sees it. So a merged layer runs the same kernels as any other, and costs
//! nothing per call; what it costs is the memory of the weights that the adapter changes.
//!
//! ```no_run
//! use candle_attention::checkpoint::{Checkpoint, WeightSource};
//! use candle_attention::lora::LoraAdapter;
//! use candle_attention::{AttentionConfig, MultiHeadAttention};
//! use candle_core::{DType, Device};
//! let adapter = LoraAdapter::open("my-adapter")?;
//! let base = Checkpoint::open("bert-base-uncased")?.at("", DType::F32, &Device::Cpu);
//! let adapted = adapter.apply(base)?;
//! let source = adapted.child("bert.encoder.layer.0.attention");
//! let layer = MultiHeadAttention::load(&AttentionConfig::new(768, 12), source)?;
//! # Ok::<(), candle_attention::Error>(())
//! ```

mod adapted_source;
mod adapter;
mod config;
mod patterns;
mod places;
mod task_source;
mod tasks;
mod tokens;
mod training;

pub use adapted_source::AdaptedSource;
pub use adapter::LoraAdapter;
pub use config::{LoraBias, LoraConfig, TargetModules};
pub use task_source::TaskSource;
pub use tasks::LoraTasks;
pub use training::{FrozenSource, LoraTraining};

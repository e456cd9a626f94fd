//! Layer normalization and RMS normalization that train: candle's own `LayerNorm` and `RmsNorm` have no gradient.
//!
//! In candle 0.11 the `forward` of `candle_nn::LayerNorm` and `candle_nn::RmsNorm` runs a fused operation without a
//! backward pass. A model that uses them trains without an error, but what comes before a norm and the norm itself get
//! no gradient from it. The norms of this module have the same constructors and parameters. They run one fused kernel
//! where nothing tracks a gradient, and differentiable operations otherwise. The mean is subtracted before the squares
//! are summed, and half types are computed in f32 and rounded once.
//!
//! | Norm | Formula | Source |
//! |---|---|---|
//! | [`LayerNorm`] | `(x - mean) / sqrt(var + eps) · weight + bias` | [Ba 2016](https://arxiv.org/abs/1607.06450) |
//! | [`RmsNorm`] | `x / sqrt(mean(x²) + eps) · weight` | [Zhang 2019](https://arxiv.org/abs/1910.07467) |
//! | [`RmsNorm`] with an offset | `x / sqrt(mean(x²) + eps) · (1 + weight)` | Gemma |
//!
//! ```
//! use candle_attention::norm;
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//!
//! let parameters = VarMap::new();
//! let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
//! let norm = norm::layer_norm(4, 1e-5, vb.pp("ln_1"))?; // `ln_1.weight` of ones, `ln_1.bias` of zeros
//!
//! let xs = Tensor::new(&[[1f32, 2.0, 3.0, 6.0]], &Device::Cpu)?;
//! let ys = norm.forward(&xs)?;
//! let gradients = ys.sqr()?.sum_all()?.backward()?;
//! assert!(gradients.get(norm.weight()).is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod any_norm;
mod layer_norm;
mod rms_norm;

pub use any_norm::Norm;
pub use layer_norm::{LayerNorm, layer_norm, layer_norm_no_bias};
pub use rms_norm::{RmsNorm, rms_norm, rms_norm_offset};

//! Layer normalization and RMS normalization that train: candle's own `LayerNorm` and `RmsNorm` have no gradient.
//!
//! In candle 0.11 the `forward` of `candle_nn::LayerNorm` and `candle_nn::RmsNorm` runs a fused operation without a
//! backward pass. A model that uses them trains without an error, but what comes before a norm and the norm itself get
//! no gradient from it. The functions of this module take what candle's of the same names take, and make a [`Norm`]. On
//! CPUs and Apple GPUs it runs one kernel where nothing tracks a gradient, and differentiable operations otherwise. The
//! mean is subtracted before the squares are summed, and half types are computed in f32 and rounded once.
//!
//! | Kind | Formula | Source |
//! |---|---|---|
//! | [`NormKind::Layer`] | `(x - mean) / sqrt(var + eps) · weight + bias` | [Ba 2016](https://arxiv.org/abs/1607.06450) |
//! | [`NormKind::Rms`] | `x / sqrt(mean(x²) + eps) · weight` | [Zhang 2019](https://arxiv.org/abs/1910.07467) |
//! | [`NormKind::RmsOffset`] | `x / sqrt(mean(x²) + eps) · (1 + weight)` | Gemma |
//!
//! ```
//! use candle_attention::norm;
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//!
//! let parameters = VarMap::new();
//! let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
//! // `ln_1.weight` of ones, `ln_1.bias` of zeros
//! let norm = norm::layer_norm(4, 1e-5, vb.pp("ln_1"))?;
//!
//! let xs = Tensor::new(&[[1f32, 2.0, 3.0, 6.0]], &Device::Cpu)?;
//! let ys = norm.forward(&xs)?;
//! let gradients = ys.sqr()?.sum_all()?.backward()?;
//! assert!(gradients.get(norm.weight()).is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use candle_attention_kernels::{Isa, Team};
use candle_core::{Module, Tensor};
use candle_nn::{Init, LayerNormConfig, VarBuilder};

use crate::config::{MAX_SIZE, NormKind};
use crate::ensure;
use crate::error::{Error, Result};
use crate::map_fields;
use crate::ops::NormParameters;
use crate::tensor::{MapTensors, check_float, check_shape, same_device};

/// A layer norm over `size` numbers, trainable if `vb` is backed by a `VarMap`: `weight` (ones) and `bias` (zeros),
/// both `(size)`. Takes what [`candle_nn::layer_norm()`] takes: a number is `eps`; without `affine` there is no bias,
/// and without `remove_mean` the mean is not subtracted.
///
/// # Errors
/// If `vb` holds parameters of another shape, or lacks them and cannot make new ones; if `eps` is negative or not
/// finite.
pub fn layer_norm(size: usize, config: impl Into<LayerNormConfig>, vb: VarBuilder) -> Result<Norm> {
    let LayerNormConfig { eps, remove_mean, affine } = config.into();
    Norm::init(if remove_mean { NormKind::Layer } else { NormKind::Rms }, affine, size, eps, &vb)
}

/// [`layer_norm`] without a bias.
///
/// # Errors
/// The errors of [`layer_norm`].
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<Norm> {
    Norm::init(NormKind::Layer, false, size, eps, &vb)
}

/// An RMS norm over `size` numbers, trainable if `vb` is backed by a `VarMap`: `weight` `(size)`, at first ones.
///
/// # Errors
/// The errors of [`layer_norm`].
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<Norm> {
    Norm::init(NormKind::Rms, false, size, eps, &vb)
}

/// [`rms_norm`] whose factor is `1 + weight`, as in Gemma; a new weight is zeros.
///
/// # Errors
/// The errors of [`layer_norm`].
pub fn rms_norm_offset(size: usize, eps: f64, vb: VarBuilder) -> Result<Norm> {
    Norm::init(NormKind::RmsOffset, false, size, eps, &vb)
}

/// A norm over the last dimension, whose formula is its [`NormKind`]: as `torch.nn.LayerNorm`, `torch.nn.RMSNorm` or
/// Gemma's norm.
///
/// Differentiable, unlike the `forward` of candle's norms. Half types are computed in f32 and rounded once, after the
/// weight. The parameters may have any floating dtype.
///
/// # Shapes
/// `(…, size)` → `(…, size)`, in the dtype of the input.
///
/// # Errors
/// `forward` fails if the input is not floating, has another last dimension or is on another device than the
/// parameters.
#[derive(Debug, Clone)]
pub struct Norm {
    /// `(size)`.
    weight: Tensor,
    /// `(size)`.
    bias: Option<Tensor>,
    eps: f64,
    kind: NormKind,
}

impl Norm {
    /// The norm of `weight` and `bias`, both `(size)`.
    ///
    /// # Errors
    /// If they are not floating vectors of the same length on one device, or `eps` is negative or not finite.
    pub fn new(kind: NormKind, weight: Tensor, bias: Option<Tensor>, eps: f64) -> Result<Self> {
        let name = name(kind);
        ensure!(weight.rank() == 1, Error::shape(format!("{name} weight"), weight.dims(), "(size)"));
        for (parameter, tensor) in [("weight", Some(&weight)), ("bias", bias.as_ref())] {
            let Some(tensor) = tensor else { continue };
            let parameter = format!("{name} {parameter}");
            check_float(&parameter, tensor)?;
            check_shape(&parameter, tensor, weight.dims())?;
            same_device(&parameter, tensor, &weight)?;
        }
        if !((eps as f32).is_finite() && eps >= 0.0) {
            return Err(Error::value(format!("{name} eps"), eps, "a finite number from 0"));
        }
        Ok(Self { weight, bias, eps, kind })
    }

    /// The parameters of `vb`; on a `VarMap` that lacks them new ones, with which the norm has a factor of 1.
    fn init(kind: NormKind, bias: bool, size: usize, eps: f64, vb: &VarBuilder) -> Result<Self> {
        // Candle allocates whatever size it is asked for.
        if !(1..=MAX_SIZE).contains(&size) {
            return Err(Error::value(format!("the size of {}", name(kind)), size, format!("1 to {MAX_SIZE}")));
        }
        let [weight, bias_name] = parameter_names(|name| vb.contains_tensor(name));
        let get = |name, init| vb.get_with_hints(size, name, Init::Const(init));
        let one = if kind == NormKind::RmsOffset { 0.0 } else { 1.0 };
        Self::new(kind, get(weight, one)?, bias.then(|| get(bias_name, 0.0)).transpose()?, eps)
    }

    /// The scale, `(size)`, without the offset.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The shift, `(size)`, if the norm has one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The number that is added to the variance.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// The norm as it is now, for inference: a copy of its parameters that tracks no gradient, so that the fused kernel
    /// runs. It is a snapshot and does not follow variables that are set later, as
    /// [`MultiHeadAttention::frozen`](crate::MultiHeadAttention::frozen).
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn frozen(&self) -> Result<Self> {
        self.map_tensors(&mut |tensor| Ok(tensor.detach().force_contiguous()?))
    }

    fn call(&self, xs: &Tensor) -> Result<Tensor> {
        let name = || format!("the input of {}", name(self.kind));
        if xs.dims().last() != self.weight.dims().first() {
            return Err(Error::shape(name(), xs.dims(), format!("(…, {})", self.weight.dims()[0])));
        }
        check_float(&name(), xs)?;
        same_device(&name(), xs, &self.weight)?;
        self.parameters().forward(xs)
    }

    /// Replaces the rows `xs`, on the CPU, by their norm, or by `norm(xs + residual)`.
    ///
    /// # Errors
    /// The sizes differ.
    pub fn forward_rows(&self, isa: Isa, team: Team, xs: &mut [f32], residual: Option<&[f32]>) -> Result<()> {
        self.parameters().normalize_rows(isa, team, xs, residual)
    }

    fn parameters(&self) -> NormParameters<'_> {
        let (rms, offset) = self.kind.rms_and_offset();
        NormParameters { weight: &self.weight, bias: self.bias.as_ref(), eps: self.eps, rms, offset }
    }
}

impl Module for Norm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.call(xs)?)
    }
}

map_fields!(Norm { weight, bias }..);

/// The names of weight and bias: early checkpoints call them `gamma` and `beta`.
pub(crate) fn parameter_names(contains: impl Fn(&str) -> bool) -> [&'static str; 2] {
    [("weight", "gamma"), ("bias", "beta")].map(|(name, early)| if contains(early) { early } else { name })
}

/// The name of a norm in errors.
fn name(kind: NormKind) -> &'static str {
    if kind == NormKind::Layer { "layer norm" } else { "RMS norm" }
}

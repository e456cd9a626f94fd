//! A norm of any kind, over tensors and over f32 rows.

use candle_attention_kernels::{Isa, Team};
use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use crate::checkpoint::WeightSource;
use crate::config::{MAX_SIZE, NormKind};
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::{NormParameters, PendingBias};
use crate::tensor::MapTensors;

/// A norm of any kind over the last dimension.
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
    /// A norm of these parameters.
    pub fn new(kind: NormKind, weight: Tensor, bias: Option<Tensor>, eps: f64) -> Result<Self> {
        let name = name(kind);
        if weight.rank() != 1 {
            return Err(Error::shape(format!("{name} weight"), weight.dims(), "(size)"));
        }
        for (parameter, tensor) in [("weight", Some(&weight)), ("bias", bias.as_ref())] {
            let Some(tensor) = tensor else { continue };
            if !tensor.dtype().is_float() {
                return Err(Error::dtype(format!("{name} {parameter}"), tensor.dtype(), "a floating dtype"));
            }
            if tensor.dims() != weight.dims() {
                return Err(Error::shape(format!("{name} {parameter}"), tensor.dims(), format!("{:?}", weight.dims())));
            }
            same_device(&format!("{name} {parameter}"), tensor, &weight)?;
        }
        if !((eps as f32).is_finite() && eps >= 0.0) {
            return Err(Error::value(format!("{name} eps"), eps, "a finite number from 0"));
        }
        Ok(Self { weight, bias, eps, kind })
    }

    /// Reads `weight`, and `bias` if `bias` is set. Early checkpoints call these `gamma` and `beta`.
    pub fn load(kind: NormKind, bias: bool, size: usize, eps: f64, source: &dyn WeightSource) -> Result<Self> {
        let read = |parameter: &Parameter| source.get(parameter.name_in(source), &[size]);
        Self::new(kind, read(&WEIGHT)?, bias.then(|| read(&BIAS)).transpose()?, eps)
    }

    /// The parameters of `vb`; on a `VarMap` that lacks them new ones, with which the norm has a factor of 1.
    pub fn init(kind: NormKind, bias: bool, size: usize, eps: f64, vb: &VarBuilder) -> Result<Self> {
        // Candle allocates whatever size it is asked for.
        if !(1..=MAX_SIZE).contains(&size) {
            return Err(Error::value(format!("the size of {}", name(kind)), size, format!("1 to {MAX_SIZE}")));
        }
        let get = |parameter: &Parameter, init: f64| {
            let name = parameter.name_in(vb);
            match vb.contains_tensor(name) {
                true => WeightSource::get(vb, name, &[size]),
                false => Ok(vb.get_with_hints(size, name, Init::Const(init))?),
            }
        };
        let one = if kind == NormKind::RmsOffset { 0.0 } else { 1.0 };
        Self::new(kind, get(&WEIGHT, one)?, bias.then(|| get(&BIAS, 0.0)).transpose()?, eps)
    }

    /// The scale, `(size)`.
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

    /// The norm with copies of its parameters that track no gradient.
    pub fn frozen(&self) -> Result<Self> {
        self.map_tensors(&mut |tensor| Ok(tensor.detach().force_contiguous()?))
    }

    /// `norm(xs)`.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(self.call(xs, None, false)?.1)
    }

    /// `norm(xs + branch)`.
    pub fn forward_sum(&self, xs: &Tensor, branch: PendingBias) -> Result<Tensor> {
        Ok(self.call(xs, Some(&branch), false)?.1)
    }

    /// `xs + branch` and `norm(xs + branch)`.
    pub fn sum_and_forward(&self, xs: &Tensor, branch: PendingBias) -> Result<(Tensor, Tensor)> {
        let (sum, ys) = self.call(xs, Some(&branch), true)?;
        Ok((sum.expect("`keep_sum` was set"), ys))
    }

    fn call(&self, xs: &Tensor, branch: Option<&PendingBias>, keep_sum: bool) -> Result<(Option<Tensor>, Tensor)> {
        let name = || format!("the input of {}", name(self.kind));
        if xs.dims().last() != self.weight.dims().first() {
            return Err(Error::shape(name(), xs.dims(), format!("(…, {})", self.weight.dims()[0])));
        }
        if !xs.dtype().is_float() {
            return Err(Error::dtype(name(), xs.dtype(), "a floating dtype"));
        }
        same_device(&name(), xs, &self.weight)?;
        let NormParameters { weight, bias, eps, rms, offset } = self.parameters();
        let norm = ops::Norm {
            xs,
            add: branch.map(|branch| &branch.ys),
            add_bias: branch.and_then(|branch| branch.bias.as_ref()),
            weight,
            bias,
            eps,
            rms,
            offset,
            keep_sum,
        };
        norm.forward()
    }

    /// Replaces the rows `xs` by `norm(xs + residual)`.
    pub fn forward_rows(&self, isa: Isa, team: Team, xs: &mut [f32], residual: Option<&[f32]>) -> Result<()> {
        self.parameters().normalize_rows(isa, team, xs, residual)
    }

    fn parameters(&self) -> NormParameters<'_> {
        NormParameters {
            weight: &self.weight,
            bias: self.bias.as_ref(),
            eps: self.eps,
            rms: self.kind != NormKind::Layer,
            offset: if self.kind == NormKind::RmsOffset { 1.0 } else { 0.0 },
        }
    }
}

impl MapTensors for Norm {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { weight: f(&self.weight)?, bias: self.bias.map_tensors(f)?, ..*self })
    }
}

/// A parameter by its name, and by the name that early checkpoints have.
struct Parameter {
    name: &'static str,
    early: &'static str,
}

const WEIGHT: Parameter = Parameter { name: "weight", early: "gamma" };
const BIAS: Parameter = Parameter { name: "bias", early: "beta" };

impl Parameter {
    fn name_in(&self, source: &dyn WeightSource) -> &'static str {
        if source.contains(self.early) { self.early } else { self.name }
    }
}

/// The name of a norm in errors.
fn name(kind: NormKind) -> &'static str {
    if kind == NormKind::Layer { "layer norm" } else { "RMS norm" }
}

fn same_device(name: &str, tensor: &Tensor, like: &Tensor) -> Result<()> {
    if tensor.device().same_device(like.device()) {
        return Ok(());
    }
    let [found, expected] = [tensor, like].map(|tensor| format!("{:?}", tensor.device().location()));
    Err(Error::Device { tensor: name.to_string(), found, expected })
}

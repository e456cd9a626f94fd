//! AdamW ([Loshchilov 2019](https://arxiv.org/abs/1711.05101)) with moments that can be saved; the moments of candle's
//! own AdamW are private.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};

use crate::error::Result;

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPS: f64 = 1e-8;

pub(super) struct AdamW {
    pub parameters: BTreeMap<String, Parameter>,
    weight_decay: f64,
    max_norm: f64,
}

/// A variable and the first and second moments of its gradient.
pub(super) struct Parameter {
    pub variable: Var,
    pub first: Tensor,
    pub second: Tensor,
}

impl AdamW {
    pub fn new(variables: BTreeMap<String, Var>, weight_decay: f64, max_norm: f64) -> Result<Self> {
        let parameter = |(name, variable): (String, Var)| {
            let (first, second) = (variable.zeros_like()?, variable.zeros_like()?);
            Ok((name, Parameter { variable, first, second }))
        };
        let parameters = variables.into_iter().map(parameter).collect::<Result<_>>()?;
        Ok(Self { parameters, weight_decay, max_norm })
    }

    /// Updates all variables in a step, which counts from 0, with gradients clipped to the maximum global norm; returns
    /// their norm before clipping.
    pub fn update(&mut self, gradients: &GradStore, rate: f64, step: usize) -> Result<f64> {
        let mut squares = 0.0;
        for Parameter { variable, .. } in self.parameters.values() {
            if let Some(gradient) = gradients.get(variable) {
                squares += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
            }
        }
        let norm = squares.sqrt();
        let factor = if norm > self.max_norm { self.max_norm / norm } else { 1.0 };
        let count = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let (unbias1, unbias2) = (1.0 - BETA1.powi(count), 1.0 - BETA2.powi(count));
        for Parameter { variable, first, second } in self.parameters.values_mut() {
            let Some(gradient) = gradients.get(variable) else { continue };
            let gradient = (gradient.detach() * factor)?;
            *first = ((&*first * BETA1)? + (&gradient * (1.0 - BETA1))?)?;
            *second = ((&*second * BETA2)? + (gradient.sqr()? * (1.0 - BETA2))?)?;
            let direction = (&*first / (((&*second / unbias2)?.sqrt()? + EPS)? * unbias1)?)?;
            // Only matrices decay: biases and the scales of norms are vectors.
            let decay = if variable.rank() > 1 { self.weight_decay } else { 0.0 };
            let kept = (variable.as_detached_tensor() * (1.0 - rate * decay))?;
            variable.set(&(kept - (direction * rate)?)?)?;
        }
        Ok(norm)
    }
}

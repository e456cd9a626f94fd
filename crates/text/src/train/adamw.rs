//! AdamW ([Loshchilov 2019](https://arxiv.org/abs/1711.05101)) with moments that can be saved; the moments of candle's
//! own AdamW are private.

use std::collections::BTreeMap;

use candle_attention::{Error, Result};
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};

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
    ///
    /// # Errors
    /// [`Error::Value`] if the norm or an updated number is not finite. Then no variable and no moment has changed.
    pub fn update(&mut self, gradients: &GradStore, rate: f64, step: usize) -> Result<f64> {
        let mut squares = 0.0;
        for Parameter { variable, .. } in self.parameters.values() {
            if let Some(gradient) = gradients.get(variable) {
                squares += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
            }
        }
        let norm = squares.sqrt();
        if !norm.is_finite() {
            return Err(not_finite(format!("the norm of the gradients of step {}", step + 1), norm));
        }
        let factor = if norm > self.max_norm { self.max_norm / norm } else { 1.0 };
        let count = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let (unbias1, unbias2) = (1.0 - BETA1.powi(count), 1.0 - BETA2.powi(count));
        // All of the step before any of it is kept: half a step could not be taken back, and would be saved.
        let mut updates = Vec::with_capacity(self.parameters.len());
        for (name, parameter) in &mut self.parameters {
            let Parameter { variable, first, second } = &*parameter;
            let Some(gradient) = gradients.get(variable) else { continue };
            let gradient = (gradient.detach() * factor)?;
            let first = ((first * BETA1)? + (&gradient * (1.0 - BETA1))?)?;
            let second = ((second * BETA2)? + (gradient.sqr()? * (1.0 - BETA2))?)?;
            let direction = (&first / (((&second / unbias2)?.sqrt()? + EPS)? * unbias1)?)?;
            // Only matrices decay: biases and the scales of norms are vectors.
            let decay = if variable.rank() > 1 { self.weight_decay } else { 0.0 };
            let kept = (variable.as_detached_tensor() * (1.0 - rate * decay))?;
            let updated = (kept - (direction * rate)?)?;
            for numbers in [&updated, &first, &second] {
                // 0 times a number that is not finite is NaN.
                let sum = (numbers * 0.0)?.sum_all()?.to_scalar::<f32>()?;
                if sum != 0.0 {
                    return Err(not_finite(format!("`{name}` after step {}", step + 1), sum));
                }
            }
            updates.push((parameter, updated, first, second));
        }
        for (parameter, updated, ..) in &updates {
            parameter.variable.set(updated)?;
        }
        for (parameter, _, first, second) in updates {
            (parameter.first, parameter.second) = (first, second);
        }
        Ok(norm)
    }
}

fn not_finite(what: String, found: impl ToString) -> Error {
    Error::value(what, found, "a finite number: try a smaller learning rate")
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn numbers(optimizer: &AdamW) -> Vec<Vec<f32>> {
        let of = |parameter: &Parameter| {
            [parameter.variable.as_detached_tensor(), parameter.first.clone(), parameter.second.clone()]
        };
        optimizer.parameters.values().flat_map(of).map(|tensor| tensor.to_vec1().unwrap()).collect()
    }

    /// Two variables `a` and `b`, after one step with finite gradients.
    fn stepped() -> AdamW {
        let variable = |name: &str| {
            (name.to_string(), Var::from_tensor(&Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap()).unwrap())
        };
        let mut optimizer = AdamW::new(["a", "b"].map(variable).into(), 0.01, 1.0).unwrap();
        step(&mut optimizer, 1.0, 0.1, 0).unwrap();
        optimizer
    }

    /// A step with the loss `sum(a + factor · b²)`.
    fn step(optimizer: &mut AdamW, factor: f64, rate: f64, step: usize) -> Result<f64> {
        let [a, b] = ["a", "b"].map(|name| optimizer.parameters[name].variable.as_tensor().clone());
        let loss = (a + (b.sqr()? * factor)?)?.sum_all()?;
        optimizer.update(&loss.backward()?, rate, step)
    }

    /// The variable `a`, which comes first and whose gradient is finite, does not change either.
    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let mut optimizer = stepped();
        let before = numbers(&optimizer);
        for factor in [f64::NAN, f64::INFINITY, 1e30] {
            let error = step(&mut optimizer, factor, 0.1, 1).unwrap_err().to_string();
            assert!(error.contains("the norm of the gradients of step 2 is") && error.contains("finite"), "{error}");
            assert_eq!(numbers(&optimizer), before, "{factor}");
        }
        // Finite gradients that carry the variables too far.
        let error = step(&mut optimizer, 1.0, 1e39, 1).unwrap_err().to_string();
        assert!(error.contains("`a` after step 2 is"), "{error}");
        assert_eq!(numbers(&optimizer), before);
        // The second variable alone is carried too far, after the first was computed.
        let far = Tensor::new(&[-3.4e38f32, 1.0], &Device::Cpu).unwrap();
        let kept = optimizer.parameters["b"].variable.as_detached_tensor().copy().unwrap();
        optimizer.parameters["b"].variable.set(&far).unwrap();
        let with_far = numbers(&optimizer);
        let error = step(&mut optimizer, -1e-38, 1e38, 1).unwrap_err().to_string();
        assert!(error.contains("`b` after step 2 is"), "{error}");
        assert_eq!(numbers(&optimizer), with_far);
        optimizer.parameters["b"].variable.set(&kept).unwrap();
        step(&mut optimizer, 1.0, 0.1, 1).unwrap();
        assert_ne!(numbers(&optimizer), before);
    }

    /// The paper's loop over plain numbers, with the gradient `2 x` clipped to the norm 1: only matrices decay.
    #[test]
    fn steps_are_those_of_the_paper() {
        let start = [0.5f32, -1.0, 2.0, 0.25];
        let variable = |(name, shape): (&str, Vec<usize>)| {
            let tensor = Tensor::from_slice(&start, shape, &Device::Cpu).unwrap();
            (name.to_string(), Var::from_tensor(&tensor).unwrap())
        };
        let variables = [("matrix", vec![2, 2]), ("vector", vec![4])].map(variable);
        let mut optimizer = AdamW::new(variables.clone().into(), 0.1, 1.0).unwrap();
        // Number, first and second moment, decay.
        let mut want: Vec<[f64; 4]> = [0.1, 0.0].map(|decay| start.map(|x| [f64::from(x), 0.0, 0.0, decay])).concat();
        for step in 0..4 {
            let squares = variables.each_ref().map(|(_, variable)| variable.sqr().unwrap().sum_all().unwrap());
            let gradients = (&squares[0] + &squares[1]).unwrap().backward().unwrap();
            optimizer.update(&gradients, 0.05, step).unwrap();
            let norm = want.iter().map(|[x, ..]| 4.0 * x * x).sum::<f64>().sqrt();
            let unbias = [BETA1, BETA2].map(|beta| 1.0 - beta.powi(step as i32 + 1));
            for [x, first, second, decay] in &mut want {
                let gradient = 2.0 * *x / norm.max(1.0);
                *first = BETA1 * *first + (1.0 - BETA1) * gradient;
                *second = BETA2 * *second + (1.0 - BETA2) * gradient * gradient;
                let direction = *first / unbias[0] / ((*second / unbias[1]).sqrt() + EPS);
                *x -= 0.05 * (*decay * *x + direction);
            }
        }
        let flat = |(_, variable): &(String, Var)| variable.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (got, [want, ..]) in variables.iter().flat_map(flat).zip(want) {
            assert!((f64::from(got) - want).abs() < 1e-5, "{got}, want {want}");
        }
    }
}

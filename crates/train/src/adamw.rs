//! AdamW ([Loshchilov 2019](https://arxiv.org/abs/1711.05101)) with moments that can be saved; the moments of candle's
//! own AdamW are private.

use std::collections::BTreeMap;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::{Error, Result};
use candle_core::backprop::GradStore;
use candle_core::{Device, Var};
use safetensors::Dtype;

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPS: f64 = 1e-8;
/// Decoupled weight decay of matrices; biases and norms have none.
const WEIGHT_DECAY: f64 = 0.01;
/// Gradients are clipped to this global norm.
const MAX_GRAD_NORM: f64 = 1.0;

/// The tensors that are saved of a variable: its value, and the first and second moments of its gradient.
const KINDS: [&str; 3] = ["parameters", "first_moments", "second_moments"];

pub(super) struct AdamW {
    /// Each variable by its name, with the moments of its gradient.
    states: BTreeMap<String, [Var; 3]>,
}

impl AdamW {
    pub fn new(variables: &BTreeMap<String, Var>) -> Result<Self> {
        let state = |(name, variable): (&String, &Var)| {
            let moment = || Var::from_tensor(&variable.zeros_like()?);
            Ok((name.clone(), [variable.clone(), moment()?, moment()?]))
        };
        Ok(Self { states: variables.iter().map(state).collect::<Result<_>>()? })
    }

    /// Updates all variables in a step, which counts from 0, with gradients clipped to the maximum global norm; returns
    /// their norm before clipping.
    ///
    /// # Errors
    /// [`Error::Value`] if the norm or an updated number is not finite.
    pub fn update(&self, gradients: &GradStore, rate: f64, step: usize) -> Result<f64> {
        let mut squares = 0.0;
        for gradient in self.states.values().filter_map(|[variable, ..]| gradients.get(variable)) {
            squares += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
        }
        let norm = squares.sqrt();
        if !norm.is_finite() {
            return Err(not_finite(format!("the norm of the gradients of step {}", step + 1), norm));
        }
        let factor = if norm > MAX_GRAD_NORM { MAX_GRAD_NORM / norm } else { 1.0 };
        let count = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let (unbias1, unbias2) = (1.0 - BETA1.powi(count), 1.0 - BETA2.powi(count));
        for (name, state) in &self.states {
            let Some(gradient) = gradients.get(&state[0]) else { continue };
            let gradient = (gradient.detach() * factor)?;
            let [value, first, second] = state.each_ref().map(Var::as_detached_tensor);
            let first = ((first * BETA1)? + (&gradient * (1.0 - BETA1))?)?;
            let second = ((second * BETA2)? + (gradient.sqr()? * (1.0 - BETA2))?)?;
            let direction = (&first / (((&second / unbias2)?.sqrt()? + EPS)? * unbias1)?)?;
            // Only matrices decay: biases and the scales of norms are vectors.
            let decay = if value.rank() > 1 { WEIGHT_DECAY } else { 0.0 };
            let value = ((value * (1.0 - rate * decay))? - (direction * rate)?)?;
            // 0 times a number that is not finite is NaN.
            let sum = (&value * 0.0)?.sum_all()?.to_scalar::<f32>()?;
            if sum != 0.0 {
                return Err(not_finite(format!("`{name}` after step {}", step + 1), f64::from(sum)));
            }
            for (variable, updated) in state.iter().zip([value, first, second]) {
                variable.set(&updated)?;
            }
        }
        Ok(norm)
    }

    /// All variables and moments, by their names in a saved run.
    pub fn saved(&self) -> impl Iterator<Item = (String, &Var)> {
        let named = |name: &String, kind: &str| format!("{kind}.{name}");
        self.states.iter().flat_map(move |(name, state)| KINDS.map(|kind| named(name, kind)).into_iter().zip(state))
    }

    /// Sets all variables and moments to those of a saved run.
    pub fn restore(&self, saved: &Checkpoint) -> Result<()> {
        for (name, variable) in self.saved() {
            let (dtype, shape) = saved.tensor_info(&name)?;
            if (dtype, shape) != (Dtype::F32, variable.dims()) {
                let found = format!("has dtype {dtype} and shape {shape:?}");
                return Err(Error::Tensor { name, found, expected: format!("F32 {:?}", variable.dims()) });
            }
            variable.set(&saved.tensor(&name, &Device::Cpu)?)?;
        }
        Ok(())
    }
}

fn not_finite(what: String, found: f64) -> Error {
    Error::value(what, found, "a finite number: try a smaller learning rate")
}

#[cfg(test)]
mod tests {
    use candle_core::Tensor;

    use super::*;

    /// The paper's loop over plain numbers, with the gradient `2 x` clipped to the norm 1: only matrices decay.
    #[test]
    fn steps_are_those_of_the_paper() {
        let start = [0.5f32, -1.0, 2.0, 0.25];
        let variable = |(name, shape): (&str, Vec<usize>)| {
            let tensor = Tensor::from_slice(&start, shape, &Device::Cpu).unwrap();
            (name.to_string(), Var::from_tensor(&tensor).unwrap())
        };
        let variables = [("matrix", vec![2, 2]), ("vector", vec![4])].map(variable);
        let optimizer = AdamW::new(&variables.clone().into()).unwrap();
        // Number, first and second moment, decay.
        let mut want: Vec<[f64; 4]> =
            [WEIGHT_DECAY, 0.0].map(|decay| start.map(|x| [f64::from(x), 0.0, 0.0, decay])).concat();
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
        // Finite gradients that carry the variables too far, and gradients that are not finite.
        for (factor, part) in [(1.0, "`matrix` after step 5 is"), (f64::NAN, "the norm of the gradients of step 5 is")]
        {
            let loss = (variables[0].1.sqr().unwrap().sum_all().unwrap() * factor).unwrap();
            let error = optimizer.update(&loss.backward().unwrap(), 1e39, 4).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

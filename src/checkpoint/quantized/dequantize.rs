//! From integers and scales to weights.

use super::module::{Fault, Module};
use super::{Codes, Plan};
use crate::error::Result;

/// The weight `(out, in)`: `(values - zeros) · scales + biases`, in the memory of the values.
///
/// Differences of integers are exact in f32, and so is the product if the scale has at most 16 significant bits, which
/// all scales in f16 and bf16 have.
///
/// # Errors
/// A scale or bias that is NaN or infinite. A scale of 0 where a number is not the zero point: the weight is lost, by
/// damage or by a scale that was too small for its dtype. A block of zeros with the scale 0 gives zeros.
pub(super) fn weight(module: &Module, plan: &Plan, codes: Codes) -> Result<Vec<f32>> {
    let [rows, columns] = plan.shape;
    let [_, width] = plan.grid();
    let Codes { mut values, scales, zeros, biases, groups } = codes;
    let not_finite = |what: &str, numbers: &[f32]| {
        let found = numbers.iter().position(|number| !number.is_finite()).map(|i| (i, numbers[i]));
        found.map(|(i, number)| fault(module, &format!("has the {what} {number} at {:?}", [i / width, i % width])))
    };
    let biased = biases.as_ref().and_then(|biases| not_finite("bias", biases));
    if let Some(fault) = not_finite("scale", &scales).or(biased) {
        return Err(fault.into());
    }
    for (row, values) in values.chunks_exact_mut(columns.max(1)).enumerate().take(rows) {
        let first = row / plan.block[0] * width;
        let apply = |values: &mut [f32], group: usize| -> Result<()> {
            let scale = scales[first + group];
            let zero = zeros.as_ref().map_or(0.0, |zeros| zeros[first + group]);
            let bias = biases.as_ref().map_or(0.0, |biases| biases[first + group]);
            if scale == 0.0 && values.iter().any(|value| *value != zero) {
                let place = [row / plan.block[0], group];
                return Err(fault(module, &format!("has the scale 0 at {place:?}, whose numbers are not zero")).into());
            }
            if biases.is_some() {
                values.iter_mut().for_each(|value| *value = *value * scale + bias)
            } else {
                values.iter_mut().for_each(|value| *value = (*value - zero) * scale)
            }
            Ok(())
        };
        match &groups {
            None => {
                for (group, values) in values.chunks_mut(plan.block[1]).enumerate() {
                    apply(values, group)?;
                }
            }
            Some(groups) => {
                for (value, group) in values.iter_mut().zip(groups) {
                    apply(std::slice::from_mut(value), *group)?;
                }
            }
        }
    }
    Ok(values)
}

fn fault(module: &Module, found: &str) -> Fault {
    Fault::new(module.full_name("weight"), found, "finite scales, and none of 0: the file is damaged")
}

//! What the row-wise kernels rely on. They read and write by address, so a tensor of another shape or layout would be a
//! read outside of it.

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::ops::problem::{Activated, Norm};
use crate::tensor::check_shape;

/// Checks a normalization: rows `(b, s, h, size)`, parameters of each row or of each head.
pub(super) fn norm(norm: &Norm) -> Result<()> {
    let (_, _, h, size) = norm.xs.dims4()?;
    let per_head = norm.weight.rank() == 2;
    let parameters: &[usize] = if per_head { &[h, size] } else { &[size] };
    rows("the rows to normalize", norm.xs)?;
    contiguous("the norm's weight", Some(norm.weight), parameters)?;
    contiguous("the norm's bias", norm.bias, parameters)?;
    contiguous("the residual", norm.add, norm.xs.dims())?;
    contiguous("the residual's bias", norm.add_bias, &[size])
}

/// Checks an activation of `(rows, size)`.
pub(super) fn activated(activated: &Activated) -> Result<()> {
    let (count, size) = activated.xs.dims2()?;
    rows("the rows to activate", activated.xs)?;
    if count.saturating_mul(size) > i32::MAX as usize {
        return Err(Error::shape("the rows to activate", activated.xs.dims(), "less than 2^31 elements"));
    }
    contiguous("the activation's bias", activated.bias, &[size])?;
    contiguous("the gate's bias", activated.gate_bias, &[size])?;
    let Some(gate) = activated.gate else { return Ok(()) };
    rows("the gate", gate)?;
    check_shape("the gate", gate, activated.xs.dims())
}

/// Checks a rotation of `(b, s, h, d)` by angles `(b or 1, s, 1, pairs)`.
pub(super) fn rotate(xs: &Tensor, [cos, sin]: [&Tensor; 2]) -> Result<()> {
    let (b, s, _, d) = xs.dims4()?;
    let (of, _, _, pairs) = cos.dims4()?;
    rows("the heads to rotate", xs)?;
    let sequences = if of == 1 { 1 } else { b };
    let expected = [sequences, s, 1, pairs.min(d / 2)];
    contiguous("the cosines", Some(cos), &expected)?;
    contiguous("the sines", Some(sin), &expected)
}

/// Checks that there are elements, and that those of a row are adjacent.
fn rows(name: &str, xs: &Tensor) -> Result<()> {
    let adjacent = xs.dims().last() == Some(&1) || xs.stride().last() == Some(&1);
    // A broadcast tensor may have more elements than a number can count.
    let count = xs.dims().iter().try_fold(1usize, |count, size| count.checked_mul(*size));
    if count.is_some_and(|count| count > 0) && adjacent {
        return Ok(());
    }
    let found = format!("{:?} with strides {:?}", xs.dims(), xs.stride());
    Err(Error::value(format!("the layout of {name}"), found, "rows of adjacent elements, and at least one"))
}

fn contiguous(name: &str, tensor: Option<&Tensor>, expected: &[usize]) -> Result<()> {
    let Some(tensor) = tensor else { return Ok(()) };
    check_shape(name, tensor, expected)?;
    if tensor.is_contiguous() {
        return Ok(());
    }
    Err(Error::value(
        format!("the strides of {name}"),
        format!("{:?}", tensor.stride()),
        "those of a contiguous tensor",
    ))
}

#[cfg(test)]
mod tests {
    use candle_attention_kernels::Activation;
    use candle_core::{DType, Device};

    use super::*;

    fn zeros(dims: &[usize]) -> Tensor {
        Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn angles_have_the_sequences_and_tokens_of_what_they_rotate() {
        let xs = zeros(&[4, 5, 2, 8]);
        let check = |cos: &[usize], sin: &[usize]| rotate(&xs, [&zeros(cos), &zeros(sin)]);
        check(&[4, 5, 1, 4], &[4, 5, 1, 4]).unwrap();
        check(&[1, 5, 1, 3], &[1, 5, 1, 3]).unwrap();
        for angles in [[2, 5, 1, 4], [4, 4, 1, 4], [1, 6, 1, 4], [4, 5, 2, 4], [1, 5, 1, 5]] {
            let error = check(&angles, &angles).unwrap_err().to_string();
            assert!(error.starts_with("the cosines has shape"), "{error}");
        }
        assert!(check(&[4, 5, 1, 4], &[1, 5, 1, 4]).unwrap_err().to_string().contains("the sines"));
    }

    #[test]
    fn parameters_of_norms_and_activations_have_the_size_of_a_row() {
        let (xs, good) = (zeros(&[2, 3, 4, 5]), zeros(&[5]));
        let base = Norm {
            xs: &xs,
            add: None,
            add_bias: None,
            weight: &good,
            bias: None,
            eps: 1e-5,
            rms: true,
            offset: 0.0,
            keep_sum: false,
        };
        norm(&base).unwrap();
        norm(&Norm { weight: &zeros(&[4, 5]), bias: Some(&zeros(&[4, 5])), add: Some(&xs), ..base }).unwrap();
        for weight in [vec![4], vec![6], vec![3, 5], vec![1]] {
            norm(&Norm { weight: &zeros(&weight), ..base }).unwrap_err();
        }
        let (short, other) = (zeros(&[4]), zeros(&[1, 3, 4, 5]));
        norm(&Norm { bias: Some(&short), ..base }).unwrap_err();
        norm(&Norm { add: Some(&other), ..base }).unwrap_err();
        norm(&Norm { add: Some(&xs), add_bias: Some(&short), ..base }).unwrap_err();
        let rows = zeros(&[6, 5]);
        let base = Activated { activation: Activation::Relu, xs: &rows, bias: None, gate: None, gate_bias: None };
        activated(&Activated { bias: Some(&good), gate: Some(&rows), gate_bias: Some(&good), ..base }).unwrap();
        activated(&Activated { bias: Some(&short), ..base }).unwrap_err();
        activated(&Activated { gate: Some(&zeros(&[5, 5])), ..base }).unwrap_err();
        activated(&Activated { gate: Some(&rows), gate_bias: Some(&short), ..base }).unwrap_err();
        let many = zeros(&[1, 1]).broadcast_as((1 << 20, 1 << 12)).unwrap();
        activated(&Activated { xs: &many, ..base }).unwrap_err();
    }
}

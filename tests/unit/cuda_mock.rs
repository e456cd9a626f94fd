//! A mock of the GPU kernels in plain Rust on CPU tensors, for tests of the code that decides when to call them.
//!
//! It checks the arguments and the number of calls, not the CUDA code: that runs in the tests of `kernels/cuda`.

use std::cell::Cell;

use candle_attention_kernels::Activation;
use candle_core::{Device, Tensor};

use super::check;
use crate::error::Result;
use crate::ops::problem::{Activated, Norm};

thread_local! {
    static MOCKED: Cell<bool> = const { Cell::new(false) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Runs `run` with the CPU in place of an NVIDIA GPU, and returns how many calls of kernels it made.
pub(crate) fn with_mock_device<T>(run: impl FnOnce() -> T) -> (T, usize) {
    MOCKED.set(true);
    CALLS.set(0);
    let result = run();
    MOCKED.set(false);
    (result, CALLS.get())
}

pub(crate) fn is_mocked() -> bool {
    MOCKED.get()
}

/// The elements of an input in row-major order; a kernel's first input counts as its call.
fn elements(xs: &Tensor) -> Result<Vec<f32>> {
    CALLS.set(CALLS.get() + usize::from(xs.rank() > 1));
    Ok(xs.flatten_all()?.to_vec1()?)
}

pub(crate) fn norm(norm: &Norm) -> Result<(Option<Tensor>, Tensor)> {
    check::norm(norm)?;
    let (_, _, h, size) = norm.xs.dims4()?;
    let (mut xs, mut ys) = (elements(norm.xs)?, Vec::new());
    if let Some(add) = norm.add {
        xs.iter_mut().zip(add.flatten_all()?.to_vec1::<f32>()?).for_each(|(x, y)| *x += y);
    }
    if let Some(bias) = norm.add_bias {
        let bias = bias.to_vec1::<f32>()?;
        xs.iter_mut().enumerate().for_each(|(i, x)| *x += bias[i % size]);
    }
    let weight = norm.weight.flatten_all()?.to_vec1::<f32>()?;
    let bias = norm.bias.map(|bias| bias.flatten_all()?.to_vec1::<f32>()).transpose()?;
    for (r, row) in xs.chunks(size).enumerate() {
        let mean = if norm.rms { 0.0 } else { row.iter().sum::<f32>() / size as f32 };
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / size as f32;
        let first = if norm.weight.rank() == 2 { r % h * size } else { 0 };
        let factor = 1.0 / (variance + norm.eps as f32).sqrt();
        ys.extend(row.iter().enumerate().map(|(c, x)| {
            let bias = bias.as_ref().map_or(0.0, |bias| bias[first + c]);
            (x - mean) * factor * (weight[first + c] + norm.offset) + bias
        }));
    }
    let tensor = |elements: Vec<f32>| Tensor::from_vec(elements, norm.xs.shape(), &Device::Cpu);
    Ok((if norm.keep_sum { Some(tensor(xs)?) } else { None }, tensor(ys)?))
}

pub(crate) fn activated(step: &Activated) -> Result<Tensor> {
    check::activated(step)?;
    let size = step.xs.dim(1)?;
    let of = |xs: Option<&Tensor>, bias: Option<&Tensor>| -> Result<Option<Vec<f32>>> {
        let Some(xs) = xs else { return Ok(None) };
        let mut elements = elements(xs)?;
        if let Some(bias) = bias {
            let bias = bias.to_vec1::<f32>()?;
            elements.iter_mut().enumerate().for_each(|(i, x)| *x += bias[i % size]);
        }
        Ok(Some(elements))
    };
    let mut xs = of(Some(step.xs), step.bias)?.unwrap_or_default();
    xs.iter_mut().for_each(|x| *x = activate(*x, step.activation));
    if let Some(gate) = of(step.gate, step.gate_bias)? {
        xs.iter_mut().zip(gate).for_each(|(x, factor)| *x *= factor);
    }
    Ok(Tensor::from_vec(xs, step.xs.shape(), &Device::Cpu)?)
}

fn activate(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Identity => x,
        Activation::Gelu => 0.5 * x * (1.0 + candle_core::cpu::erf::erf_f32(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Relu => x.max(0.0),
    }
}

pub(crate) fn rotate(xs: &Tensor, [cos, sin]: [&Tensor; 2], interleaved: bool) -> Result<Tensor> {
    check::rotate(xs, [cos, sin])?;
    let (_, s, h, d) = xs.dims4()?;
    let (of, _, _, pairs) = cos.dims4()?;
    let mut elements = elements(xs)?;
    let (cos, sin) = (cos.flatten_all()?.to_vec1::<f32>()?, sin.flatten_all()?.to_vec1::<f32>()?);
    for (r, row) in elements.chunks_mut(d).enumerate() {
        let token = if of == 1 { r / h % s } else { r / h };
        for i in 0..pairs {
            let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
            let (x, y) = (row[first], row[second]);
            let (cos, sin) = (cos[token * pairs + i], sin[token * pairs + i]);
            (row[first], row[second]) = (x * cos - y * sin, y * cos + x * sin);
        }
    }
    Ok(Tensor::from_vec(elements, xs.shape(), &Device::Cpu)?)
}

//! What lies between products, over tensors on one NVIDIA GPU.

use candle_core::cuda_backend::cudarc::driver::{DevicePtrMut, DeviceRepr};
use candle_core::{CudaDevice, DType, Tensor};

use super::compile::{Program, compiled};
use super::memory::{Held, Number, aligned, for_number_of, gpu, of_slice, optional};
use super::queue::{Grid, start};
use super::rows::{ActivateParams, NormParams, Places, RotateParams, Rows};
use crate::error::{Error, Result};
use crate::ops::{Activated, Norm};

// SAFETY: plain numbers, as the structs of the same fields in `source/rows.cuh`; likewise the others.
unsafe impl DeviceRepr for NormParams {}
// SAFETY: see above.
unsafe impl DeviceRepr for ActivateParams {}
// SAFETY: see above.
unsafe impl DeviceRepr for RotateParams {}

/// The sum, if it is wanted, and the normalised rows, packed. Rows are not empty, the numbers of one lie together; all else
/// is contiguous.
pub(crate) fn norm(norm: &Norm) -> Result<(Option<Tensor>, Tensor)> {
    for_number_of!(norm.xs, norm_as(norm))
}

fn norm_as<T: Number>(norm: &Norm) -> Result<(Option<Tensor>, Tensor)> {
    let device = norm.xs.device().as_cuda_device()?;
    let dims = norm.xs.dims4()?;
    let (rows, size) = (dims.0 * dims.1 * dims.2, dims.3);
    let stream = device.cuda_stream();
    let xs = Held::new(norm.xs);
    let weight = Held::new(norm.weight);
    let [add, add_bias, bias] = [norm.add, norm.add_bias, norm.bias].map(|tensor| tensor.map(Held::new));
    let (x_at, _xs) = xs.address::<T>(&stream)?;
    let (add_at, _add) = optional::<T>(add.as_ref(), &stream)?;
    let (add_bias_at, _add_bias) = optional::<T>(add_bias.as_ref(), &stream)?;
    let (weight_at, _weight) = weight.address::<T>(&stream)?;
    let (bias_at, _bias) = optional::<T>(bias.as_ref(), &stream)?;
    // SAFETY: the kernel writes every number of both.
    let mut out = unsafe { device.alloc::<T>(rows * size)? };
    // SAFETY: likewise.
    let mut sum = if norm.keep_sum { Some(unsafe { device.alloc::<T>(rows * size)? }) } else { None };
    let (out_at, out_guard) = out.device_ptr_mut(&stream);
    let (sum_at, sum_guard) = sum.as_mut().map(|sum| sum.device_ptr_mut(&stream)).unzip();
    let places = places(&xs, dims)?;
    let aligned = aligned::<T>(&[x_at, add_at, add_bias_at, weight_at, bias_at], &places.strides, size);
    let params = NormParams {
        x: x_at,
        add: add_at,
        add_bias: add_bias_at,
        weight: weight_at,
        bias: bias_at,
        sum: sum_at.unwrap_or(0),
        out: out_at,
        places,
        rows: rows as i64,
        size: count("numbers of a row", size)?,
        weight_stride: if norm.weight.rank() == 2 { count("numbers of a row", size)? } else { 0 },
        rms: i32::from(norm.rms),
        offset: norm.offset,
        eps: norm.eps as f32,
        aligned: i32::from(aligned),
    };
    // SAFETY: the addresses are held, and as large as the shapes.
    unsafe { run(device, T::DTYPE, "norm_rows", Rows::blocks_of_rows(rows), &params)? };
    drop((out_guard, sum_guard));
    Ok((sum.map(|sum| of_slice(sum, device, dims)), of_slice(out, device, dims)))
}

/// The activated numbers `(rows, size)`, packed. They are not empty and less than 2^31; those of a row lie together, biases are
/// contiguous.
pub(crate) fn activated(step: &Activated) -> Result<Tensor> {
    for_number_of!(step.xs, activated_as(step))
}

fn activated_as<T: Number>(step: &Activated) -> Result<Tensor> {
    let device = step.xs.device().as_cuda_device()?;
    let (rows, size) = step.xs.dims2()?;
    let stream = device.cuda_stream();
    let xs = Held::new(step.xs);
    let [bias, gate, gate_bias] = [step.bias, step.gate, step.gate_bias].map(|tensor| tensor.map(Held::new));
    let (x_at, _xs) = xs.address::<T>(&stream)?;
    let (bias_at, _bias) = optional::<T>(bias.as_ref(), &stream)?;
    let (gate_at, _gate) = optional::<T>(gate.as_ref(), &stream)?;
    let (gate_bias_at, _gate_bias) = optional::<T>(gate_bias.as_ref(), &stream)?;
    // SAFETY: the kernel writes every number of it.
    let mut out = unsafe { device.alloc::<T>(rows * size)? };
    let (out_at, out_guard) = out.device_ptr_mut(&stream);
    let [x_stride, _] = xs.strides();
    let [gate_stride, _] = gate.as_ref().map_or([0; 2], Held::strides);
    let aligned = aligned::<T>(&[x_at, bias_at, gate_at, gate_bias_at], &[x_stride, gate_stride], size);
    let params = ActivateParams {
        x: x_at,
        bias: bias_at,
        gate: gate_at,
        gate_bias: gate_bias_at,
        out: out_at,
        x_stride,
        gate_stride,
        rows: count("rows", rows)?,
        size: count("numbers of a row", size)?,
        activation: step.activation as i32,
        aligned: i32::from(aligned),
    };
    let blocks = Rows(T::DTYPE).blocks_of_numbers(rows * size, aligned);
    // SAFETY: the addresses are held, and as large as the shapes.
    unsafe { run(device, T::DTYPE, "activate_rows", blocks, &params)? };
    drop(out_guard);
    Ok(of_slice(out, device, (rows, size)))
}

/// Numbers `(b, s, h, d)`, those of a head together, not empty, of which the first `2 · pairs` of each head are turned by
/// angles whose cosines and sines are `(b or 1, s, 1, pairs)`, contiguous, of the same dtype: f32, f16 or bf16.
pub(crate) fn rotate(xs: &Tensor, angles: [&Tensor; 2], interleaved: bool) -> Result<Tensor> {
    for_number_of!(xs, rotate_as(xs, angles, interleaved))
}

fn rotate_as<T: Number>(xs: &Tensor, angles: [&Tensor; 2], interleaved: bool) -> Result<Tensor> {
    let device = xs.device().as_cuda_device()?;
    let dims = xs.dims4()?;
    let (b, s, h, d) = dims;
    let (of, _, _, pairs) = angles[0].dims4()?;
    let stream = device.cuda_stream();
    let xs = Held::new(xs);
    let [cos, sin] = angles.map(Held::new);
    let (x_at, _xs) = xs.address::<T>(&stream)?;
    let (cos_at, _cos) = cos.address::<T>(&stream)?;
    let (sin_at, _sin) = sin.address::<T>(&stream)?;
    // SAFETY: the kernel writes every number of it.
    let mut out = unsafe { device.alloc::<T>(b * s * h * d)? };
    let (out_at, out_guard) = out.device_ptr_mut(&stream);
    let params = RotateParams {
        x: x_at,
        cos: cos_at,
        sin: sin_at,
        out: out_at,
        places: places(&xs, dims)?,
        rows: (b * s * h) as i64,
        of_b: if of == 1 { 0 } else { s as i64 },
        d: d as i32,
        pairs: pairs as i32,
        interleaved: i32::from(interleaved),
    };
    // SAFETY: the addresses are held, and as large as the shapes.
    unsafe { run(device, T::DTYPE, "rotate_rows", Rows::blocks_of_rows(b * s * h), &params)? };
    drop(out_guard);
    Ok(of_slice(out, device, dims))
}

/// Queues one of the kernels.
///
/// # Safety
/// As [`start`].
unsafe fn run<P: DeviceRepr>(device: &CudaDevice, dtype: DType, name: &str, blocks: usize, params: &P) -> Result<()> {
    let kernel = compiled(Program::Rows(Rows(dtype)), gpu(device)?.capability)?;
    let grid = Grid { blocks: (count("blocks", blocks)? as u32, 1), threads: Rows::THREADS, shared_bytes: 0 };
    // SAFETY: as the caller promises.
    unsafe { start(device, &kernel, name, grid, params) }
}

/// Where the rows of `(b, s, h, size)` are.
fn places(xs: &Held, (_, s, h, _): (usize, usize, usize, usize)) -> Result<Places> {
    let [b_stride, s_stride, h_stride, _] = xs.strides();
    Ok(Places { strides: [b_stride, s_stride, h_stride], s: count("tokens", s)?, h: count("heads", h)? })
}

/// Kernels count in 32 bits.
fn count(what: &str, count: usize) -> Result<i32> {
    i32::try_from(count).map_err(|_| Error::value(format!("the number of {what}"), count, "less than 2^31"))
}

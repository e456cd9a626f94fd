//! Launches the row-wise kernels over tensors.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::DevicePtrMut;

use super::check;
use crate::error::Result;
use crate::kernels::cuda::{ActivationParams, NormParams, RotaryParams, RowStrides, Rowwise, to_i32, vectorizable};
use crate::ops::problem::{Activated, Norm};
use crate::tensor::{CudaElement, CudaView, for_cuda_element, optional_address, tensor_from_cuda};

/// The sum, if `keep_sum`, and the normalized rows, both contiguous `(b, s, h, size)`. Rows are not empty, `xs` is
/// contiguous in its last dimension, and all other tensors are contiguous.
pub(crate) fn norm(norm: &Norm) -> Result<(Option<Tensor>, Tensor)> {
    check::norm(norm)?;
    for_cuda_element!(norm.xs.dtype(), T => norm_as::<T>(norm))
}

fn norm_as<T: CudaElement>(norm: &Norm) -> Result<(Option<Tensor>, Tensor)> {
    let device = norm.xs.device().as_cuda_device()?;
    let dims = norm.xs.dims4()?;
    let (rows, size) = (dims.0 * dims.1 * dims.2, dims.3);
    let stream = device.cuda_stream();
    let xs = CudaView::new(norm.xs);
    let weight = CudaView::new(norm.weight);
    let [residual, residual_bias, bias] = [norm.add, norm.add_bias, norm.bias].map(|tensor| tensor.map(CudaView::new));
    // The guards hold the memory until the launch is queued.
    let (x, _x_guard) = xs.address::<T>(&stream)?;
    let (residual, _residual_guard) = optional_address::<T>(residual.as_ref(), &stream)?;
    let (residual_bias, _residual_bias_guard) = optional_address::<T>(residual_bias.as_ref(), &stream)?;
    let (weight, _weight_guard) = weight.address::<T>(&stream)?;
    let (bias, _bias_guard) = optional_address::<T>(bias.as_ref(), &stream)?;
    // SAFETY: the kernel writes every element.
    let mut out_memory = unsafe { device.alloc::<T>(rows * size)? };
    // SAFETY: the kernel writes every element.
    let mut sum_memory = if norm.keep_sum { Some(unsafe { device.alloc::<T>(rows * size)? }) } else { None };
    let (out, out_guard) = out_memory.device_ptr_mut(&stream);
    let (sum, sum_guard) = sum_memory.as_mut().map(|sum| sum.device_ptr_mut(&stream)).unzip();
    let row_strides = row_strides(&xs, dims)?;
    let addresses = [x, residual, residual_bias, weight, bias];
    let params = NormParams {
        x,
        residual,
        residual_bias,
        weight,
        bias,
        sum: sum.unwrap_or(0),
        out,
        row_strides,
        rows: rows as i64,
        size: to_i32("elements per row", size)?,
        weight_stride: if norm.weight.rank() == 2 { to_i32("elements per row", size)? } else { 0 },
        rms: i32::from(norm.rms),
        weight_offset: norm.offset,
        eps: norm.eps as f32,
        vectorized: i32::from(vectorizable::<T>(&addresses, &row_strides.strides, size)),
    };
    // SAFETY: the addresses are of tensors with the shapes and strides in `params`, by `check::norm`, and the guards
    // hold them.
    unsafe { Rowwise(T::DTYPE).norm(device, &params)? };
    drop((out_guard, sum_guard));
    let sum = sum_memory.map(|sum| tensor_from_cuda(sum, device, dims));
    Ok((sum, tensor_from_cuda(out_memory, device, dims)))
}

/// The activated rows, contiguous `(rows, size)`. They are not empty and have less than 2^31 elements; `xs` and `gate`
/// are contiguous in their last dimension, biases are contiguous.
pub(crate) fn activated(activated: &Activated) -> Result<Tensor> {
    check::activated(activated)?;
    for_cuda_element!(activated.xs.dtype(), T => activated_as::<T>(activated))
}

fn activated_as<T: CudaElement>(activated: &Activated) -> Result<Tensor> {
    let device = activated.xs.device().as_cuda_device()?;
    let (rows, size) = activated.xs.dims2()?;
    let stream = device.cuda_stream();
    let xs = CudaView::new(activated.xs);
    let [bias, gate, gate_bias] =
        [activated.bias, activated.gate, activated.gate_bias].map(|tensor| tensor.map(CudaView::new));
    let [x_stride, _] = xs.strides();
    let [gate_stride, _] = gate.as_ref().map_or([0; 2], CudaView::strides);
    // The guards hold the memory until the launch is queued.
    let (x, _x_guard) = xs.address::<T>(&stream)?;
    let (bias, _bias_guard) = optional_address::<T>(bias.as_ref(), &stream)?;
    let (gate, _gate_guard) = optional_address::<T>(gate.as_ref(), &stream)?;
    let (gate_bias, _gate_bias_guard) = optional_address::<T>(gate_bias.as_ref(), &stream)?;
    // SAFETY: the kernel writes every element.
    let mut out_memory = unsafe { device.alloc::<T>(rows * size)? };
    let (out, out_guard) = out_memory.device_ptr_mut(&stream);
    let vectorized = vectorizable::<T>(&[x, bias, gate, gate_bias], &[x_stride, gate_stride], size);
    let params = ActivationParams {
        x,
        bias,
        gate,
        gate_bias,
        out,
        x_stride,
        gate_stride,
        rows: to_i32("rows", rows)?,
        size: to_i32("elements per row", size)?,
        activation: activated.activation as i32,
        vectorized: i32::from(vectorized),
    };
    // SAFETY: as in `norm_as`, by `check::activated`.
    unsafe { Rowwise(T::DTYPE).activation(device, &params)? };
    drop(out_guard);
    Ok(tensor_from_cuda(out_memory, device, (rows, size)))
}

/// `xs` `(b, s, h, d)` with the first `2 · pairs` elements of each head rotated by angles whose cosines and sines are
/// `(b or 1, s, 1, pairs)`. `xs` is not empty and contiguous in its last dimension; the angles are contiguous and of
/// the same dtype: f32, f16 or bf16.
pub(crate) fn rotate(xs: &Tensor, angles: [&Tensor; 2], interleaved: bool) -> Result<Tensor> {
    check::rotate(xs, angles)?;
    for_cuda_element!(xs.dtype(), T => rotate_as::<T>(xs, angles, interleaved))
}

fn rotate_as<T: CudaElement>(xs: &Tensor, angles: [&Tensor; 2], interleaved: bool) -> Result<Tensor> {
    let device = xs.device().as_cuda_device()?;
    let dims = xs.dims4()?;
    let (b, s, h, d) = dims;
    let (angle_batch, _, _, pairs) = angles[0].dims4()?;
    let stream = device.cuda_stream();
    let xs = CudaView::new(xs);
    let [cos, sin] = angles.map(CudaView::new);
    // The guards hold the memory until the launch is queued.
    let (x, _x_guard) = xs.address::<T>(&stream)?;
    let (cos, _cos_guard) = cos.address::<T>(&stream)?;
    let (sin, _sin_guard) = sin.address::<T>(&stream)?;
    // SAFETY: the kernel writes every element.
    let mut out_memory = unsafe { device.alloc::<T>(b * s * h * d)? };
    let (out, out_guard) = out_memory.device_ptr_mut(&stream);
    let params = RotaryParams {
        x,
        cos,
        sin,
        out,
        row_strides: row_strides(&xs, dims)?,
        rows: (b * s * h) as i64,
        batch_offset: if angle_batch == 1 { 0 } else { s as i64 },
        d: to_i32("elements per head", d)?,
        pairs: to_i32("pairs per head", pairs)?,
        interleaved: i32::from(interleaved),
    };
    // SAFETY: as in `norm_as`, by `check::rotate`.
    unsafe { Rowwise(T::DTYPE).rotary(device, &params)? };
    drop(out_guard);
    Ok(tensor_from_cuda(out_memory, device, dims))
}

/// Strides of the rows of a tensor `(b, s, h, size)`.
fn row_strides(xs: &CudaView, (_, s, h, _): (usize, usize, usize, usize)) -> Result<RowStrides> {
    let [b_stride, s_stride, h_stride, _] = xs.strides();
    Ok(RowStrides { strides: [b_stride, s_stride, h_stride], s: to_i32("tokens", s)?, h: to_i32("heads", h)? })
}

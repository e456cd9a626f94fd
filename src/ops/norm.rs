//! Layer normalization and RMS normalization of rows: one differentiable reference, the kernel of the CPU, and candle's
//! kernels on Apple GPUs.

use std::ops::Range;

use candle_attention_kernels::{Isa, RowNorm, Team};
use candle_core::{D, DType, Device, Tensor};

use crate::error::Result;
use crate::tensor::{broadcast_rows, compute_dtype, element_count, with_f32_slice, with_f32_slices};

/// The work of a norm for each value, in multiply-adds of a product that takes as long.
const NORM_WORK: usize = 16;

/// Rows of which one thread normalizes parts at a time.
const ROWS_PER_CHUNK: usize = 16;

/// A normalization: `(x - mean) / sqrt(variance + eps) · (weight + offset) + bias` per row ([Ba
/// 2016](https://arxiv.org/abs/1607.06450)), or the same without the mean ([Zhang
/// 2019](https://arxiv.org/abs/1910.07467)).
#[derive(Clone, Copy)]
pub(crate) struct NormParameters<'a> {
    /// `(size)`, or `(h, size)` for one per head of rows `(b, s, h, size)`.
    pub weight: &'a Tensor,
    /// In the shape of `weight`.
    pub bias: Option<&'a Tensor>,
    pub eps: f64,
    /// RMS normalization: the mean is not subtracted, and the variance is the mean square.
    pub rms: bool,
    /// Added to `weight` (1 for Gemma's RMS norm).
    pub offset: f32,
}

impl NormParameters<'_> {
    /// xs `(…, size)` normalized, in the shape and dtype of `xs`. Differentiable.
    pub(crate) fn forward(self, xs: &Tensor) -> Result<Tensor> {
        // candle's kernels for NVIDIA GPUs cannot reduce an empty tensor.
        if element_count("the input of a norm", xs.dims())? == 0 {
            return Ok(xs.clone());
        }
        if self.fits_cpu_kernel(xs) {
            self.by_cpu_kernel(xs)
        } else if self.fits_candle_kernels(xs) {
            self.by_candle_kernels(xs)
        } else {
            self.reference(xs)
        }
    }

    /// The tensors of the parameters.
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [Some(self.weight), self.bias].into_iter().flatten()
    }

    /// Whether there is one weight for all rows, and no gradient to track.
    fn is_shared_and_fixed(&self, xs: &Tensor) -> bool {
        let is_fixed = !xs.track_op() && self.tensors().all(|tensor| !tensor.track_op());
        is_fixed && self.weight.dims() == [*xs.dims().last().unwrap_or(&0)]
    }

    /// Whether the CPU kernel can compute the norm of `xs`.
    fn fits_cpu_kernel(&self, xs: &Tensor) -> bool {
        let fits = |tensor: &Tensor| tensor.device().is_cpu() && tensor.dtype() != DType::F64;
        self.is_shared_and_fixed(xs) && fits(xs) && self.tensors().all(fits)
    }

    /// Whether candle's kernels for Apple GPUs can compute the norm of `xs`.
    fn fits_candle_kernels(&self, xs: &Tensor) -> bool {
        let fits = |tensor: &Tensor| tensor.dtype() == xs.dtype() && tensor.device().same_device(xs.device());
        let is_metal = cfg!(feature = "metal") && xs.device().is_metal();
        is_metal && self.is_shared_and_fixed(xs) && self.tensors().all(fits)
    }

    /// The rows normalized by the CPU kernel, in f32.
    fn by_cpu_kernel(&self, xs: &Tensor) -> Result<Tensor> {
        let mut rows = with_f32_slice(xs, <[f32]>::to_vec)?;
        Team::with(NORM_WORK * rows.len(), |team| self.normalize_rows(Isa::detect()?, team, &mut rows, None))?;
        Ok(Tensor::from_vec(rows, xs.shape(), &Device::Cpu)?.to_dtype(xs.dtype())?)
    }

    /// The formula in candle's differentiable operations, on any device.
    ///
    /// candle's own layer norm is not used: its fused path drops the gradient without an error, and it computes the
    /// variance as the difference of two large sums. Here the mean is subtracted first, and half types are computed in
    /// f32.
    fn reference(&self, xs: &Tensor) -> Result<Tensor> {
        let wide = compute_dtype(xs.dtype());
        let ys = xs.to_dtype(wide)?;
        let centered = if self.rms { ys } else { ys.broadcast_sub(&ys.mean_keepdim(D::Minus1)?)? };
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let ys = centered.broadcast_div(&(variance + self.eps)?.sqrt()?)?;
        let parameter = |tensor: &Tensor| match tensor.rank() {
            1 => broadcast_rows(tensor, &ys),
            _ => Ok(tensor.clone()),
        };
        let weight = self.weight.to_dtype(wide)?;
        let weight = if self.offset == 0.0 { weight } else { (weight + f64::from(self.offset))? };
        let weighted = ys.broadcast_mul(&parameter(&weight)?)?;
        let ys = match self.bias {
            Some(bias) => weighted.broadcast_add(&parameter(&bias.to_dtype(wide)?)?)?,
            None => weighted,
        };
        Ok(ys.to_dtype(xs.dtype())?)
    }

    /// The formula by candle's fused kernels, in f32 because for half types they round the mean and the factor. Only
    /// for Apple GPUs: candle's kernels for NVIDIA GPUs compute the variance as the difference of two large sums.
    fn by_candle_kernels(&self, xs: &Tensor) -> Result<Tensor> {
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.contiguous();
        let weight = wide(self.weight)?;
        let weight = if self.offset == 0.0 { weight } else { (weight + f64::from(self.offset))? };
        let bias = self.bias.map(wide).transpose()?;
        let (rows, eps) = (wide(xs)?, self.eps as f32);
        let ys = match (self.rms, bias) {
            (true, None) => candle_nn::ops::rms_norm(&rows, &weight, eps)?,
            (true, Some(bias)) => candle_nn::ops::rms_norm(&rows, &weight, eps)?.broadcast_add(&bias)?,
            (false, bias) => {
                let bias = bias.map_or_else(|| weight.affine(0.0, 0.0), Ok)?;
                candle_nn::ops::layer_norm(&rows, &weight, &bias, eps)?
            }
        };
        Ok(ys.to_dtype(xs.dtype())?)
    }

    /// Replaces the rows `xs` by the norm of `xs`, or of `xs + residual`, by the CPU kernel.
    pub(crate) fn normalize_rows(&self, isa: Isa, team: Team, xs: &mut [f32], residual: Option<&[f32]>) -> Result<()> {
        self.run(|norm| Ok(norm.apply(isa, team, xs, residual)?))
    }

    /// Replaces the values `part` of each row of `width` values by their norm: `part` is one or more rows of the norm.
    pub(crate) fn normalize_parts(
        &self,
        isa: Isa,
        team: Team,
        xs: &mut [f32],
        width: usize,
        part: Range<usize>,
    ) -> Result<()> {
        self.run(|norm| {
            Ok(team.try_for_chunks(xs, ROWS_PER_CHUNK * width, |_, rows| {
                let mut rows = rows.chunks_exact_mut(width);
                rows.try_for_each(|row| norm.apply(isa, Team::ALONE, &mut row[part.clone()], None))
            })?)
        })
    }

    /// Calls `run` with the norm of the CPU kernel.
    fn run(&self, mut run: impl FnMut(RowNorm) -> Result<()>) -> Result<()> {
        let (eps, rms) = (self.eps as f32, self.rms);
        let mut run = |weight: &[f32], bias: &[f32]| match self.offset {
            0.0 => run(RowNorm { weight, bias, eps, rms }),
            offset => {
                let weight: Vec<f32> = weight.iter().map(|weight| weight + offset).collect();
                run(RowNorm { weight: &weight, bias, eps, rms })
            }
        };
        match self.bias {
            Some(bias) => with_f32_slices([self.weight, bias], |[weight, bias]| run(weight, bias))?,
            None => with_f32_slice(self.weight, |weight| run(weight, &vec![0.0; weight.len()]))?,
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    /// Runs on the CPU what runs on Apple GPUs.
    #[test]
    fn candle_kernels_match_the_formula() {
        let device = Device::Cpu;
        // From -2 to 2: the rounding of bf16 grows with the results, and the tolerance is for these.
        let elements = |dims: &[usize], step: usize| {
            let element = |i: usize| (i * step % 101) as f32 / 25.25 - 2.0;
            let elements: Vec<f32> = (0..dims.iter().product()).map(element).collect();
            Tensor::from_vec(elements, dims, &device).unwrap()
        };
        let all = elements(&[2, 3, 8, 20], 37);
        let xs = all.narrow(2, 2, 4).unwrap();
        let (weight, bias) = (elements(&[20], 59), elements(&[20], 71));
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 3e-2)] {
            let [xs, weight, bias] = [&xs, &weight, &bias].map(|t| t.to_dtype(dtype).unwrap());
            for (rms, offset, bias) in
                [(false, 0.0, Some(&bias)), (false, 0.0, None), (true, 1.0, None), (true, 0.0, Some(&bias))]
            {
                let norm = NormParameters { weight: &weight, bias, eps: 1e-5, rms, offset };
                let got = norm.by_candle_kernels(&xs).unwrap();
                assert_eq!(got.dtype(), dtype);
                let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
                let want = wide(&xs);
                let mean = want.mean_keepdim(D::Minus1).unwrap();
                let centered = if rms { want } else { want.broadcast_sub(&mean).unwrap() };
                let variance = (centered.sqr().unwrap().mean_keepdim(D::Minus1).unwrap() + 1e-5).unwrap();
                let want = centered.broadcast_div(&variance.sqrt().unwrap()).unwrap();
                let want = want.broadcast_mul(&(wide(&weight) + f64::from(offset)).unwrap()).unwrap();
                let want = bias.map_or(want.clone(), |bias| want.broadcast_add(&wide(bias)).unwrap());
                assert!(worst(&wide(&got), &want) < tolerance, "{dtype:?}, rms {rms}, offset {offset}");
            }
        }
    }

    fn worst(a: &Tensor, b: &Tensor) -> f64 {
        (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
    }

    #[test]
    fn kernels_get_no_gradient_to_track_and_one_weight() {
        let xs = Tensor::ones((1, 2, 3, 4), DType::F32, &Device::Cpu).unwrap();
        let weight = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
        let with = |weight| NormParameters { weight, bias: None, eps: 1e-5, rms: true, offset: 0.0 };
        assert!(with(&weight).fits_cpu_kernel(&xs) && !with(&weight).fits_candle_kernels(&xs));
        let variable = Var::from_tensor(&weight).unwrap();
        let per_head = Tensor::ones((3, 4), DType::F32, &Device::Cpu).unwrap();
        let double = weight.to_dtype(DType::F64).unwrap();
        for weight in [variable.as_tensor(), &per_head, &double] {
            assert!(!with(weight).fits_cpu_kernel(&xs));
        }
    }
}

//! Layer normalization and RMS normalization of rows: one differentiable reference, and fused kernels on CPUs and GPUs.

use std::ops::Range;

use candle_attention_kernels::{Isa, RowNorm, Team};
use candle_core::{D, DType, Device, Tensor};

use super::cuda;
use super::problem::{Norm, fits_fused, supports_fused};
use crate::error::Result;
use crate::tensor::{
    broadcast_rows, compute_dtype, element_count, last_dim_contiguous, with_f32_slice, with_f32_slices,
};

/// The work of a norm for each value, in multiply-adds of a product that takes as long.
const NORM_WORK: usize = 16;

/// Rows of which one thread normalizes parts at a time.
const ROWS_PER_CHUNK: usize = 16;

/// The parameters of a normalization, as in [`Norm`]; the weight `(size)`.
#[derive(Clone, Copy)]
pub(crate) struct NormParameters<'a> {
    pub weight: &'a Tensor,
    pub bias: Option<&'a Tensor>,
    pub eps: f64,
    pub rms: bool,
    pub offset: f32,
}

impl NormParameters<'_> {
    /// xs `(…, size)` normalized: [`Norm::forward`] without a residual.
    pub(crate) fn forward(self, xs: &Tensor) -> Result<Tensor> {
        let Self { weight, bias, eps, rms, offset } = self;
        let norm = Norm { xs, add: None, add_bias: None, weight, bias, eps, rms, offset, keep_sum: false };
        Ok(norm.forward()?.1)
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

impl Norm<'_> {
    /// The sum, if `keep_sum`, and the normalized rows, both in the shape and dtype of `xs`. Differentiable.
    pub(crate) fn forward(&self) -> Result<(Option<Tensor>, Tensor)> {
        // candle's kernels for NVIDIA GPUs cannot reduce an empty tensor.
        if element_count("the input of a norm", self.xs.dims())? == 0 {
            return Ok((self.keep_sum.then(|| self.xs.clone()), self.xs.clone()));
        }
        if let Some(outputs) = self.fused()? {
            return Ok(outputs);
        }
        if self.fits_cpu_kernel() { self.by_cpu_kernel() } else { self.reference() }
    }

    /// The sum and the normalized rows by one kernel, where the device has one and no gradient is tracked.
    fn fused(&self) -> Result<Option<(Option<Tensor>, Tensor)>> {
        let size = *self.weight.dims().last().unwrap_or(&0);
        let same_shape = self.add.is_none_or(|add| add.dims() == self.xs.dims());
        if !same_shape || self.xs.dims().last() != Some(&size) || !self.supports_fused() {
            return Ok(None);
        }
        if self.xs.device().is_metal() {
            return self.by_candle_kernels().map(Some);
        }
        let rows = |xs: &Tensor| match xs.rank() {
            4 => Ok(xs.clone()),
            _ => xs.reshape((1, (), 1, size)), // (1, rows, 1, size)
        };
        let [xs, weight] = [last_dim_contiguous(&rows(self.xs)?)?, self.weight.contiguous()?];
        let add = self.add.map(|add| rows(add)?.contiguous()).transpose()?;
        let [add_bias, bias] = [self.add_bias, self.bias].map(|tensor| tensor.map(Tensor::contiguous).transpose());
        let (add_bias, bias) = (add_bias?, bias?);
        let norm = Norm {
            xs: &xs,
            add: add.as_ref(),
            add_bias: add_bias.as_ref(),
            weight: &weight,
            bias: bias.as_ref(),
            ..*self
        };
        let (sum, ys) = cuda::norm(&norm)?;
        let shaped = |ys: Tensor| ys.reshape(self.xs.shape());
        Ok(Some((sum.map(shaped).transpose()?, shaped(ys)?)))
    }

    /// Whether one kernel can do this call; asked before anything is copied for it.
    fn supports_fused(&self) -> bool {
        let others = [Some(self.weight), self.bias, self.add, self.add_bias];
        let metal = cfg!(feature = "metal") && self.xs.device().is_metal() && self.weight.rank() == 1;
        supports_fused(self.xs, &others) || metal && fits_fused(self.xs, &others)
    }

    /// Whether the CPU kernel can compute this: one weight for all rows, no f64, no gradient to track.
    fn fits_cpu_kernel(&self) -> bool {
        let tensors = [Some(self.xs), Some(self.weight), self.bias, self.add, self.add_bias].into_iter().flatten();
        let fits = |tensor: &Tensor| tensor.device().is_cpu() && !tensor.track_op() && tensor.dtype() != DType::F64;
        self.weight.dims() == [*self.xs.dims().last().unwrap_or(&0)] && tensors.into_iter().all(fits)
    }

    /// The sum and the normalized rows by the CPU kernel, in f32.
    fn by_cpu_kernel(&self) -> Result<(Option<Tensor>, Tensor)> {
        let sum = self.sum()?;
        let mut rows = with_f32_slice(&sum, <[f32]>::to_vec)?;
        let Self { weight, bias, eps, rms, offset, .. } = *self;
        let norm = NormParameters { weight, bias, eps, rms, offset };
        Team::with(NORM_WORK * rows.len(), |team| norm.normalize_rows(Isa::detect()?, team, &mut rows, None))?;
        let ys = Tensor::from_vec(rows, sum.shape(), &Device::Cpu)?.to_dtype(sum.dtype())?;
        Ok((self.keep_sum.then_some(sum), ys))
    }

    /// `xs + (add + add_bias)`.
    fn sum(&self) -> Result<Tensor> {
        let biased = |ys: &Tensor| match self.add_bias {
            Some(bias) => ys.broadcast_add(&broadcast_rows(bias, ys)?).map_err(Into::into),
            None => Ok::<_, crate::Error>(ys.clone()),
        };
        match self.add {
            Some(add) => Ok((self.xs + biased(add)?)?),
            None => biased(self.xs),
        }
    }

    /// The formula in candle's differentiable operations, on any device.
    ///
    /// candle's own layer norm is not used: its fused path drops the gradient without an error, and it computes the
    /// variance as the difference of two large sums. Here the mean is subtracted first, and half types are computed in
    /// f32.
    fn reference(&self) -> Result<(Option<Tensor>, Tensor)> {
        let sum = self.sum()?;
        let wide = compute_dtype(sum.dtype());
        let xs = sum.to_dtype(wide)?;
        let centered = if self.rms { xs } else { xs.broadcast_sub(&xs.mean_keepdim(D::Minus1)?)? };
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
        let ys = ys.to_dtype(sum.dtype())?;
        Ok((self.keep_sum.then_some(sum), ys))
    }

    /// The formula by candle's fused kernels, in f32 because for half types they round the mean and the factor. Only
    /// for Apple GPUs: candle's kernels for NVIDIA GPUs compute the variance as the difference of two large sums.
    fn by_candle_kernels(&self) -> Result<(Option<Tensor>, Tensor)> {
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.contiguous();
        let sum = self.sum()?;
        let weight = wide(self.weight)?;
        let weight = if self.offset == 0.0 { weight } else { (weight + f64::from(self.offset))? };
        let bias = self.bias.map(wide).transpose()?;
        let (xs, eps) = (wide(&sum)?, self.eps as f32);
        let ys = match (self.rms, bias) {
            (true, None) => candle_nn::ops::rms_norm(&xs, &weight, eps)?,
            (true, Some(bias)) => candle_nn::ops::rms_norm(&xs, &weight, eps)?.broadcast_add(&bias)?,
            (false, bias) => {
                let bias = bias.map_or_else(|| weight.affine(0.0, 0.0), Ok)?;
                candle_nn::ops::layer_norm(&xs, &weight, &bias, eps)?
            }
        };
        let ys = ys.to_dtype(sum.dtype())?;
        Ok((self.keep_sum.then_some(sum), ys))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

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
        let (all, add) = (elements(&[2, 3, 8, 20], 37), elements(&[2, 3, 4, 20], 43));
        let xs = all.narrow(2, 2, 4).unwrap();
        let (weight, bias) = (elements(&[20], 59), elements(&[20], 71));
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 3e-2)] {
            let [xs, add, weight, bias] = [&xs, &add, &weight, &bias].map(|t| t.to_dtype(dtype).unwrap());
            for (rms, offset, bias) in
                [(false, 0.0, Some(&bias)), (false, 0.0, None), (true, 1.0, None), (true, 0.0, Some(&bias))]
            {
                for add in [None, Some(&add)] {
                    let norm = Norm {
                        xs: &xs,
                        add,
                        add_bias: None,
                        weight: &weight,
                        bias,
                        eps: 1e-5,
                        rms,
                        offset,
                        keep_sum: true,
                    };
                    let (sum, got) = norm.by_candle_kernels().unwrap();
                    let sum = sum.unwrap();
                    let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
                    let want = add.map_or(wide(&xs), |add| wide(&(&xs + add).unwrap()));
                    assert_eq!((sum.dtype(), got.dtype()), (dtype, dtype));
                    assert_eq!(worst(&wide(&sum), &want), 0.0);
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
    }

    fn worst(a: &Tensor, b: &Tensor) -> f64 {
        (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
    }

    #[test]
    fn cpu_tensors_and_tracked_parameters_are_not_fused() {
        let xs = Tensor::ones((1, 2, 1, 4), DType::F32, &Device::Cpu).unwrap();
        let weight = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
        let norm = Norm {
            xs: &xs,
            add: None,
            add_bias: None,
            weight: &weight,
            bias: None,
            eps: 1e-5,
            rms: true,
            offset: 0.0,
            keep_sum: false,
        };
        assert!(norm.fused().unwrap().is_none());
        let variable = candle_core::Var::from_tensor(&weight).unwrap();
        assert!(fits_fused(&xs, &[Some(&weight)]) && !fits_fused(&xs, &[Some(variable.as_tensor())]));
        assert!(!fits_fused(&xs, &[Some(&weight.to_dtype(DType::F16).unwrap())]));
        assert!(!fits_fused(&xs.narrow(1, 0, 0).unwrap(), &[]));
    }
}

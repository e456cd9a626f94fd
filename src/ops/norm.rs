//! Fused normalization of rows.

use candle_core::{DType, Tensor};

use super::{may_take, on_cuda, takes, together};
use crate::error::Result;

/// Rows normalised: `(x - mean) / sqrt(variance + eps) · (weight + offset) + bias`, in f32, rounded once.
#[derive(Clone, Copy)]
pub(crate) struct Norm<'a> {
    /// `(b, s, h, size)`.
    pub xs: &'a Tensor,
    /// As `xs`: what is normalised is the sum.
    pub add: Option<&'a Tensor>,
    /// `(size)`: added to each row of the sum.
    pub add_bias: Option<&'a Tensor>,
    /// `(size)` or `(h, size)`.
    pub weight: &'a Tensor,
    /// As `weight`.
    pub bias: Option<&'a Tensor>,
    pub eps: f64,
    /// Whether the mean stays: the variance is then the mean square.
    pub rms: bool,
    pub offset: f32,
    /// Whether the sum is wanted.
    pub keep_sum: bool,
}

impl Norm<'_> {
    /// The sum, if it is wanted, and the normalised rows.
    pub(crate) fn run(&self) -> Result<Option<(Option<Tensor>, Tensor)>> {
        if !Self::takes(self.xs, self.weight, [self.bias, self.add, self.add_bias]) {
            return Ok(None);
        }
        if self.xs.device().is_metal() {
            return self.by_candle().map(Some);
        }
        let [xs, weight] = [together(self.xs)?, self.weight.contiguous()?];
        let [add, add_bias, bias] =
            [self.add, self.add_bias, self.bias].map(|tensor| tensor.map(Tensor::contiguous).transpose());
        let (add, add_bias, bias) = (add?, add_bias?, bias?);
        let norm = Norm {
            xs: &xs,
            add: add.as_ref(),
            add_bias: add_bias.as_ref(),
            weight: &weight,
            bias: bias.as_ref(),
            ..*self
        };
        on_cuda::norm(&norm).map(Some)
    }

    /// Whether a GPU normalises `xs` in one step: to be asked before anything is copied for it.
    pub(crate) fn takes(xs: &Tensor, weight: &Tensor, [bias, add, add_bias]: [Option<&Tensor>; 3]) -> bool {
        let all = [Some(weight), bias, add, add_bias];
        takes(xs, &all) || cfg!(feature = "metal") && xs.device().is_metal() && weight.rank() == 1 && may_take(xs, &all)
    }

    /// By candle's own kernels, in f32: for half types they round the mean and the factor. Those for NVIDIA GPUs take the
    /// variance as a difference of two large sums, those for Apple's do not.
    fn by_candle(&self) -> Result<(Option<Tensor>, Tensor)> {
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.contiguous();
        let sum = self.add.map(|add| self.xs + add).transpose()?;
        let biased = self.add_bias.map(|bias| sum.as_ref().unwrap_or(self.xs).broadcast_add(bias)).transpose()?;
        let sum = biased.or(sum);
        let xs = sum.as_ref().unwrap_or(self.xs);
        let weight = wide(self.weight)?;
        let weight = if self.offset == 0.0 { weight } else { (weight + f64::from(self.offset))? };
        let bias = self.bias.map(wide).transpose()?;
        let eps = self.eps as f32;
        let ys = match (self.rms, bias) {
            (true, None) => candle_nn::ops::rms_norm(&wide(xs)?, &weight, eps)?,
            (true, Some(bias)) => candle_nn::ops::rms_norm(&wide(xs)?, &weight, eps)?.broadcast_add(&bias)?,
            (false, bias) => {
                let bias = bias.map_or_else(|| weight.affine(0.0, 0.0), Ok)?;
                candle_nn::ops::layer_norm(&wide(xs)?, &weight, &bias, eps)?
            }
        };
        let ys = ys.to_dtype(xs.dtype())?;
        Ok((if self.keep_sum { Some(xs.clone()) } else { None }, ys))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{D, Device};

    use super::*;

    /// What an Apple GPU is asked for, asked of the CPU.
    #[test]
    fn norms_by_candle_are_what_is_wanted() {
        let device = Device::Cpu;
        let random = |dims: &[usize]| Tensor::randn(0f32, 1.0, dims, &device).unwrap();
        let (all, add) = (random(&[2, 3, 8, 20]), random(&[2, 3, 4, 20]));
        let xs = all.narrow(2, 2, 4).unwrap();
        let [weight, bias] = [0, 1].map(|_| random(&[20]));
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
                    let (sum, got) = norm.by_candle().unwrap();
                    let sum = sum.unwrap();
                    let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
                    let want = add.map_or(wide(&xs), |add| wide(&(&xs + add).unwrap()));
                    assert_eq!((sum.dtype(), got.dtype()), (dtype, dtype));
                    assert_eq!(worst(&wide(&sum), &want), 0.0);
                    let mean = want.mean_keepdim(D::Minus1).unwrap();
                    let centred = if rms { want } else { want.broadcast_sub(&mean).unwrap() };
                    let variance = (centred.sqr().unwrap().mean_keepdim(D::Minus1).unwrap() + 1e-5).unwrap();
                    let want = centred.broadcast_div(&variance.sqrt().unwrap()).unwrap();
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
    fn elsewhere_candles_operations_have_to_do() {
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
        assert!(norm.run().unwrap().is_none());
        let variable = candle_core::Var::from_tensor(&weight).unwrap();
        assert!(may_take(&xs, &[Some(&weight)]) && !may_take(&xs, &[Some(variable.as_tensor())]));
        assert!(!may_take(&xs, &[Some(&weight.to_dtype(DType::F16).unwrap())]));
        assert!(!may_take(&xs.narrow(1, 0, 0).unwrap(), &[]));
    }
}

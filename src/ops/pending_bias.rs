//! The output of a product whose bias a later kernel adds.

use candle_attention_kernels::Activation;
use candle_core::{D, Tensor};

use crate::error::Result;
use crate::ops::problem::Activated;
use crate::tensor::broadcast_rows;

/// The output of a linear layer, `(…, out)`, with a bias `(out)` that is still to be added to it.
///
/// Attention and feed-forward return it so that the residual norm after them adds the bias in the same kernel.
#[derive(Debug, Clone)]
pub struct PendingBias {
    /// The product, without the bias.
    pub ys: Tensor,
    /// `None` if the bias is added already, or if there is none.
    pub bias: Option<Tensor>,
}

impl From<Tensor> for PendingBias {
    fn from(ys: Tensor) -> Self {
        Self { ys, bias: None }
    }
}

impl PendingBias {
    /// The output with its bias added.
    pub fn apply(self) -> Result<Tensor> {
        match &self.bias {
            None => Ok(self.ys),
            Some(bias) => {
                let ys = self.ys.flatten_to(D::Minus2)?; // (rows, out)
                Ok(add_bias(ys, bias)?.reshape(self.ys.shape())?)
            }
        }
    }

    /// The output in another shape that keeps the last dimension.
    pub fn map(self, reshape: impl FnOnce(Tensor) -> candle_core::Result<Tensor>) -> Result<Self> {
        Ok(Self { ys: reshape(self.ys)?, bias: self.bias })
    }
}

/// `ys` `(rows, out)` plus the bias `(out)`.
pub(super) fn add_bias(ys: Tensor, bias: &Tensor) -> Result<Tensor> {
    let activation = Activation::Identity;
    let biased = Activated { activation, xs: &ys, bias: Some(bias), gate: None, gate_bias: None };
    match biased.fused()? {
        Some(ys) => Ok(ys),
        None => Ok(ys.broadcast_add(&broadcast_rows(&bias.to_dtype(ys.dtype())?, &ys)?)?),
    }
}

#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use candle_core::DType;

    use crate::ops::cuda::with_mock_device;
    use crate::ops::linear::Linear;
    use crate::tensor::random::Random;
    use crate::weights::LinearWeights;

    /// As an NVIDIA GPU does it, by its mock: the product first, then the bias by a kernel.
    #[test]
    fn a_pending_bias_is_added_as_it_is() {
        let mut random = Random(1);
        let linear =
            Linear::new("x", LinearWeights::new(random.tensor(&[5, 4]), Some(random.tensor(&[5]))), 5, 4).unwrap();
        let xs = random.tensor(&[2, 3, 4]);
        let want = linear.forward_in_dtype(&xs, DType::F32).unwrap();
        let (got, steps) = with_mock_device(|| linear.forward_pending_bias(&xs).unwrap().apply().unwrap());
        assert_eq!((got.dims(), steps), (want.dims(), 1));
        let worst = (got - want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
        assert!(worst.to_scalar::<f32>().unwrap() < 1e-5);
    }
}

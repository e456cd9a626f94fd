//! The low-rank change of one weight.

use candle_core::{D, DType, Tensor};

use crate::error::Result;
use crate::tensor::{check_allocation, element_count};

/// The change of a weight: `W + scale · B A`; with a magnitude `m` each output, a row of that, is scaled to the length `m`.
#[derive(Debug, Clone)]
pub(super) struct LowRank {
    /// `(r, in)`.
    pub a: Tensor,
    /// `(out, r)`.
    pub b: Tensor,
    pub scale: f64,
    /// `(out)`.
    pub magnitude: Option<Tensor>,
    /// Whether the weight is stored `(in, out)`, as tables of embeddings and GPT-2's layers are.
    pub transposed: bool,
}

impl LowRank {
    /// `[out, in]`.
    pub fn dims(&self) -> [usize; 2] {
        [self.b.dims()[0], self.a.dims()[1]]
    }

    /// The shape of the weight that it changes, as it is stored.
    pub fn stored_dims(&self) -> [usize; 2] {
        let [out, input] = self.dims();
        if self.transposed { [input, out] } else { [out, input] }
    }

    pub fn tracks_gradient(&self) -> bool {
        [Some(&self.a), Some(&self.b), self.magnitude.as_ref()].into_iter().flatten().any(Tensor::track_op)
    }

    /// The changed weight in the dtype and on the device of `weight`, which has the shape
    /// [`stored_dims`](Self::stored_dims). Computed in f32, in f64 for an f64 weight, and rounded once.
    ///
    /// As PEFT merges it, with one difference: PEFT rounds the change to a half type before it adds it.
    pub fn merge(&self, weight: &Tensor) -> Result<Tensor> {
        let [out, input] = self.dims();
        check_allocation::<f64>("the change of a weight", element_count("a weight", &[out, input])?)?;
        let wide = if weight.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let get = |tensor: &Tensor| tensor.to_dtype(wide)?.to_device(weight.device());
        let change = (get(&self.b)?.matmul(&get(&self.a)?)? * self.scale)?; // (out, in)
        let whole = weight.to_dtype(wide)?;
        let whole = if self.transposed { whole.t()? } else { whole };
        let mut changed = (whole + change)?;
        if let Some(magnitude) = &self.magnitude {
            // A constant for the gradient, as DoRA proposes (section 4.3).
            let lengths = changed.detach().sqr()?.sum_keepdim(D::Minus1)?.sqrt()?; // (out, 1)
            changed = changed.broadcast_mul(&get(magnitude)?.unsqueeze(1)?.div(&lengths)?)?;
        }
        let changed = if self.transposed { changed.t()?.contiguous()? } else { changed };
        Ok(changed.to_dtype(weight.dtype())?)
    }
}

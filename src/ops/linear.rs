//! The input and output projections: `y = x Wᵀ + b`, dense or with query, key and value packed in one matrix.

use std::sync::{Arc, OnceLock};

use candle_core::{D, DType, Tensor};

use crate::error::{Error, Result};
use crate::kernels::cpu::PackedWeights;
use crate::ops::Activated;
use crate::ops::pack::{multiply, pack};
use crate::tensor::broadcast_rows;
use crate::tensor::same_dtype_and_device;
use crate::weights::LinearWeights;

/// `y = x Wᵀ + b` with W `(out, in)`.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
    /// The weights as the CPU kernel reads them, made when first needed.
    pub(super) packed: Arc<OnceLock<PackedWeights>>,
}

impl Linear {
    /// Checks that the weight is `(out, in)` and the bias `(out)`, of one dtype and on one device.
    pub(crate) fn new(name: &str, weights: LinearWeights, out: usize, input: usize) -> Result<Self> {
        let LinearWeights { weight, bias } = weights;
        let check = |what: &str, tensor: &Tensor, want: &[usize]| match tensor.dims() == want {
            true => Ok(()),
            false => Err(Error::shape(format!("{name} {what}"), tensor.dims(), format!("{want:?}"))),
        };
        check("weight", &weight, &[out, input])?;
        if let Some(bias) = &bias {
            check("bias", bias, &[out])?;
            same_dtype_and_device(&format!("{name} bias"), bias, &weight)?;
        }
        Ok(Self { weight, bias, packed: Arc::default() })
    }

    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    pub(crate) fn weights(&self) -> LinearWeights {
        LinearWeights { weight: self.weight.clone(), bias: self.bias.clone() }
    }

    pub(crate) fn tracks_gradient(&self) -> bool {
        self.weight.track_op() || self.bias.as_ref().is_some_and(Tensor::track_op)
    }

    /// Whether the CPU kernel can multiply with these weights: they are never packed while they may change, and not where
    /// candle was built to use the system's or the vendor's matrix library.
    pub(crate) fn can_pack(&self) -> bool {
        let own = cfg!(not(any(feature = "accelerate", feature = "mkl")));
        own && self.weight.device().is_cpu() && self.weight.dtype() != DType::F64 && !self.tracks_gradient()
    }

    /// The packed weights; call only if [`can_pack`](Self::can_pack).
    pub(crate) fn packed(&self) -> Result<&PackedWeights> {
        match self.packed.get() {
            Some(packed) => Ok(packed),
            None => {
                let packed = pack(&[self])?;
                Ok(self.packed.get_or_init(|| packed))
            }
        }
    }

    /// xs `(b, s, in)` → `(b, s, out)` in `dtype`.
    pub(crate) fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        if self.can_pack() && !xs.track_op() {
            return multiply(xs, self.packed()?, dtype);
        }
        let (b, s, _) = xs.dims3()?;
        // Rounding to a half type once, after the bias, as a fused addmm does.
        let ys = self.product(xs)?;
        let ys = match &self.bias {
            Some(bias) => biased(ys, bias)?,
            None => ys,
        };
        Ok(ys.to_dtype(dtype)?.reshape((b, s, self.weight.dim(0)?))?)
    }

    /// As [`forward`](Self::forward) in the dtype of `xs`, the bias left to the next step where a GPU adds it there.
    pub(crate) fn forward_pending_bias(&self, xs: &Tensor) -> Result<PendingBias> {
        let Some(bias) =
            self.bias.as_ref().filter(|bias| super::fused::supports_fused(xs, &[Some(&self.weight), Some(*bias)]))
        else {
            return Ok(self.forward(xs, xs.dtype())?.into());
        };
        let (b, s, _) = xs.dims3()?;
        Ok(PendingBias { ys: self.product(xs)?.reshape((b, s, ()))?, bias: Some(bias.clone()) })
    }

    /// xs `(b, s, in)` → `(b · s, out)` without the bias, in the dtype in which products are summed.
    fn product(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, s, input) = xs.dims3()?;
        let wide = accumulate_dtype(&self.weight);
        let xs = xs.to_dtype(wide)?.contiguous()?.reshape((b * s, input))?;
        Ok(xs.matmul(&self.weight.to_dtype(wide)?.t()?)?)
    }

    /// xs `(b, s, in)` → `(b, s, out)`: what [`forward`](Self::forward) gives, activated and multiplied with what `gate`
    /// gives. `both` has the rows of `self` and of `gate` in one, and which of its halves `self` is. `None` if that takes
    /// more than a step after the products.
    #[cfg(feature = "encoder")]
    pub(crate) fn forward_activated(
        &self,
        xs: &Tensor,
        activation: crate::ops::Activation,
        gate: Option<&Self>,
        both: Option<(&Self, usize)>,
    ) -> Result<Option<Tensor>> {
        let parts = [Some(self), gate].into_iter().flatten();
        let tensors: Vec<_> = parts.flat_map(|part| [Some(&part.weight), part.bias.as_ref()]).collect();
        if !super::fused::supports_fused(xs, &tensors) {
            return Ok(None);
        }
        let (b, s, _) = xs.dims3()?;
        let out = self.weight.dim(0)?;
        let (ys, factors) = match both {
            Some((both, half)) => {
                let all = both.product(xs)?;
                (all.narrow(1, half * out, out)?, Some(all.narrow(1, (1 - half) * out, out)?))
            }
            None => (self.product(xs)?, gate.map(|gate| gate.product(xs)).transpose()?),
        };
        let step = Activated {
            activation,
            xs: &ys,
            bias: self.bias.as_ref(),
            gate: factors.as_ref(),
            gate_bias: gate.and_then(|gate| gate.bias.as_ref()),
        };
        let Some(ys) = step.fused()? else { return Ok(None) };
        Ok(Some(ys.reshape((b, s, out))?))
    }

    /// Rows `start .. start + len` of the projection: a view, which follows the weights if they change.
    pub(super) fn rows(&self, start: usize, len: usize) -> Result<Self> {
        let bias = self.bias.as_ref().map(|bias| bias.narrow(0, start, len)).transpose()?;
        Ok(Self { weight: self.weight.narrow(0, start, len)?, bias, packed: Arc::default() })
    }
}

/// What a projection makes, `(…, out)`, and the bias `(out)` that is still to be added to it, if any.
#[derive(Debug, Clone)]
pub(crate) struct PendingBias {
    pub ys: Tensor,
    pub bias: Option<Tensor>,
}

impl From<Tensor> for PendingBias {
    fn from(ys: Tensor) -> Self {
        Self { ys, bias: None }
    }
}

impl PendingBias {
    /// With its bias.
    pub(crate) fn apply(self) -> Result<Tensor> {
        match &self.bias {
            None => Ok(self.ys),
            Some(bias) => {
                let xs = self.ys.flatten_to(D::Minus2)?;
                Ok(biased(xs, bias)?.reshape(self.ys.shape())?)
            }
        }
    }

    /// The same numbers in another shape.
    pub(crate) fn map(self, reshape: impl FnOnce(Tensor) -> candle_core::Result<Tensor>) -> Result<Self> {
        Ok(Self { ys: reshape(self.ys)?, bias: self.bias })
    }
}

/// ys `(rows, out)` plus the bias `(out)`.
fn biased(ys: Tensor, bias: &Tensor) -> Result<Tensor> {
    let activation = crate::ops::Activation::Identity;
    let step = Activated { activation, xs: &ys, bias: Some(bias), gate: None, gate_bias: None };
    match step.fused()? {
        Some(ys) => Ok(ys),
        None => Ok(ys.broadcast_add(&broadcast_rows(&bias.to_dtype(ys.dtype())?, &ys)?)?),
    }
}

/// The dtype in which products are summed, and in which queries, keys and values are kept: on the CPU f32 for half
/// types, which its matmul would round at every step; GPUs accumulate in f32 by themselves.
pub(crate) fn accumulate_dtype(weight: &Tensor) -> DType {
    match weight.dtype() {
        DType::F16 | DType::BF16 if weight.device().is_cpu() => DType::F32,
        dtype => dtype,
    }
}

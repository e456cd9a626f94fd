//! A projection by tensors, which may be variables or belong to others too, and the product with them.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_attention_kernels::PackedWeights;
use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::ops::pack::{format_of, multiply, pack};
use crate::ops::packed::Packed;
use crate::ops::projection::{Projection, has_kernels};
use crate::ops::quantization::Quantization;
use crate::ops::trained_product::{check_product, trained};
use crate::tensor::{MapTensors, broadcast_rows};
use crate::weights::LinearWeights;

/// A product with tensors, on the CPU with a copy of them that is packed once.
pub(super) struct Dense {
    weights: LinearWeights,
    /// The weights as the CPU kernels read them, packed on first use.
    packed: OnceLock<Arc<PackedWeights>>,
}

impl Dense {
    /// The weight is `(out, in)` and the bias `(out)`.
    pub(super) fn new(weights: LinearWeights) -> Self {
        Self { weights, packed: OnceLock::new() }
    }

    /// Weights that track a gradient are never packed, because they may change.
    fn can_pack(&self) -> bool {
        has_kernels(self.like()) && !self.tracks_gradient()
    }

    fn shared_packed(&self) -> Result<&Arc<PackedWeights>> {
        if let Some(packed) = self.packed.get() {
            return Ok(packed);
        }
        let packed = Arc::new(pack(&[&self.weights], format_of(self.like().dtype()))?);
        Ok(self.packed.get_or_init(|| packed))
    }
}

impl Projection for Dense {
    fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        if self.can_pack() && !xs.track_op() {
            return multiply(xs, self.shared_packed()?, dtype);
        }
        let (b, s, _) = xs.dims3()?;
        // Round to a half type once, after the bias, as a fused `addmm` does.
        Ok(differentiable_product(xs, &self.weights)?.to_dtype(dtype)?.reshape((b, s, self.weights.weight.dim(0)?))?)
    }

    fn like(&self) -> &Tensor {
        &self.weights.weight
    }

    fn tracks_gradient(&self) -> bool {
        self.weights.tracks_gradient()
    }

    fn has_bias(&self) -> bool {
        self.weights.bias.is_some()
    }

    fn weights(&self) -> Result<LinearWeights> {
        Ok(self.weights.clone())
    }

    fn changing(&self) -> Result<Vec<Tensor>> {
        Ok(self.weights.to_tensors())
    }

    fn outputs(&self, outputs: Range<usize>) -> Result<Arc<dyn Projection>> {
        Ok(Arc::new(Self::new(self.weights.narrow(outputs.start, outputs.len())?)))
    }

    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Option<Arc<dyn Projection>>> {
        Ok(Some(Arc::new(Self::new(self.weights.map_tensors(f)?))))
    }

    fn to_packed(&self) -> Result<Option<Arc<dyn Projection>>> {
        if !self.can_pack() {
            return Ok(None);
        }
        let packed = Packed::new(self.shared_packed()?.clone(), self.has_bias(), self.like().dtype())?;
        Ok(Some(Arc::new(packed)))
    }

    fn to_quantized(&self, format: Quantization) -> Result<Option<Arc<dyn Projection>>> {
        if !format.fits(self.weights.weight.dim(1)?) {
            return self.to_packed();
        }
        Ok(Some(Arc::new(Packed::quantize(self.weights()?, format)?)))
    }

    fn tensors(&self) -> Option<&LinearWeights> {
        Some(&self.weights)
    }

    fn is_packed(&self) -> bool {
        self.packed.get().is_some()
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn packed(&self) -> Result<&PackedWeights> {
        Ok(self.shared_packed()?)
    }
}

/// `xs` `(b, s, in)` projected to `(b · s, out)` in [`accumulate_dtype`], with gradients.
pub(super) fn differentiable_product(xs: &Tensor, weights: &LinearWeights) -> Result<Tensor> {
    if let Some(ys) = trained(xs, weights)? {
        return Ok(ys);
    }
    let ys = product(xs, &weights.weight)?; // (b · s, out)
    Ok(match &weights.bias {
        Some(bias) => ys.broadcast_add(&broadcast_rows(&bias.to_dtype(ys.dtype())?, &ys)?)?,
        None => ys,
    })
}

/// `xs` `(b, s, in)` times `weight` `(out, in)` → `(b · s, out)`, in [`accumulate_dtype`].
fn product(xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (b, s, input) = xs.dims3()?;
    let wide = accumulate_dtype(weight);
    check_product(xs, weight)?;
    let xs = xs.to_dtype(wide)?.contiguous()?.reshape((b * s, input))?;
    Ok(xs.matmul(&weight.to_dtype(wide)?.t()?)?)
}

/// The dtype in which products are accumulated, and in which queries, keys and values are kept: on the CPU f32 for half
/// types, because candle's matmul would round each partial sum; GPUs accumulate half types in f32 themselves. `like`
/// has the dtype and the device of the weights.
pub fn accumulate_dtype(like: &Tensor) -> DType {
    match like.dtype() {
        DType::F16 | DType::BF16 if like.device().is_cpu() => DType::F32,
        dtype => dtype,
    }
}

//! Floating tensors that are added to the scores.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::{DenseMask, lowest_finite};
use crate::mask::dense::{MaskDims, MaskTensor};
use crate::mask::lowered::LoweredMask;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm};

/// A floating tensor that is added to the scores.
#[derive(Debug, Clone)]
pub(crate) struct Additive(MaskTensor);

impl Additive {
    pub(crate) fn new(mask: &Tensor, dims: MaskDims) -> Result<Self> {
        if !matches!(mask.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::dtype("additive mask", mask.dtype(), "f16, bf16, f32 or f64 (for booleans use `keep`)"));
        }
        Ok(Self(MaskTensor::new("additive", mask, dims)?))
    }
}

impl MaskTerm for Additive {
    fn check(&self, shape: AttnShape) -> Result<()> {
        self.0.check(shape)
    }

    fn dense(&self, _: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        let mask = &self.0.compact()?;
        // Which keys are hidden has no derivative. Not `gt`, which would hide a NaN.
        let keep = mask.detach().le(lowest_finite(mask.dtype()))?.eq(0f64)?;
        let bias = keep.where_cond(mask, &mask.zeros_like()?)?.to_dtype(dtype)?;
        Ok(DenseMask { keep: Some(keep.to_device(device)?), bias: Some(bias.to_device(device)?) })
    }

    fn dense_dims(&self, _: &MaskCall) -> [usize; 4] {
        self.0.dims4()
    }

    /// One tensor instead of two: kernels hide the keys whose bias is at or below the lowest finite f32.
    fn lower(&self, lowered: &mut LoweredMask, _: &MaskCall, device: &Device) -> Result<()> {
        let mask = self.0.compact()?.to_device(device)?;
        lowered.bias.push(match mask.dtype() {
            DType::F32 => mask,
            dtype => {
                let hidden = mask.le(lowest_finite(dtype))?;
                let mask = mask.to_dtype(DType::F32)?;
                hidden.where_cond(&Tensor::full(f32::MIN, mask.shape(), device)?, &mask)?
            }
        });
        Ok(())
    }

    fn of_queries(&self, queries: Range<usize>) -> Result<Option<Arc<dyn MaskTerm>>> {
        Ok(Some(Arc::new(Self(self.0.of_queries(queries)?))))
    }

    fn of_heads(&self, heads: &[usize]) -> Result<Option<Arc<dyn MaskTerm>>> {
        Ok(Some(Arc::new(Self(self.0.of_heads(heads)?))))
    }

    fn tracks_gradient(&self) -> bool {
        self.0.tensor.track_op()
    }
}

impl fmt::Display for Additive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.0.name(), self.0.given_dims())
    }
}

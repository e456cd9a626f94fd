//! Floating tensors that are added to the scores.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::{DenseMask, lowest_finite};
use crate::mask::lowered::LoweredMask;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm};
use crate::tensor::select;

/// A floating tensor that broadcasts to `(b, h, s_q, s_kv)` and is added to the scores.
#[derive(Debug, Clone)]
pub(crate) struct Additive(Tensor);

impl Additive {
    pub(crate) fn new(mask: &Tensor) -> Result<Self> {
        if !matches!(mask.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::dtype("additive mask", mask.dtype(), "f16, bf16, f32 or f64 (for booleans use `keep`)"));
        }
        if mask.rank() > 4 {
            return Err(Error::shape("additive mask", mask.dims(), "a shape that broadcasts to (b, h, s_q, s_kv)"));
        }
        Ok(Self(mask.clone()))
    }

    /// The shape with ones before it, as broadcasting reads it.
    fn dims4(&self) -> [usize; 4] {
        let dims = self.0.dims();
        std::array::from_fn(|i| (i + dims.len()).checked_sub(4).map_or(1, |i| dims[i]))
    }

    /// Applies `cut` to the dimension that stands `from_end` before the last one, if it is there and not shared.
    fn cut(&self, from_end: usize, cut: impl Fn(usize) -> Result<Tensor>) -> Result<Option<Arc<dyn MaskTerm>>> {
        let own = self.dims4()[3 - from_end] > 1;
        let mask = if own { cut(self.0.rank() - 1 - from_end)? } else { self.0.clone() };
        Ok(Some(Arc::new(Self(mask))))
    }
}

impl MaskTerm for Additive {
    fn check(&self, shape: AttnShape) -> Result<()> {
        let want = shape.dims();
        if self.dims4().iter().zip(want).all(|(&n, want)| n == want || n == 1) {
            return Ok(());
        }
        Err(Error::shape("additive mask", self.0.dims(), format!("a shape that broadcasts to {want:?}")))
    }

    fn dense(&self, _: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        let (mask, dims) = (&self.0, self.dims4());
        // Which keys are hidden has no derivative. Not `gt`, which would hide a NaN.
        let keep = mask.detach().le(lowest_finite(mask.dtype()))?.eq(0f64)?;
        let bias = keep.where_cond(mask, &mask.zeros_like()?)?.to_dtype(dtype)?;
        Ok(DenseMask {
            keep: Some(keep.to_device(device)?.reshape(&dims[..])?),
            bias: Some(bias.to_device(device)?.reshape(&dims[..])?),
        })
    }

    fn dense_dims(&self, _: &MaskCall) -> [usize; 4] {
        self.dims4()
    }

    /// One tensor instead of two: kernels hide the keys whose bias is at or below the lowest finite f32.
    fn lower(&self, lowered: &mut LoweredMask, _: &MaskCall, device: &Device) -> Result<()> {
        let mask = self.0.to_device(device)?;
        let bias = match mask.dtype() {
            DType::F32 => mask,
            dtype => {
                let hidden = mask.le(lowest_finite(dtype))?;
                let mask = mask.to_dtype(DType::F32)?;
                hidden.where_cond(&Tensor::full(f32::MIN, mask.shape(), device)?, &mask)?
            }
        };
        lowered.bias.push(bias.reshape(&self.dims4()[..])?);
        Ok(())
    }

    fn of_queries(&self, queries: Range<usize>) -> Result<Option<Arc<dyn MaskTerm>>> {
        self.cut(1, |dim| Ok(self.0.narrow(dim, queries.start, queries.len())?))
    }

    fn of_heads(&self, heads: &[usize]) -> Result<Option<Arc<dyn MaskTerm>>> {
        self.cut(2, |dim| select(&self.0, heads, dim))
    }

    fn tracks_gradient(&self) -> bool {
        self.0.track_op()
    }
}

impl fmt::Display for Additive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "additive{:?}", self.0.dims())
    }
}

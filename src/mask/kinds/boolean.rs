//! Boolean tensors: `keep` and `exclude` masks.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::mask::dense::DenseMask;
use crate::mask::dense::{MaskDims, MaskTensor};
use crate::mask::shape::{AttnShape, check_integers, comparable};
use crate::mask::term::{MaskCall, MaskTerm};

/// What a nonzero element of a boolean mask means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polarity {
    /// The key is visible.
    Keep,
    /// The key is hidden.
    Exclude,
}

impl Polarity {
    /// The name of the kind of mask.
    fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Exclude => "exclude",
        }
    }
}

/// A tensor of booleans.
#[derive(Debug, Clone)]
pub(crate) struct Boolean {
    mask: MaskTensor,
    polarity: Polarity,
}

impl Boolean {
    pub(crate) fn new(mask: &Tensor, polarity: Polarity, dims: MaskDims) -> Result<Self> {
        check_integers(&format!("{} mask", polarity.name()), mask)?;
        Ok(Self { mask: MaskTensor::new(polarity.name(), &comparable(mask)?, dims)?, polarity })
    }
}

impl MaskTerm for Boolean {
    fn check(&self, shape: AttnShape) -> Result<()> {
        self.mask.check(shape)
    }

    fn dense(&self, _: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        // Compared before it is moved: not every device has every dtype.
        let mask = self.mask.compact()?;
        let keep = match self.polarity {
            Polarity::Keep => mask.ne(0f64)?,
            Polarity::Exclude => mask.eq(0f64)?,
        };
        Ok(DenseMask::keep(keep.to_device(device)?))
    }

    fn dense_dims(&self, _: &MaskCall) -> [usize; 4] {
        self.mask.dims4()
    }

    fn of_queries(&self, queries: Range<usize>) -> Result<Option<Arc<dyn MaskTerm>>> {
        Ok(Some(Arc::new(Self { mask: self.mask.of_queries(queries)?, polarity: self.polarity })))
    }

    fn of_heads(&self, heads: &[usize]) -> Result<Option<Arc<dyn MaskTerm>>> {
        Ok(Some(Arc::new(Self { mask: self.mask.of_heads(heads)?, polarity: self.polarity })))
    }

    fn adds_to_scores(&self) -> bool {
        false
    }
}

impl fmt::Display for Boolean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.mask.name(), self.mask.given_dims())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_that_gpus_cannot_compare_become_i64() {
        let mask = Tensor::new(&[[3i64, 0, 3], [0, 1, 1]], &Device::Cpu).unwrap();
        for (dtype, want) in [(DType::I16, DType::I64), (DType::I32, DType::I64), (DType::U8, DType::U8)] {
            let mask = Boolean::new(&mask.to_dtype(dtype).unwrap(), Polarity::Keep, MaskDims::Keys).unwrap();
            assert_eq!(mask.mask.tensor.dtype(), want);
        }
    }
}

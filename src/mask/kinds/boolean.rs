//! Boolean tensors: `keep` and `exclude` masks.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::DenseMask;
use crate::mask::shape::{AttnShape, check_integers, comparable};
use crate::mask::term::{MaskCall, MaskTerm};
use crate::tensor::select;

/// What a nonzero element of a boolean mask means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polarity {
    /// The key is visible.
    Keep,
    /// The key is hidden.
    Exclude,
}

impl Polarity {
    /// The name of the tensor in error messages.
    fn tensor_name(self) -> &'static str {
        match self {
            Self::Keep => "keep mask",
            Self::Exclude => "exclude mask",
        }
    }
}

/// A tensor of booleans: `(b|1, s_kv)`, `(b|1, s_q|1, s_kv|1)` or `(b|1, h|1, s_q|1, s_kv|1)`.
#[derive(Debug, Clone)]
pub(crate) struct Boolean {
    mask: Tensor,
    polarity: Polarity,
}

impl Boolean {
    pub(crate) fn new(mask: &Tensor, polarity: Polarity) -> Result<Self> {
        let name = polarity.tensor_name();
        check_integers(name, mask)?;
        if !(2..=4).contains(&mask.rank()) {
            return Err(Error::shape(name, mask.dims(), "(b, s_kv), (b, s_q, s_kv) or (b, h, s_q, s_kv)"));
        }
        Ok(Self { mask: comparable(mask)?, polarity })
    }

    /// The shape with the dimensions that it leaves out, size 1.
    fn dims4(&self) -> [usize; 4] {
        match *self.mask.dims() {
            [b, s_kv] => [b, 1, 1, s_kv],
            [b, s_q, s_kv] => [b, 1, s_q, s_kv],
            ref dims => std::array::from_fn(|i| dims[i]),
        }
    }

    fn with_mask(&self, mask: Tensor) -> Arc<dyn MaskTerm> {
        Arc::new(Self { mask, polarity: self.polarity })
    }
}

impl MaskTerm for Boolean {
    fn check(&self, shape: AttnShape) -> Result<()> {
        let AttnShape { b, s_q, s_kv, .. } = shape;
        let or_one = self.dims4().iter().zip(shape.dims()).all(|(&n, want)| n == want || n == 1);
        // Only the keys of a 2-D mask may not be shared: a mask `(b, 1)` is more likely one with a dimension missing.
        let keys = self.mask.rank() > 2 || self.mask.dims()[1] == s_kv;
        if or_one && keys {
            return Ok(());
        }
        let expected = format!("{:?}, {:?} or {:?}", [b, s_kv], [b, s_q, s_kv], shape.dims());
        Err(Error::shape(self.polarity.tensor_name(), self.mask.dims(), expected))
    }

    fn dense(&self, _: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        // Compared before it is moved: not every device has every dtype.
        let keep = match self.polarity {
            Polarity::Keep => self.mask.ne(0f64)?,
            Polarity::Exclude => self.mask.eq(0f64)?,
        };
        Ok(DenseMask::keep(keep.to_device(device)?.reshape(&self.dims4()[..])?))
    }

    fn dense_dims(&self, _: &MaskCall) -> [usize; 4] {
        self.dims4()
    }

    fn of_queries(&self, queries: Range<usize>) -> Result<Option<Arc<dyn MaskTerm>>> {
        let dim = self.mask.rank() - 2;
        let shared = dim == 0 || self.mask.dim(dim)? == 1;
        let mask = if shared { self.mask.clone() } else { self.mask.narrow(dim, queries.start, queries.len())? };
        Ok(Some(self.with_mask(mask)))
    }

    fn of_heads(&self, heads: &[usize]) -> Result<Option<Arc<dyn MaskTerm>>> {
        let shared = self.dims4()[1] == 1;
        Ok(Some(self.with_mask(if shared { self.mask.clone() } else { select(&self.mask, heads, 1)? })))
    }

    fn adds_to_scores(&self) -> bool {
        false
    }
}

impl fmt::Display for Boolean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.polarity {
            Polarity::Keep => "keep",
            Polarity::Exclude => "exclude",
        };
        write!(f, "{name}{:?}", self.mask.dims())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_that_gpus_cannot_compare_become_i64() {
        let mask = Tensor::new(&[[3i64, 0, 3], [0, 1, 1]], &Device::Cpu).unwrap();
        for (dtype, want) in [(DType::I16, DType::I64), (DType::I32, DType::I64), (DType::U8, DType::U8)] {
            let mask = Boolean::new(&mask.to_dtype(dtype).unwrap(), Polarity::Keep).unwrap();
            assert_eq!(mask.mask.dtype(), want);
        }
    }
}

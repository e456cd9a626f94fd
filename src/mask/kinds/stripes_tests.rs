//! A kind of mask for tests, with the required methods only and no support in any kernel. It shows that a new kind is
//! right on every backend from the start.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::DenseMask;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm};

/// Hides every third key before or after a query, and adds to the scores of the others, differently in each head.
#[derive(Debug)]
pub(crate) struct Stripes {
    pub heads: usize,
}

impl Stripes {
    /// The bias of the score of a query of head `h` with the key `distance` after it; `None` hides the key.
    pub(crate) fn bias(h: usize, distance: i64) -> Option<f64> {
        ((distance + h as i64).rem_euclid(3) != 0).then_some(0.25 * h as f64 - 0.125 * distance as f64)
    }
}

impl MaskTerm for Stripes {
    fn check(&self, shape: AttnShape) -> Result<()> {
        if self.heads == shape.h {
            return Ok(());
        }
        Err(Error::value("the number of striped heads", self.heads, format!("{}, the number of heads", shape.h)))
    }

    fn dense(&self, call: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        let AttnShape { b, h, s_q, s_kv } = call.shape;
        let (mut keep, mut bias) = (Vec::new(), Vec::new());
        for (b, h) in (0..b).flat_map(|b| (0..h).map(move |h| (b, h))) {
            for (i, j) in (0..s_q).flat_map(|i| (0..s_kv).map(move |j| (i, j))) {
                let added = Self::bias(h, j as i64 - call.start(b) - i as i64);
                keep.push(u8::from(added.is_some()));
                bias.push(added.unwrap_or(0.0));
            }
        }
        Ok(DenseMask {
            keep: Some(Tensor::from_vec(keep, &call.shape.dims(), device)?),
            bias: Some(Tensor::from_vec(bias, &call.shape.dims(), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?),
        })
    }

    fn describe(&self) -> String {
        format!("stripes({} heads)", self.heads)
    }
}

//! Limits on what goes into projections and what comes out of them, both of which are clamped (Gemma 4).
//!
//! They are beside the projections: a low-rank change, a product in few bits or a module of the caller is inside of
//! them, as it is in the layers whose checkpoints have limits.

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::error::{Error, Result};
use crate::weights::{LIMITS, Parameters};

/// The index of the output projection among [`LIMITS`], after those of queries, keys and values.
pub(super) const OUTPUT: usize = 3;

impl MultiHeadAttention {
    /// The input of a projection within its limits, or as it is if there are none. Differentiable.
    pub(super) fn limited_input(&self, projection: usize, xs: &Tensor) -> Result<Tensor> {
        let [min, max, ..] = LIMITS[projection];
        self.limited(xs, [min, max])
    }

    /// The same of the output of a projection.
    pub(super) fn limited_output(&self, projection: usize, ys: &Tensor) -> Result<Tensor> {
        let [.., min, max] = LIMITS[projection];
        self.limited(ys, [min, max])
    }

    fn limited(&self, xs: &Tensor, names: [&str; 2]) -> Result<Tensor> {
        if !self.capabilities.has_limits {
            return Ok(xs.clone());
        }
        let [Some(min), Some(max)] = names.map(|name| self.parameters.get(name)) else { return Ok(xs.clone()) };
        let [min, max] = [min.to_dtype(xs.dtype())?, max.to_dtype(xs.dtype())?];
        Ok(xs.broadcast_maximum(&min)?.broadcast_minimum(&max)?)
    }
}

/// Checks that limits are numbers, the lower one first. Infinite ones limit nothing.
pub(super) fn check_limits(parameters: &Parameters) -> Result<()> {
    for pair in LIMITS.as_flattened().chunks_exact(2) {
        let [Some(min), Some(max)] = [0, 1].map(|i| parameters.get(pair[i])) else { continue };
        let number = |limit: &Tensor| limit.to_dtype(DType::F64)?.to_scalar::<f64>();
        let (min, max) = (number(min)?, number(max)?);
        if min.partial_cmp(&max).is_none_or(|order| order.is_gt()) {
            let what = format!("the limits `{}` and `{}`", pair[0], pair[1]);
            return Err(Error::value(what, format!("{min} and {max}"), "two numbers, the lower one first"));
        }
    }
    Ok(())
}

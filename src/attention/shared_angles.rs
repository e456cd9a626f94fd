//! The rotations of a batch's tokens, which all layers of a model turn by.

use std::cell::RefCell;

use candle_core::{DType, Device, Tensor};

use super::ragged::lengths;
use crate::error::Result;
use crate::position::Rotary;

/// The texts of a batch, one after the other, each from position 0, and the cosines and sines made for them so far.
#[derive(Debug, Default)]
pub(crate) struct SharedAngles(RefCell<Vec<Made>>);

#[derive(Debug)]
struct Made {
    rotary: Rotary,
    head_dim: usize,
    dtype: DType,
    angles: [Tensor; 2],
}

impl SharedAngles {
    /// Those of `rotary`, `(1, tokens, 1, pairs)`. `starts`: where each text starts and the last one ends, the same in all
    /// calls, as is `device`.
    pub(super) fn of(
        &self,
        rotary: &Rotary,
        starts: &[usize],
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let mut all = self.0.borrow_mut();
        let fits = |made: &&Made| (&made.rotary, made.head_dim, made.dtype) == (rotary, head_dim, dtype);
        if let Some(made) = all.iter().find(fits) {
            return Ok(made.angles.clone());
        }
        let angles = rotary.angles_of_texts(lengths(starts), head_dim, dtype, device)?;
        all.push(Made { rotary: rotary.clone(), head_dim, dtype, angles: angles.clone() });
        Ok(angles)
    }
}

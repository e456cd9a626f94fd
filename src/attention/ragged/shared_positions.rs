//! What the positions of a batch's tokens mean to all layers of a model: rotations and biases.

use std::cell::RefCell;

use candle_core::{DType, Device, Tensor, TensorId};

use crate::attention::bias::relative_bias;
use crate::attention::ragged::lengths;
use crate::error::Result;
use crate::position::{RelativeBuckets, Rotary};

/// The texts of a batch, one after the other, each from position 0, and what was made for them so far.
#[derive(Debug, Default)]
pub(crate) struct SharedPositions {
    angles: RefCell<Vec<Angles>>,
    bias: RefCell<SharedBias>,
}

#[derive(Debug)]
struct Angles {
    rotary: Rotary,
    head_dim: usize,
    dtype: DType,
    angles: [Tensor; 2],
}

impl SharedPositions {
    /// Cosines and sines of `rotary`, `(1, tokens, 1, pairs)`. `starts`: where each text starts and the last one ends, the
    /// same in all calls, as is `device`.
    pub(crate) fn angles(
        &self,
        rotary: &Rotary,
        starts: &[usize],
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let mut all = self.angles.borrow_mut();
        let fits = |made: &&Angles| (&made.rotary, made.head_dim, made.dtype) == (rotary, head_dim, dtype);
        if let Some(made) = all.iter().find(fits) {
            return Ok(made.angles.clone());
        }
        let angles = rotary.angles_of_texts(lengths(starts), head_dim, dtype, device)?;
        all.push(Angles { rotary: rotary.clone(), head_dim, dtype, angles: angles.clone() });
        Ok(angles)
    }

    /// See [`SharedBias::of`].
    pub(crate) fn bias(&self, relative: &RelativeBuckets, table: &Tensor, length: usize) -> Result<Tensor> {
        self.bias.borrow_mut().of(relative, table, length)
    }
}

/// The biases of a table, made once for the layers that have it in common.
#[derive(Debug, Default)]
pub(crate) struct SharedBias {
    /// The table, the length of the longest row, and the biases.
    made: Option<(TensorId, usize, Tensor)>,
}

impl SharedBias {
    /// The biases `(1, h, length, length)` of a table `(num_buckets, h)`, in f32.
    pub(crate) fn of(&mut self, relative: &RelativeBuckets, table: &Tensor, length: usize) -> Result<Tensor> {
        if let Some((id, made_for, bias)) = &self.made
            && (*id, *made_for) == (table.id(), length)
        {
            return Ok(bias.clone());
        }
        let bias = relative_bias(relative, &table.to_dtype(DType::F32)?, &[0], length, length)?;
        self.made = Some((table.id(), length, bias.clone()));
        Ok(bias)
    }
}

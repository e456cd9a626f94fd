//! Weights that are the same in two models, held once.

use candle_core::Tensor;

use crate::error::Result;
use crate::tensor::freeze::same_elements;

/// What takes over weights of another one of its kind where the bits are the same: both then hold one copy.
pub trait ShareWeights: Sized {
    /// Puts the tensors of `other` in the place of equal ones.
    fn share_weights(&mut self, other: &Self) -> Result<()>;
}

impl ShareWeights for Tensor {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        if !self.track_op() && !other.track_op() && same_elements(self, other)? {
            *self = other.clone();
        }
        Ok(())
    }
}

impl<T: ShareWeights> ShareWeights for Option<T> {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (Some(own), Some(other)) => own.share_weights(other),
            _ => Ok(()),
        }
    }
}

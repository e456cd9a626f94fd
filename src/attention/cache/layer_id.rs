//! Which layer made the keys in a cache, and with which weights.

use candle_core::TensorId;

use crate::attention::MultiHeadAttention;
use crate::error::{Error, Result};

/// A layer with its weights of a moment. Clones and frozen copies of a layer are the same layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::attention) struct LayerId {
    pub layer: TensorId,
    /// Other ones after each change of a variable.
    pub weights: TensorId,
}

impl LayerId {
    /// Checks that the keys in a cache `what` are those of this layer with these weights.
    pub(super) fn check(self, made_by: Option<Self>, what: &str, expected: &str) -> Result<()> {
        let found = match made_by {
            Some(id) if id == self => return Ok(()),
            Some(id) if id.layer == self.layer => "one of this layer with other weights than it has now",
            Some(_) => "one of another layer",
            None => "one with keys from `KvCache::append`",
        };
        Err(Error::value(what, found, expected))
    }
}

impl MultiHeadAttention {
    /// The layer with its present weights. Variables are compared with the last frozen copy, element by element,
    /// because candle does not count their changes.
    pub(in crate::attention) fn present_id(&self) -> Result<LayerId> {
        Ok(if self.tracks_gradient() { self.frozen()?.id } else { self.id })
    }
}

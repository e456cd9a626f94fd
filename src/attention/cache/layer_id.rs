//! Which layer made the keys in a cache, and with which weights.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{Tensor, TensorId};

use crate::attention::MultiHeadAttention;
use crate::error::{Error, Result};
use crate::tensor::same_elements;
use crate::weights::HeadKind;

/// A layer with its weights of a moment. Clones and frozen copies of a layer are the same layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::attention) struct LayerId {
    layer: TensorId,
    /// The id of the weights: another one after each change of a variable.
    weights: TensorId,
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

/// The identity of a layer and of its present weights, by which caches know it. Clones of the layer share it.
///
/// Variables are compared element by element with copies of a call before, as
/// [`Freeze::freeze`](crate::tensor::Freeze) does it and for its reason: candle does not count changes. Here only what
/// keys and values are made with is compared, because it is at each call.
#[derive(Clone)]
pub(in crate::attention) struct Identity {
    /// The identity of a layer with fixed weights.
    id: LayerId,
    /// Weights that may change, as they were last.
    last: Arc<Mutex<Option<Known>>>,
}

/// Copies of weights, and their id.
struct Known {
    copies: Vec<Tensor>,
    weights: TensorId,
}

impl Identity {
    /// The identity of a new layer, whose projections have this id.
    pub(in crate::attention) fn new(projections: TensorId) -> Self {
        Self { id: LayerId { layer: projections, weights: projections }, last: Arc::default() }
    }

    fn last(&self) -> MutexGuard<'_, Option<Known>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MultiHeadAttention {
    /// The layer with its present weights.
    pub(in crate::attention) fn present_id(&self) -> Result<LayerId> {
        let id = self.identity.id;
        let Some(now) = self.changing_weights()? else { return Ok(id) };
        // Before the lock below, which a thread that freezes the layer takes while it holds this one.
        let frozen = self.frozen.last();
        let mut last = self.identity.last();
        if let Some(known) = &*last
            && same(&known.copies, &now)?
        {
            return Ok(LayerId { weights: known.weights, ..id });
        }
        let copies: Vec<Tensor> =
            now.iter().map(|tensor| tensor.detach().force_contiguous()).collect::<candle_core::Result<_>>()?;
        let weights = match frozen {
            Some(frozen) if same(&frozen.key_weights()?, &now)? => frozen.identity.id.weights,
            _ => copies[0].id(),
        };
        *last = Some(Known { copies, weights });
        Ok(LayerId { weights, ..id })
    }

    /// The identity of a copy with the present weights, which are fixed; `copy` is the one that it has by itself.
    pub(in crate::attention) fn identity_of_copy(&self, copy: Identity) -> Result<Identity> {
        let weights = match self.changing_weights()? {
            Some(now) => match &*self.identity.last() {
                Some(known) if same(&known.copies, &now)? => known.weights,
                _ => copy.id.weights,
            },
            None => self.identity.id.weights,
        };
        Ok(Identity { id: LayerId { weights, ..self.identity.id }, ..copy })
    }

    /// The identity of a copy with other weights, whose projections have this id.
    pub(in crate::attention) fn identity_with_other_weights(&self, projections: TensorId) -> Identity {
        Identity { id: LayerId { layer: self.identity.id.layer, weights: projections }, last: Arc::default() }
    }

    /// The weights that keys and values are made with, if they may change.
    fn changing_weights(&self) -> Result<Option<Vec<Tensor>>> {
        // Weights that cannot change may have to be unpacked.
        let weights = if self.tracks_gradient() { self.key_weights()? } else { Vec::new() };
        Ok(weights.iter().any(Tensor::track_op).then_some(weights))
    }

    fn key_weights(&self) -> Result<Vec<Tensor>> {
        let table = self.config.parameters();
        let key_rows = table.iter().filter(|row| row.heads == HeadKind::KeyValue);
        let parameters = key_rows.filter_map(|row| self.parameters.get(row.name)).cloned();
        Ok(self.qkv.cached_weights()?.into_iter().chain(parameters).collect())
    }
}

/// Whether weights have the same bits.
fn same(a: &[Tensor], b: &[Tensor]) -> Result<bool> {
    for (a, b) in a.iter().zip(b) {
        if !same_elements(a, b)? {
            return Ok(false);
        }
    }
    Ok(true)
}

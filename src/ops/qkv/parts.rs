//! The projections of queries, keys, values and gate one by one, as values: read out, and put in the place of others.

use std::sync::Arc;

use candle_core::Tensor;

use super::{GATE, Layers, NAMES, Qkv, Weights, no_projections};
use crate::error::{Error, Result};
use crate::ops::linear::{Linear, empty};
use crate::tensor::MapTensors;

impl Qkv {
    /// The projection of queries (0), keys (1), values (2) or the gate (3) as a layer that shares its weights.
    pub(crate) fn part(&self, i: usize) -> Result<Linear> {
        match &self.weights {
            Weights::Layers(layers) if layers.unordered.is_some() => {
                let expected = "fixed ones, as those of a frozen layer: these are reordered at each call";
                Err(Error::value(NAMES[i], "a part of variables in another order", expected))
            }
            Weights::Layers(layers) => Ok(layers.parts[i].clone()),
            Weights::Packed { has_bias, like, exact } => {
                Linear::from_packed(self.packed.clone(), self.outputs(i), has_bias[i], like, *exact)
            }
            Weights::Latent(latent) => latent.gate().filter(|_| i == GATE).cloned().ok_or_else(no_projections),
        }
    }

    /// One projection of queries, keys and values, if they are stored or packed so.
    pub(crate) fn all_parts(&self) -> Result<Option<Linear>> {
        match &self.weights {
            Weights::Layers(layers) => Ok(layers.stored.clone()),
            Weights::Packed { has_bias, like, exact } if has_bias[..GATE].iter().all(|bias| *bias == has_bias[0]) => {
                let all = 0..self.outputs(GATE).start;
                Linear::from_packed(self.packed.clone(), all, has_bias[0], like, *exact).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The same projections with `projection`, whose sizes fit, in the place of some.
    pub(crate) fn with_parts(&self, replaced: &[usize], projection: &Linear) -> Result<Self> {
        if let Weights::Latent(latent) = &self.weights {
            let weights = Weights::Latent(Box::new(latent.with_gate(projection.clone())));
            return Ok(Self { weights, ..self.clone() });
        }
        let part = |i| if replaced.contains(&i) { Ok(projection.clone()) } else { self.part(i) };
        let parts = (0..self.parts()).map(part).collect::<Result<_>>()?;
        self.with_linears(parts, None)
    }

    /// The same projections with `projection`, whose sizes fit, in the place of those of queries, keys and values.
    pub(crate) fn with_all_parts(&self, projection: Linear) -> Result<Self> {
        let part = |i| if i < GATE { projection.outputs(self.outputs(i)) } else { self.part(i) };
        let parts = (0..self.parts()).map(part).collect::<Result<_>>()?;
        self.with_linears(parts, Some(projection))
    }

    fn with_linears(&self, parts: Vec<Linear>, stored: Option<Linear>) -> Result<Self> {
        let id = empty(self.like().dtype())?.id();
        let weights = Weights::Layers(Box::new(Layers { parts, stored, unordered: None }));
        Ok(Self { weights, packed: Arc::default(), id, rows: self.rows, h_kv: self.h_kv })
    }

    /// Whether all projections of queries, keys and values are weights of their own and nothing beside them.
    pub(crate) fn is_plain(&self) -> bool {
        match &self.weights {
            Weights::Layers(layers) => layers.parts.iter().all(Linear::is_plain),
            Weights::Packed { .. } | Weights::Latent(_) => true,
        }
    }

    /// [`MapTensors`] of projections that are not [plain](Self::is_plain), or in few bits.
    pub(crate) fn map_parts(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        // What is packed in one cannot change.
        if let Weights::Packed { .. } = &self.weights {
            return Ok(Self { id: empty(self.like().dtype())?.id(), ..self.clone() });
        }
        let stored = match &self.weights {
            Weights::Layers(layers) => layers.stored.map_tensors(f)?,
            _ => None,
        };
        let mut parts = Vec::with_capacity(self.parts());
        for i in 0..self.parts() {
            parts.push(match stored.as_ref().filter(|_| i < GATE) {
                Some(stored) => stored.outputs(self.outputs(i))?,
                None => self.part(i)?.map_tensors(f)?,
            });
        }
        self.with_linears(parts, stored)
    }
}

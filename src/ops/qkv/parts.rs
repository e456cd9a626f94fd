//! The projections of queries, keys, values and gate one by one, as values: read out, and put in the place of others.

use std::sync::Arc;

use candle_core::Tensor;

use super::{GATE, NAMES, Qkv, Weights};
use crate::error::{Error, Result};
use crate::ops::linear::Linear;
use crate::ops::packed::empty;
use crate::tensor::MapTensors;

impl Qkv {
    /// The projection of queries (0), keys (1), values (2) or the gate (3) as a layer that shares its weights.
    pub(crate) fn part(&self, i: usize) -> Result<Linear> {
        if self.weights.are_reordered() {
            let expected = "fixed ones, as those of a frozen layer: these are reordered at each call";
            return Err(Error::value(NAMES[i], "a part of variables in another order", expected));
        }
        self.own_part(i).cloned()
    }

    /// One projection of queries, keys and values, if they are stored or packed so.
    pub(crate) fn all_parts(&self) -> Result<Option<Linear>> {
        let Weights::Packed(parts) = &self.weights else { return Ok(self.weights.all().cloned()) };
        let has_bias = parts[0].has_bias();
        if parts[..GATE].iter().any(|part| part.has_bias() != has_bias) {
            return Ok(None);
        }
        let all = 0..self.outputs(GATE).start;
        let mut linear = Linear::from_packed(self.packed()?.clone(), all, has_bias, self.like().dtype())?;
        if parts[0].is_exact() {
            linear.set_exact();
        }
        Ok(Some(linear))
    }

    /// These projections with `projection`, whose sizes fit, in the place of some.
    pub(crate) fn with_parts(&self, replaced: &[usize], projection: &Linear) -> Result<Self> {
        if let Weights::Latent(latent) = &self.weights {
            let weights = Weights::Latent(Box::new(latent.with_gate(projection.clone())));
            return Ok(Self { weights, ..self.clone() });
        }
        let part = |i| if replaced.contains(&i) { Ok(projection.clone()) } else { self.part(i) };
        let parts = (0..self.linears().count()).map(part).collect::<Result<_>>()?;
        self.with_linears(parts, None)
    }

    /// These projections with `projection`, whose sizes fit, in the place of those of queries, keys and values.
    pub(crate) fn with_all_parts(&self, projection: Linear) -> Result<Self> {
        let part = |i| if i < GATE { projection.outputs(self.outputs(i)) } else { self.part(i) };
        let parts = (0..self.linears().count()).map(part).collect::<Result<_>>()?;
        self.with_linears(parts, Some(projection))
    }

    fn with_linears(&self, parts: Vec<Linear>, all: Option<Linear>) -> Result<Self> {
        let id = empty(self.like().dtype())?.id();
        Ok(Self { weights: Weights::new(parts, all), packed: Arc::default(), id, rows: self.rows, h_kv: self.h_kv })
    }

    /// Whether all projections of queries, keys and values are weights of their own and nothing beside them.
    pub(crate) fn is_plain(&self) -> bool {
        self.weights.are_packed() || self.weights.parts().iter().all(Linear::is_plain)
    }

    /// [`MapTensors`] of projections that are not [plain](Self::is_plain), or in few bits.
    pub(crate) fn map_parts(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        // Weights that are packed in one cannot change.
        if self.weights.are_packed() {
            return Ok(Self { id: empty(self.like().dtype())?.id(), ..self.clone() });
        }
        let all = self.weights.all().cloned().map_tensors(f)?;
        let mut parts = Vec::new();
        for i in 0..self.linears().count() {
            parts.push(match all.as_ref().filter(|_| i < GATE) {
                Some(all) => all.outputs(self.outputs(i))?,
                None => self.part(i)?.map_tensors(f)?,
            });
        }
        self.with_linears(parts, all)
    }
}

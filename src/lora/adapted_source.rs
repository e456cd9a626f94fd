//! `AdaptedSource`: the weights of a base model with an adapter merged.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::checkpoint::{WeightSource, below, wrong_shape};
use crate::error::{Error, Result};
use crate::lora::adapter::LoraAdapter;
use crate::lora::low_rank::LowRank;

/// A source of weights with an adapter merged: [`LoraAdapter::apply`] makes it.
#[derive(Debug, Clone)]
pub struct AdaptedSource<S> {
    base: S,
    merged: Arc<Merged>,
}

/// An adapter by the names of the tensors that it changes in the checkpoint.
#[derive(Debug)]
struct Merged {
    changes: BTreeMap<String, LowRank>,
    whole: BTreeMap<String, Tensor>,
    tracks_gradient: bool,
    device: Option<Device>,
}

impl LoraAdapter {
    /// The weights of `base` with this adapter merged. `base` stays as it is: what is loaded from it has the original
    /// bits, whatever has been merged meanwhile.
    ///
    /// Weights are merged when they are read: `W + scale · B A` in f32 (f64 for f64), rounded once to the dtype of the
    /// source.
    ///
    /// The names of an adapter are those of the base model. Where the checkpoint has them below a prefix, such as `bert.`
    /// in one with a head, or the adapter has them so, the prefix is added or removed.
    ///
    /// # Errors
    /// A tensor of the adapter that belongs to no weight of the checkpoint, or does not fit its shape; both are named.
    pub fn apply<S: WeightSource>(&self, base: S) -> Result<AdaptedSource<S>> {
        let root = base.root();
        let shift = Shift::find(self, &root)?;
        let mut changes = BTreeMap::new();
        let (mut dtype, mut device) = (None, None);
        for (module, change) in &self.changes {
            let name = format!("{}.weight", shift.apply(module));
            let whole = self.whole.get(&format!("{module}.weight"));
            if whole.is_none() && !root.contains(&name) {
                return Err(without_weight(&format!("{module}.weight")));
            }
            let shape = match whole {
                Some(whole) => Some(whole.dims().to_vec()),
                None => root.shape(&name)?,
            };
            let change = change.oriented(&name, shape.as_deref(), self.config.fan_in_fan_out)?;
            if dtype.is_none() && whole.is_none() {
                let weight = root.get(&name, &change.stored_dims())?;
                (dtype, device) = (Some(weight.dtype()), Some(weight.device().clone()));
            }
            changes.insert(name, change);
        }
        let mut whole = BTreeMap::new();
        for (name, tensor) in &self.whole {
            let shifted = shift.apply(name);
            let name = if root.contains(&shifted) { shifted } else { name.clone() };
            if let Some(shape) = root.contains(&name).then(|| root.shape(&name)).transpose()?.flatten()
                && shape != tensor.dims()
            {
                return Err(wrong_shape(name, tensor.dims(), &shape));
            }
            let tensor = match dtype {
                Some(dtype) => tensor.to_dtype(dtype)?,
                None => tensor.clone(),
            };
            let tensor = match &device {
                Some(device) => tensor.to_device(device)?,
                None => tensor,
            };
            whole.insert(name, tensor);
        }
        let tracks_gradient = self.changes.values().any(LowRank::tracks_gradient);
        Ok(AdaptedSource { base, merged: Arc::new(Merged { changes, whole, tracks_gradient, device }) })
    }
}

impl LowRank {
    /// The same change for a weight of `shape`: where that is the transposed one, the weight is stored so. A square one
    /// is if it `may_be_transposed`.
    fn oriented(&self, name: &str, shape: Option<&[usize]>, may_be_transposed: bool) -> Result<Self> {
        let transposed = Self { transposed: !self.transposed, ..self.clone() };
        let [own, other] = [self.stored_dims(), transposed.stored_dims()];
        match shape {
            // A source that only confirms a shape.
            None => Ok(self.clone()),
            Some(shape) if shape == own && !(own == other && may_be_transposed && !self.transposed) => Ok(self.clone()),
            Some(shape) if shape == other && !self.transposed => Ok(transposed),
            Some(shape) => Err(Error::Tensor {
                name: name.to_string(),
                found: format!("has shape {shape:?}"),
                expected: format!("{own:?}, by the low-rank change of the adapter"),
            }),
        }
    }
}

/// How the names of an adapter differ from those of a checkpoint.
enum Shift {
    None,
    Remove(String),
    Add(String),
}

impl Shift {
    /// The one under which the checkpoint has the first module of the adapter.
    fn find<S: WeightSource>(adapter: &LoraAdapter, root: &S) -> Result<Self> {
        let Some(module) = adapter.changes.keys().next() else { return Ok(Self::None) };
        let weight = format!("{module}.weight");
        if root.contains(&weight) {
            return Ok(Self::None);
        }
        if let Some((first, rest)) = weight.split_once('.')
            && root.contains(rest)
        {
            return Ok(Self::Remove(format!("{first}.")));
        }
        let prefix = |name: String| {
            name.strip_suffix(&weight)
                .filter(|prefix| prefix.find('.') == Some(prefix.len().wrapping_sub(1)))
                .map(str::to_string)
        };
        match root.names().unwrap_or_default().into_iter().filter_map(prefix).collect::<Vec<_>>().as_slice() {
            [prefix] => Ok(Self::Add(prefix.clone())),
            _ => Err(without_weight(&weight)),
        }
    }

    fn apply(&self, name: &str) -> String {
        match self {
            Self::None => name.to_string(),
            Self::Remove(prefix) => name.strip_prefix(prefix.as_str()).unwrap_or(name).to_string(),
            Self::Add(prefix) => format!("{prefix}{name}"),
        }
    }
}

fn without_weight(name: &str) -> Error {
    let why = "the adapter changes it, and the base model does not hold it".to_string();
    Error::MissingTensor { name: name.to_string(), why }
}

impl<S> AdaptedSource<S> {
    /// The device of the base model, as far as the adapter changes weights of it.
    pub(super) fn device(&self) -> Option<&Device> {
        self.merged.device.as_ref()
    }
}

impl<S: WeightSource> WeightSource for AdaptedSource<S> {
    fn root(&self) -> Self {
        Self { base: self.base.root(), merged: self.merged.clone() }
    }

    fn child(&self, name: &str) -> Self {
        Self { base: self.base.child(name), merged: self.merged.clone() }
    }

    fn full_name(&self, name: &str) -> String {
        self.base.full_name(name)
    }

    fn names(&self) -> Option<Vec<String>> {
        let mut names = self.base.names()?;
        let prefix = self.full_name("");
        let new = self.merged.whole.keys().filter_map(|name| below(&prefix, name));
        names.extend(new.map(str::to_string));
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    fn contains(&self, name: &str) -> bool {
        self.merged.whole.contains_key(&self.full_name(name)) || self.base.contains(name)
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        match self.merged.whole.get(&self.full_name(name)) {
            Some(whole) => Ok(Some(whole.dims().to_vec())),
            None => self.base.shape(name),
        }
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let full_name = self.full_name(name);
        let weight = match self.merged.whole.get(&full_name) {
            Some(whole) if whole.dims() != shape => return Err(wrong_shape(full_name, whole.dims(), shape)),
            Some(whole) => whole.clone(),
            None => self.base.get(name, shape)?,
        };
        match self.merged.changes.get(&full_name) {
            Some(change) if change.stored_dims() != shape => Err(wrong_shape(full_name, &change.stored_dims(), shape)),
            Some(change) => change.merge(&weight),
            None => Ok(weight),
        }
    }

    /// Variables of an adapter in training are not given away.
    fn gives_own_tensors(&self) -> bool {
        self.base.gives_own_tensors() && !self.merged.tracks_gradient
    }
}

//! `AdaptedSource`: the weights of a base model with an adapter merged.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::checkpoint::{WeightSource, below, wrong_shape};
use crate::ensure;
use crate::error::{Error, Result};
use crate::lora::adapter::{LoraAdapter, LowRank};
use crate::lora::patterns::Patterns;
use crate::lora::places::{Place, Shift, without_weight};
use crate::lora::tokens::{TokenRows, copies};
use crate::ops::Quantization;
use crate::weights::LowRankChange;

/// A source of weights with an adapter merged, or beside them: [`LoraAdapter::apply`], [`LoraAdapter::beside`] and
/// [`LoraAdapter::beside_few_bits`] make it.
#[derive(Debug, Clone)]
pub struct AdaptedSource<S> {
    base: S,
    merged: Arc<Merged>,
    beside: Beside,
}

/// The weights of linear layers beside which their changes stay.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Beside {
    None,
    InFewBits,
    All,
}

/// An adapter by the names of the tensors that it changes in the checkpoint.
#[derive(Debug)]
struct Merged {
    changes: BTreeMap<String, Vec<Change>>,
    whole: BTreeMap<String, Tensor>,
    tokens: BTreeMap<String, TokenRows>,
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
    /// The names of an adapter are those of the base model. Where the checkpoint has them below a prefix, such as
    /// `bert.` in one with a head, or the adapter has them so, the prefix is added or removed. Where transformers 5
    /// names modules otherwise than the checkpoints of their family (NomicBERT, Jina embeddings v3), they are found,
    /// too, with queries, keys and values as thirds of one weight.
    ///
    /// # Errors
    /// A tensor of the adapter that belongs to no weight of the checkpoint, or does not fit its shape; both are named.
    pub fn apply<S: WeightSource>(&self, base: S) -> Result<AdaptedSource<S>> {
        let merged = Arc::new(self.merged(&base.root())?);
        Ok(AdaptedSource { base, merged, beside: Beside::None })
    }

    /// The weights of `base` with this adapter computed beside the projections that it changes: what is loaded has the
    /// weights of `base` there, in its format, and adds `scale · x Aᵀ Bᵀ` to each product.
    ///
    /// For weights in few bits, which [`apply`](Self::apply) would have to round again, with its change, and which
    /// then are another copy in memory. It costs two small products in each call, and the kernels' path over rows. What
    /// is neither a projection of attention nor read by [`Linear::load`](crate::ops::Linear::load) (tables of
    /// embeddings, heads, latent attention), and all of an adapter with magnitudes (DoRA), is merged as by
    /// [`apply`](Self::apply).
    ///
    /// # Errors
    /// The errors of [`apply`](Self::apply).
    pub fn beside<S: WeightSource>(&self, base: S) -> Result<AdaptedSource<S>> {
        Ok(AdaptedSource { beside: Beside::All, ..self.apply(base)? })
    }

    /// [`beside`](Self::beside) for the weights that loaders of `base` hold in few bits, and [`apply`](Self::apply) for
    /// all others: each weight is rounded once at most, and nothing is slower than it has to be.
    ///
    /// # Errors
    /// The errors of [`apply`](Self::apply).
    pub fn beside_few_bits<S: WeightSource>(&self, base: S) -> Result<AdaptedSource<S>> {
        Ok(AdaptedSource { beside: Beside::InFewBits, ..self.apply(base)? })
    }

    fn merged(&self, root: &dyn WeightSource) -> Result<Merged> {
        let shift = self.changes.keys().next().map_or(Ok(Shift::None), |module| Shift::find(module, root))?;
        let mut changes = BTreeMap::<String, Vec<Change>>::new();
        let mut like = None;
        for (module, change) in &self.changes {
            let whole = self.whole.get(&format!("{module}.weight"));
            let place = match (whole, shift.place(module, root)) {
                (_, Some(place)) => place,
                (Some(_), None) => Place { module: shift.apply(module), third: None },
                (None, None) => return Err(without_weight(&format!("{module}.weight"))),
            };
            let name = format!("{}.weight", place.module);
            let mut shape = match whole {
                Some(whole) => Some(whole.dims().to_vec()),
                None => root.shape(&name)?,
            };
            if let (Some([rows, _]), Some(_)) = (shape.as_deref_mut(), place.third) {
                *rows /= THIRDS;
            }
            let change = Change {
                third: place.third,
                low_rank: change.oriented(&name, shape.as_deref(), self.config.fan_in_fan_out)?,
            };
            if like.is_none() && whole.is_none() {
                let weight = root.get(&name, &change.stored_dims())?;
                like = Some((weight.dtype(), weight.device().clone()));
            }
            changes.entry(name).or_default().push(change);
        }
        let mut whole = BTreeMap::new();
        let patterns = Patterns::new(&self.config, self.whole.len())?;
        for (name, tensor) in &self.whole {
            let shifted = shift.apply(name);
            let held = [shifted, name.clone()].into_iter().find(|name| root.contains(name));
            let name = match held {
                Some(name) => name,
                // A new head. Anything else would be left out in silence.
                None if patterns.is_saved(name)? => name.clone(),
                None => return Err(without_weight(name)),
            };
            if let Some(shape) = root.contains(&name).then(|| root.shape(&name)).transpose()?.flatten()
                && shape != tensor.dims()
            {
                return Err(wrong_shape(name, tensor.dims(), &shape));
            }
            let tensor = match &like {
                Some((dtype, device)) => tensor.to_dtype(*dtype)?.to_device(device)?,
                None => tensor.clone(),
            };
            whole.insert(name, tensor);
        }
        let mut tokens = BTreeMap::new();
        for (module, rows) in &self.tokens {
            let place = shift.place(module, root).filter(|place| place.third.is_none());
            let name = format!("{}.weight", place.ok_or_else(|| without_weight(&format!("{module}.weight")))?.module);
            for name in copies(&name, root)?.into_iter().chain([name]) {
                root.shape(&name)?.map_or(Ok(()), |shape| rows.check(&name, &shape))?;
                tokens.insert(name, rows.clone());
            }
        }
        let tracks_gradient = self.changes.values().any(LowRank::tracks_gradient);
        Ok(Merged { changes, whole, tokens, tracks_gradient, device: like.map(|(_, device)| device) })
    }
}

/// Queries, keys and values in one weight.
const THIRDS: usize = 3;

/// The change of a weight, or of a third of its rows.
#[derive(Debug)]
struct Change {
    third: Option<usize>,
    low_rank: LowRank,
}

impl Change {
    /// The shape of the whole weight.
    fn stored_dims(&self) -> [usize; 2] {
        let [rows, width] = self.low_rank.stored_dims();
        [if self.third.is_some() { THIRDS * rows } else { rows }, width]
    }

    /// The change as it is computed beside the weight, on this device.
    fn beside(&self, device: Option<&Device>) -> Result<LowRankChange> {
        let LowRank { a, b, scale, transposed, .. } = &self.low_rank;
        let on = |tensor: &Tensor| device.map_or(Ok(tensor.clone()), |device| tensor.to_device(device));
        let (rows, start) = (b.dim(0)?, self.third.unwrap_or(0));
        let change = LowRankChange::new(on(a)?, on(b)?, *scale, start * rows..(start + 1) * rows);
        Ok(LowRankChange { transposed: *transposed, ..change })
    }

    fn merge(&self, weight: &Tensor) -> Result<Tensor> {
        let Some(third) = self.third else { return self.low_rank.merge(weight) };
        let rows = weight.dim(0)? / THIRDS;
        let part = |i: usize| weight.narrow(0, i * rows, rows);
        let merged = self.low_rank.merge(&part(third)?)?;
        let parts = (0..THIRDS).map(|i| if i == third { Ok(merged.clone()) } else { part(i) });
        Ok(Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
    }
}

impl LowRank {
    /// This change for a weight of `shape`: where that is the transposed one, the weight is stored so. A square one
    /// is if it `may_be_transposed`.
    fn oriented(&self, name: &str, shape: Option<&[usize]>, may_be_transposed: bool) -> Result<Self> {
        let transposed = Self { transposed: !self.transposed, ..self.clone() };
        let [own, other] = [self.stored_dims(), transposed.stored_dims()];
        match shape {
            // A source that only confirms a shape.
            None => Ok(self.clone()),
            Some(shape) if shape == own && !(own == other && may_be_transposed && !self.transposed) => Ok(self.clone()),
            Some(shape) if shape == other && !self.transposed => Ok(transposed),
            Some(shape) => {
                let expected = format!("{own:?}, by the low-rank change of the adapter");
                Err(Error::tensor(name, format!("has shape {shape:?}"), expected))
            }
        }
    }
}

impl<S: WeightSource> AdaptedSource<S> {
    fn changes(&self, name: &str) -> &[Change] {
        self.merged.changes.get(&self.full_name(name)).map_or(&[], Vec::as_slice)
    }

    /// Whether the changes of a weight stay beside it.
    fn are_beside(&self, name: &str) -> bool {
        let are_beside = match self.beside {
            Beside::None => false,
            Beside::InFewBits => self.base.quantization(name).is_some(),
            Beside::All => true,
        };
        are_beside && self.changes(name).iter().all(|change| change.low_rank.magnitude.is_none())
    }

    /// The weight of the base model, or what the adapter has in its place, or in that of its rows.
    fn without_changes(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let full_name = self.full_name(name);
        match (self.merged.whole.get(&full_name), self.merged.tokens.get(&full_name)) {
            (Some(whole), _) if whole.dims() != shape => Err(wrong_shape(full_name, whole.dims(), shape)),
            (Some(whole), _) => Ok(whole.clone()),
            (None, Some(rows)) => {
                rows.check(&full_name, shape)?;
                rows.merge(&self.base.get(name, shape)?)
            }
            (None, None) => self.base.get(name, shape),
        }
    }
}

impl<S> AdaptedSource<S> {
    /// The device of the base model, as far as the adapter changes weights of it.
    pub(super) fn device(&self) -> Option<&Device> {
        self.merged.device.as_ref()
    }
}

impl<S: WeightSource> WeightSource for AdaptedSource<S> {
    fn root(&self) -> Self {
        Self { base: self.base.root(), merged: self.merged.clone(), ..*self }
    }

    fn child(&self, name: &str) -> Self {
        Self { base: self.base.child(name), merged: self.merged.clone(), ..*self }
    }

    fn full_name(&self, name: &str) -> String {
        self.base.full_name(name)
    }

    fn names_below(&self, prefix: &str) -> Option<Vec<String>> {
        let mut names = self.base.names_below(prefix)?;
        let prefix = self.full_name(prefix);
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
        let weight = self.without_changes(name, shape)?;
        if self.beside != Beside::None && self.changes(name).iter().any(|change| change.low_rank.tracks_gradient()) {
            let found = "merged with it, which does not follow the variables";
            let expected = "a change beside it: that of attention or feed-forward, without magnitudes; \
                            `LoraTraining::source`, loaded anew in each step, trains any";
            return Err(Error::value(format!("the change of `{full_name}` in training"), found, expected));
        }
        self.changes(name).iter().try_fold(weight, |weight, change| {
            let dims = change.stored_dims();
            ensure!(dims == shape, wrong_shape(full_name.clone(), &dims, shape));
            change.merge(&weight)
        })
    }

    fn get_rows(&self, name: &str, shape: [usize; 2], on_rows: &mut dyn FnMut(Tensor) -> Result<()>) -> Result<()> {
        let full_name = self.full_name(name);
        let is_other = self.merged.whole.contains_key(&full_name) || self.merged.tokens.contains_key(&full_name);
        if self.changes(name).is_empty() && !is_other {
            self.base.get_rows(name, shape, on_rows)
        } else {
            on_rows(self.get(name, &shape)?)
        }
    }

    fn get_base(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        if self.are_beside(name) { self.without_changes(name, shape) } else { self.get(name, shape) }
    }

    fn low_rank(&self, name: &str) -> Result<Vec<LowRankChange>> {
        if !self.are_beside(name) {
            return Ok(Vec::new());
        }
        self.changes(name).iter().map(|change| change.beside(self.device())).collect()
    }

    fn has_low_rank(&self) -> bool {
        let root = self.root();
        self.merged.changes.keys().any(|name| root.are_beside(name))
    }

    /// Variables of an adapter in training are not given away.
    fn gives_own_tensors(&self) -> bool {
        self.base.gives_own_tensors() && !self.merged.tracks_gradient
    }

    /// Merged weights are quantized, and those with a change beside them; those that an adapter in training is merged
    /// with are not.
    fn quantization(&self, name: &str) -> Option<Quantization> {
        let is_merged = self.merged.tracks_gradient && !self.are_beside(name);
        self.base.quantization(name).filter(|_| !is_merged)
    }

    fn is_in_training(&self) -> bool {
        self.merged.tracks_gradient || self.base.is_in_training()
    }
}

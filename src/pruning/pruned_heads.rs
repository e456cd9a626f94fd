//! Sets of heads, by layer.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};

/// Heads of a model that have been pruned or are to be pruned, by layer; layers and heads count from 0.
///
/// In a `config.json` it is the key `pruned_heads`: an object from layer to a list of heads, as in transformers.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PrunedHeads(BTreeMap<usize, BTreeSet<usize>>);

impl PrunedHeads {
    /// Adds a head.
    pub fn insert(&mut self, layer: usize, head: usize) {
        self.0.entry(layer).or_default().insert(head);
    }

    /// The heads of a layer, in ascending order.
    pub fn for_layer(&self, layer: usize) -> Vec<usize> {
        self.0.get(&layer).into_iter().flatten().copied().collect()
    }

    /// The number of heads.
    pub fn count(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Whether there are no heads.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Checks that a model has these heads; `heads` is the number of heads of each layer.
    ///
    /// # Errors
    /// [`Error::Value`], with the layer or head that does not exist.
    pub fn check(&self, heads: &[usize]) -> Result<()> {
        for (&layer, pruned) in &self.0 {
            let Some(&count) = heads.get(layer) else {
                let expected = format!("less than {}, the number of layers", heads.len());
                return Err(Error::value("a layer of pruned_heads", layer, expected));
            };
            if let Some(head) = pruned.last().filter(|head| **head >= count) {
                let expected = format!("less than {count}, the number of its heads");
                return Err(Error::value(format!("a pruned head of layer {layer}"), head, expected));
            }
        }
        Ok(())
    }

    /// These heads together with `more` of the pruned model, all by their indices in the original model, which has
    /// `heads` heads per layer.
    ///
    /// `more` counts heads as the pruned model does: without the ones in `self`.
    pub fn and(&self, more: &Self, heads: usize) -> Self {
        let mut all = self.clone();
        for (&layer, pruned) in &more.0 {
            let gone = self.0.get(&layer);
            let kept: Vec<usize> = (0..heads).filter(|head| gone.is_none_or(|gone| !gone.contains(head))).collect();
            pruned.iter().filter_map(|head| kept.get(*head)).for_each(|head| all.insert(layer, *head));
        }
        all
    }
}

impl FromIterator<(usize, usize)> for PrunedHeads {
    /// From pairs `(layer, head)`.
    fn from_iter<I: IntoIterator<Item = (usize, usize)>>(heads: I) -> Self {
        let mut pruned = Self::default();
        heads.into_iter().for_each(|(layer, head)| pruned.insert(layer, head));
        pruned
    }
}

impl std::fmt::Display for PrunedHeads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

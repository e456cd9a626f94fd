use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};

/// Heads of a model, by layer: those that have been or are to be pruned. In a `config.json` the key `pruned_heads`, an
/// object of lists, as Hugging Face has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PrunedHeads(BTreeMap<usize, BTreeSet<usize>>);

impl PrunedHeads {
    /// Adds one.
    pub fn insert(&mut self, layer: usize, head: usize) {
        self.0.entry(layer).or_default().insert(head);
    }

    /// Those of a layer, in order.
    pub fn of_layer(&self, layer: usize) -> Vec<usize> {
        self.0.get(&layer).into_iter().flatten().copied().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Checks that a model with these numbers of heads, one a layer, has them.
    ///
    /// # Errors
    /// [`Error::Value`], with the layer or the head that there is not.
    pub fn check(&self, heads: &[usize]) -> Result<()> {
        for (&layer, pruned) in &self.0 {
            let Some(&count) = heads.get(layer) else {
                return Err(Error::value("a layer of pruned_heads", layer, format!("less than {}", heads.len())));
            };
            if let Some(head) = pruned.last().filter(|head| **head >= count) {
                let allowed = format!("less than {count}, its heads");
                return Err(Error::value(format!("a pruned head of layer {layer}"), head, allowed));
            }
        }
        Ok(())
    }

    /// These and, of a model of `heads` heads a layer that lacks these already, `more`: all by their numbers in the model
    /// as it was before.
    pub fn and(&self, more: &Self, heads: usize) -> Self {
        let mut all = self.clone();
        for (&layer, pruned) in &more.0 {
            let gone = self.of_layer(layer);
            let kept: Vec<usize> = (0..heads).filter(|head| !gone.contains(head)).collect();
            pruned.iter().filter_map(|head| kept.get(*head)).for_each(|head| all.insert(layer, *head));
        }
        all
    }
}

impl FromIterator<(usize, usize)> for PrunedHeads {
    /// From `(layer, head)`.
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

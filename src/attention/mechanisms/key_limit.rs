//! The most keys of a call, in models whose indexer chooses among more.

use crate::attention::mechanism::{Mechanism, MechanismRow, Routes, boxed};
use crate::config::{AttentionConfig, MechanismConfig};
use crate::ensure;
use crate::error::{Error, Result};

pub(super) const ROW: MechanismRow =
    MechanismRow { from_layer: |layer| Ok(boxed(KeyLimit::from_config(layer.config))), ..MechanismRow::NONE };

/// The most keys of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MaxKeys(usize);

impl AttentionConfig {
    /// Sets the most keys of a call, in a model whose indexer chooses among more, which this version does not run
    /// (MiniMax-M3): with more keys, a call is an error.
    #[must_use]
    pub fn with_max_keys(mut self, max_keys: impl Into<Option<usize>>) -> Self {
        self.mechanisms.set(max_keys.into().map(MaxKeys));
        self
    }

    /// The most keys of a call; `None`: no limit.
    pub fn max_keys(&self) -> Option<usize> {
        self.mechanisms.get::<MaxKeys>().map(|most| most.0)
    }
}

impl MechanismConfig for MaxKeys {
    fn validate(&self, _: &AttentionConfig) -> Result<()> {
        ensure!(self.0 != 0, Error::config("max_keys", 0, "at least 1"));
        Ok(())
    }
}

/// The most keys of a sequence.
struct KeyLimit {
    /// The key of the configuration that limits them.
    name: &'static str,
    most: usize,
}

impl KeyLimit {
    fn from_config(config: &AttentionConfig) -> Option<Self> {
        let index_topk = config.latent.as_ref().and_then(|latent| latent.index_topk);
        let all = [("max_keys", config.max_keys()), ("index_topk", index_topk)];
        let set = all.into_iter().filter_map(|(name, most)| Some(Self { name, most: most? }));
        set.min_by_key(|limit| limit.most)
    }
}

impl Mechanism for KeyLimit {
    fn routes(&self) -> Routes {
        Routes::ALL
    }

    fn check_keys(&self, keys: usize) -> Result<()> {
        if keys <= self.most {
            return Ok(());
        }
        let beyond = "beyond it an indexer chooses the keys, which this version does not run";
        Err(Error::value("the number of keys", keys, format!("at most `{}` = {}: {beyond}", self.name, self.most)))
    }
}

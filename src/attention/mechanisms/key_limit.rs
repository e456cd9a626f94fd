//! Limits on the number of keys, in models whose indexer chooses among more.

use crate::attention::mechanism::{Mechanism, Routes};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};

/// The most keys of a sequence.
pub(super) struct KeyLimit {
    /// The key of the configuration that limits them.
    name: &'static str,
    most: usize,
}

impl KeyLimit {
    pub(super) fn from_config(config: &AttentionConfig) -> Option<Self> {
        let index_topk = config.latent.as_ref().and_then(|latent| latent.index_topk);
        let limits = [("max_keys", config.max_keys), ("index_topk", index_topk)];
        let limits = limits.into_iter().filter_map(|(name, most)| Some(Self { name, most: most? }));
        limits.min_by_key(|limit| limit.most)
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

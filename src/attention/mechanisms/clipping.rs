//! Queries, keys and values clamped to a limit (MPT, OLMo).

use candle_core::Tensor;

use crate::attention::mechanism::{Mechanism, MechanismRow, Routes, boxed};
use crate::config::{AttentionConfig, MechanismConfig};
use crate::ensure;
use crate::error::{Error, Result};
use crate::ops::expected_limit;

pub(super) const ROW: MechanismRow =
    MechanismRow { from_layer: |layer| Ok(boxed(layer.config.mechanisms.get::<Clipping>())), ..MechanismRow::NONE };

/// The largest magnitude of what the projections of queries, keys and values return.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clipping(f64);

impl AttentionConfig {
    /// Clamps queries, keys and values to `-clip_qkv ..= clip_qkv` before any step (MPT, OLMo); from 1e-15 to 1e15.
    #[must_use]
    pub fn with_clip_qkv(mut self, clip_qkv: impl Into<Option<f64>>) -> Self {
        self.mechanisms.set(clip_qkv.into().map(Clipping));
        self
    }

    /// The limit to which queries, keys and values are clamped; `None`: they are not.
    pub fn clip_qkv(&self) -> Option<f64> {
        self.mechanisms.get::<Clipping>().map(|clipping| clipping.0)
    }
}

impl MechanismConfig for Clipping {
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        ensure!(config.latent.is_none(), Error::config("clip_qkv", "set", "none with latent attention"));
        expected_limit(self.0).map_or(Ok(()), |expected| Err(Error::config("clip_qkv", self.0, expected)))
    }
}

impl Mechanism for Clipping {
    fn routes(&self) -> Routes {
        Routes::RAGGED
    }

    fn wraps_projections(&self) -> bool {
        true
    }

    fn output(&self, projection: usize, ys: Tensor) -> Result<Tensor> {
        if projection < 3 { Ok(ys.clamp(-self.0, self.0)?) } else { Ok(ys) }
    }
}

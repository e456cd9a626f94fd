//! Queries, keys and values clamped to a limit (MPT, OLMo).

use candle_core::Tensor;

use crate::attention::mechanism::{Mechanism, Routes};
use crate::config::AttentionConfig;
use crate::error::Result;

/// The largest magnitude of what the projections of queries, keys and values return.
pub(super) struct Clipping(f64);

impl Clipping {
    pub(super) fn from_config(config: &AttentionConfig) -> Option<Self> {
        config.clip_qkv.map(Self)
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

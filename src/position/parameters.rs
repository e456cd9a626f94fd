//! Parameters of position schemes: what a scheme learns, and the tensors of one layer.

use std::sync::{Arc, OnceLock};

use candle_core::Tensor;
use candle_nn::Init;

use crate::error::Result;
use crate::weights::PositionWeights;

/// Sizes of the attention layer that a scheme belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerSizes {
    pub hidden_size: usize,
    pub query_size: usize,
    pub key_size: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
}

/// Where a parameter comes from when a layer is read from a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Every layer has its own.
    Required,
    /// A layer may have it.
    Optional,
    /// A layer has its own, or the layers of a stack share one that is stored outside them.
    Shared,
}

/// One tensor that a scheme learns.
#[derive(Debug, Clone)]
pub(crate) struct PositionParameter {
    /// The key in [`PositionWeights`], which is also the tensor's name in this crate's own layout.
    pub name: &'static str,
    pub shape: Vec<usize>,
    /// Initial values in a new layer.
    pub init: Init,
    /// The dimension that is divided among the query heads, if any. Pruning selects along it.
    pub head_axis: Option<usize>,
    pub presence: Presence,
}

/// Parameters of a scheme in one layer, with the tensors that are computed from them once.
#[derive(Debug, Clone, Default)]
pub(crate) struct PositionState {
    weights: PositionWeights,
    derived: Arc<OnceLock<Vec<Option<Tensor>>>>,
}

impl PositionState {
    pub(crate) fn new(weights: PositionWeights) -> Self {
        Self { weights, derived: Arc::default() }
    }

    pub(crate) fn weights(&self) -> &PositionWeights {
        &self.weights
    }

    pub(crate) fn tracks_gradient(&self) -> bool {
        self.weights.iter().any(|(_, tensor)| tensor.track_op())
    }

    /// The result of `compute`. It is kept for later calls if `fixed`: nothing that it depends on can change.
    pub(crate) fn derived(
        &self,
        fixed: bool,
        compute: impl FnOnce() -> Result<Vec<Option<Tensor>>>,
    ) -> Result<Vec<Option<Tensor>>> {
        if !fixed {
            return compute();
        }
        if let Some(derived) = self.derived.get() {
            return Ok(derived.clone());
        }
        let derived = compute()?;
        Ok(self.derived.get_or_init(|| derived).clone())
    }
}

//! The feed-forward part of a block: a multi-layer perceptron, or a mixture of them.

use candle_attention::checkpoint::AnySource;
use candle_attention::ops::PendingBias;
use candle_attention::tensor::{MapTensors, ShareWeights};
use candle_attention::{Quantization, Result};
use candle_attention_kernels::{ScratchPool, Team};
use candle_core::Tensor;

use crate::families::model::Block;
use crate::model::config::TextModelConfig;
use crate::model::experts::Experts;
use crate::model::mlp::Mlp;

/// What a block computes of each token for itself.
#[derive(Debug, Clone)]
pub(crate) enum FeedForward {
    Mlp(Mlp),
    Experts(Experts),
}

impl FeedForward {
    /// Loads the part of block `index`, which is at the prefix of `source`.
    pub fn load(config: &TextModelConfig, row: &Block, source: &AnySource, index: usize) -> Result<Self> {
        if let Some(names) = &row.experts
            && let Some(stated) = config.experts(names)?
            && stated.is_mixture(index)
        {
            return Ok(Self::Experts(Experts::load(config, names, stated, source)?));
        }
        Ok(Self::Mlp(Mlp::load(config, row, source)?))
    }

    /// The format of projections in few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        match self {
            Self::Mlp(mlp) => mlp.quantization(),
            Self::Experts(experts) => experts.quantization(),
        }
    }

    /// Packs the weights now and gives their tensors back, as
    /// [`Linear::pack`](candle_attention::ops::Linear::pack) does.
    pub fn pack(&mut self) -> Result<()> {
        match self {
            Self::Mlp(mlp) => mlp.pack(),
            Self::Experts(experts) => experts.pack(),
        }
    }

    /// xs `(b, s, hidden)` → the same, with the last bias pending where a GPU adds it in the next operation.
    pub fn forward(&self, xs: &Tensor) -> Result<PendingBias> {
        match self {
            Self::Mlp(mlp) => mlp.forward(xs),
            Self::Experts(experts) => Ok(experts.forward(xs)?.into()),
        }
    }

    /// Whether [`forward_rows`](Self::forward_rows) can run.
    pub fn supports_rows(&self) -> bool {
        match self {
            Self::Mlp(mlp) => mlp.supports_rows(),
            Self::Experts(experts) => experts.supports_rows(),
        }
    }

    /// Multiply-adds of [`forward_rows`](Self::forward_rows).
    pub fn multiply_adds(&self, tokens: usize) -> Result<usize> {
        match self {
            Self::Mlp(mlp) => mlp.multiply_adds(tokens),
            Self::Experts(experts) => experts.multiply_adds(tokens),
        }
    }

    /// [`forward`](Self::forward) on CPU buffers, xs `(tokens, hidden_size)` to `outer` of the same shape; only call it
    /// if [`supports_rows`](Self::supports_rows).
    pub fn forward_rows(
        &self,
        team: Team,
        xs: &[f32],
        tokens: usize,
        scratch: &ScratchPool,
        outer: &mut [f32],
    ) -> Result<()> {
        match self {
            Self::Mlp(mlp) => mlp.forward_rows(team, xs, tokens, scratch, outer),
            Self::Experts(experts) => experts.forward_rows(team, xs, tokens, scratch, outer),
        }
    }
}

impl MapTensors for FeedForward {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(match self {
            Self::Mlp(mlp) => Self::Mlp(mlp.map_tensors(f)?),
            Self::Experts(experts) => Self::Experts(experts.map_tensors(f)?),
        })
    }
}

impl ShareWeights for FeedForward {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (Self::Mlp(own), Self::Mlp(other)) => own.share_weights(other),
            (Self::Experts(own), Self::Experts(other)) => own.share_weights(other),
            _ => Ok(()),
        }
    }
}

//! How a block lets tokens see each other: self-attention, or a short convolution.

use candle_attention::checkpoint::{AnySource, SharedTables, WeightSource};
use candle_attention::tensor::{Freeze, MapTensors, ShareWeights};
use candle_attention::{AttentionMask, MultiHeadAttention, Quantization, Result};
use candle_core::Tensor;

use crate::families::model::Block as BlockRow;
use crate::model::config::TextModelConfig;
use crate::model::short_convolution::ShortConvolution;

/// The description of the blocks of a model, and the position tables that all layers share, where the family has some.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'a> {
    pub config: &'a TextModelConfig,
    pub row: &'a BlockRow,
    pub tables: &'a SharedTables,
}

/// The part of a block in which tokens see each other.
#[derive(Debug, Clone)]
pub(crate) enum Mixer {
    /// Self-attention, and which tokens the model lets each token attend to in this layer.
    Attention(Box<MultiHeadAttention>, AttentionMask),
    Convolution(ShortConvolution),
}

impl Mixer {
    /// Reads the mixer of block `index`, at `source`; see [`Block::load`](crate::model::block::Block::load).
    pub fn load(stack: Stack, source: &AnySource, index: usize) -> Result<Self> {
        let Stack { config, row, tables } = stack;
        if config.is_convolution(index) {
            return Ok(Self::Convolution(ShortConvolution::load(config, source)?));
        }
        let source = source.child(row.attention);
        let (attention, mask) = config.attention_of(&source, index)?;
        let pruned = config.pruned_heads.for_layer(index);
        let mut attention = MultiHeadAttention::load_with_tables(&attention, &pruned, tables, &source)?;
        if source.gives_own_tensors() {
            attention.freeze_in_place()?;
        }
        Ok(Self::Attention(Box::new(attention), mask))
    }

    /// The attention layer, if it is one.
    pub fn attention(&self) -> Option<&MultiHeadAttention> {
        match self {
            Self::Attention(attention, _) => Some(attention),
            Self::Convolution(_) => None,
        }
    }

    /// The format of projections in few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        match self {
            Self::Attention(attention, _) => attention.quantization(),
            Self::Convolution(convolution) => convolution.quantization(),
        }
    }

    /// Packs the weights of projections and gives their tensors back.
    pub fn pack(&mut self) -> Result<()> {
        match self {
            Self::Attention(attention, _) => attention.freeze_in_place(),
            Self::Convolution(convolution) => convolution.pack(),
        }
    }

    /// Multiply-adds for a ragged batch on f32 rows.
    pub fn ragged_multiply_adds(&self, offsets: &[usize]) -> Result<usize> {
        match self {
            Self::Attention(attention, _) => attention.rows_multiply_adds(offsets),
            Self::Convolution(convolution) => convolution.multiply_adds(offsets.last().copied().unwrap_or(0)),
        }
    }

    /// Whether it runs on f32 rows on the CPU.
    pub fn supports_rows(&self) -> bool {
        match self {
            Self::Attention(attention, _) => attention.supports_rows(),
            Self::Convolution(convolution) => convolution.supports_rows(),
        }
    }
}

impl MapTensors for Mixer {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(match self {
            Self::Attention(attention, mask) => Self::Attention(attention.map_tensors(f)?, mask.clone()),
            Self::Convolution(convolution) => Self::Convolution(convolution.map_tensors(f)?),
        })
    }
}

impl ShareWeights for Mixer {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (Self::Attention(own, _), Self::Attention(other, _)) => own.share_weights(other),
            (Self::Convolution(own), Self::Convolution(other)) => own.share_weights(other),
            _ => Ok(()),
        }
    }
}

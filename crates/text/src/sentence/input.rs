//! The first module of a model, which takes texts.

use candle_attention::tensor::compute_dtype;
use candle_attention::{Error, Result};
use candle_core::{DType, Device};

use crate::sentence::static_embedding::StaticEmbedding;
use crate::sentence::transformer::Transformer;

/// What makes a vector of a text.
#[derive(Clone)]
pub(crate) enum Input {
    Transformer(Box<Transformer>),
    Static(StaticEmbedding),
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Transformer(transformer) => transformer.fmt(f),
            Self::Static(table) => table.fmt(f),
        }
    }
}

impl Input {
    /// The size of the vectors.
    pub fn output_size(&self) -> usize {
        match self {
            Self::Transformer(transformer) => transformer.output_size(),
            Self::Static(table) => table.width(),
        }
    }

    /// Where the vectors are.
    pub fn device(&self) -> &Device {
        match self {
            Self::Transformer(transformer) => transformer.model.device(),
            Self::Static(table) => &table.device,
        }
    }

    /// The dtype of the vectors.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Transformer(transformer) => compute_dtype(transformer.batcher.dtype),
            Self::Static(table) => table.dtype(),
        }
    }

    /// The transformer, which alone has vectors of tokens in their context, and attention.
    pub fn transformer(&self) -> Result<&Transformer> {
        match self {
            Self::Transformer(transformer) => Ok(transformer),
            Self::Static(_) => Err(Error::value("the first module of the model", "StaticEmbedding", "Transformer")),
        }
    }
}

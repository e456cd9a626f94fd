//! The kinds of projections, and the ways to compute one.
//!
//! A [`Linear`] holds one implementation behind an `Arc`, so that neither it nor attention has a type parameter:
//! `Dense`, of tensors; `Packed`, of packed weights; `CallerModule`; and `LowRank`, a layer and a change beside it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_attention_kernels::PackedWeights;
use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::ops::linear::Linear;
use crate::ops::quantization::Quantization;
use crate::weights::LinearWeights;

/// A projection of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProjectionKind {
    /// The projection of the queries, `(h · d, query_size)`.
    Query,
    /// The projection of the keys, `(h_kv · d, key_size)`; of the values, too, in a layer whose keys are its values.
    Key,
    /// The projection of the values, `(h_kv · d_v, value_size)`.
    Value,
    /// One for queries, keys and values, its outputs in this order.
    QueryKeyValue,
    /// The projection of the gate of the output, `(h · d_v, query_size)` or `(h, query_size)`.
    Gate,
    /// The output projection, `(output_size, h · d_v)`.
    Output,
}

impl ProjectionKind {
    /// The projection's name in this crate's own layout.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q_proj",
            Self::Key => "k_proj",
            Self::Value => "v_proj",
            Self::QueryKeyValue => "qkv_proj",
            Self::Gate => "gate_proj",
            Self::Output => "o_proj",
        }
    }
}

impl fmt::Display for ProjectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A way to compute a projection. The defaults are those of a projection without weights.
pub(super) trait Projection: Send + Sync {
    /// `xs` `(b, s, in)` → `(b, s, out)` in `dtype`.
    fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor>;

    /// A tensor with the dtype and the device of the projection.
    fn like(&self) -> &Tensor;

    /// Whether a gradient of something other than the input is asked for.
    fn tracks_gradient(&self) -> bool;

    fn has_bias(&self) -> bool;

    /// The weights of one product that computes the same.
    fn weights(&self) -> Result<LinearWeights>;

    /// The bias of these weights.
    fn bias(&self) -> Result<Option<Tensor>> {
        Ok(self.weights()?.bias)
    }

    /// The known weights that may change, or copies of them in a copy of the projection.
    fn changing(&self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }

    /// The projection to a range of the outputs alone.
    fn outputs(&self, outputs: Range<usize>) -> Result<Arc<dyn Projection>>;

    /// A copy with `f` of its tensors; `None` if they cannot change, so that all copies share them.
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Option<Arc<dyn Projection>>>;

    /// A copy with a part of it replaced by an equal one of `other`; `None` if it has no parts.
    fn share_weights(&self, _other: &Linear) -> Result<Option<Arc<dyn Projection>>> {
        Ok(None)
    }

    /// A copy with its weights packed, as [`Linear::pack`] does; `None` if it stays as it is.
    fn to_packed(&self) -> Result<Option<Arc<dyn Projection>>> {
        Ok(None)
    }

    /// A copy with its weights in few bits, packed where the format cannot take them; `None` if it stays as it is.
    fn to_quantized(&self, _format: Quantization) -> Result<Option<Arc<dyn Projection>>> {
        Ok(None)
    }

    /// A copy with products of the dequantized weights, as [`Linear::set_exact`] makes it; `None` if it stays as it
    /// is.
    fn to_exact(&self) -> Option<Arc<dyn Projection>> {
        None
    }

    /// The format of its weights, if it has few bits.
    fn quantization(&self) -> Option<Quantization> {
        None
    }

    /// The tensors, if the projection is one product with them.
    fn tensors(&self) -> Option<&LinearWeights> {
        None
    }

    /// The packed weights and which of their outputs are those of the projection, if it holds nothing else.
    fn packed_outputs(&self) -> Option<(&PackedWeights, Range<usize>)> {
        None
    }

    /// Whether the weights have been packed.
    fn is_packed(&self) -> bool {
        self.packed_outputs().is_some()
    }

    /// Whether products of weights in few bits are those of the dequantized weights.
    fn is_exact(&self) -> bool {
        false
    }

    /// Whether the projection is one product with all outputs of weights of its own, and nothing beside them.
    fn is_plain(&self) -> bool {
        false
    }

    /// The weights as the CPU kernels read them, packed on first use; only where [`Linear::can_pack`].
    fn packed(&self) -> Result<&PackedWeights> {
        Err(Error::value("the weights of a projection", "none that can be packed", "those of one product on the CPU"))
    }
}

/// Whether the CPU kernels multiply with weights of this dtype on this device.
pub(super) fn has_kernels(like: &Tensor) -> bool {
    like.device().is_cpu() && like.dtype() != DType::F64
}

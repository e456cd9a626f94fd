//! The interface of a mask kind, with defaults that derive every form from the dense one.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::mask::dense::DenseMask;
use crate::mask::kinds::{PairFunction, ScoreFunction};
use crate::mask::lowered::{LoweredMask, TermStructure};
use crate::mask::shape::AttnShape;
use crate::tensor::select;

/// An attention call as a mask sees it: its sizes, and where its queries stand.
#[derive(Debug, Clone)]
pub(crate) struct MaskCall<'a> {
    pub shape: AttnShape,
    /// The position of query 0 among the keys: one element for the whole batch, or one per sequence.
    pub starts: Cow<'a, [i64]>,
    /// Whether the mask says where queries stand, as after the tokens of a cache; else the last one stands at the last
    /// key.
    pub has_starts: bool,
}

impl MaskCall<'_> {
    /// The position of query 0 of sequence `b` among the keys.
    pub(crate) fn start(&self, b: usize) -> i64 {
        self.starts[if self.starts.len() == 1 { 0 } else { b }]
    }
}

/// Some of the queries of a call, or some of its heads, in this order.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    Queries(Range<usize>),
    Heads(&'a [usize]),
}

impl Part<'_> {
    /// The dimension to select along, of those of heads and of queries.
    pub(crate) fn dim(&self, [heads, queries]: [usize; 2]) -> usize {
        if matches!(self, Self::Heads(_)) { heads } else { queries }
    }

    /// This part of a tensor with these dimensions of heads and of queries.
    pub(crate) fn select(&self, tensor: &Tensor, dims: [usize; 2]) -> Result<Tensor> {
        match self {
            Self::Queries(queries) => Ok(tensor.narrow(self.dim(dims), queries.start, queries.len())?),
            Self::Heads(heads) => select(tensor, heads, self.dim(dims)),
        }
    }
}

/// One kind of mask.
///
/// A kind has to implement [`dense`](Self::dense) and [`describe`](Self::describe), and mostly [`check`](Self::check).
/// Every backend is then right: the defaults derive whatever else it needs from the dense form. The other methods make
/// a kind fast, or let a gradient flow into it.
pub(crate) trait MaskTerm: Send + Sync {
    /// Checks shapes and values against the call. The default is for a kind that fits any call.
    fn check(&self, _shape: AttnShape) -> Result<()> {
        Ok(())
    }

    /// The term as tensors on `device` that broadcast to `(b, h, s_q, s_kv)`, the bias in `dtype`.
    fn dense(&self, call: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask>;

    /// The shape of the tensors of [`dense`](Self::dense), or one that they broadcast to.
    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        call.shape.dims()
    }

    /// The term as a rule over positions, if it is no more than that.
    fn structure(&self) -> Option<TermStructure<'_>> {
        None
    }

    /// Adds the term to what fused kernels read, with its tensors on `device`.
    fn lower(&self, lowered: &mut LoweredMask, call: &MaskCall, device: &Device) -> Result<()> {
        if let Some(structure) = self.structure() {
            lowered.add_structure(structure);
            return Ok(());
        }
        let DenseMask { keep, bias } = self.dense(call, DType::F32, device)?;
        lowered.keep.extend(keep);
        lowered.bias.extend(bias);
        Ok(())
    }

    /// The term for a part of a call. `None` if the kind has no form for that: its dense form is cut instead. A
    /// [rule](Self::is_rule) is not asked: it stays as it is.
    fn select(&self, _part: &Part, _call: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        Ok(None)
    }

    /// Whether the term depends on where queries stand among the keys.
    fn depends_on_position(&self) -> bool {
        matches!(self.structure(), Some(TermStructure::Window(_) | TermStructure::Distances { .. }))
    }

    /// Whether the term counts the tokens of a sequence from its first one, so that all of them have to be keys, and it
    /// has to know how many of them are in a cache.
    fn counts_tokens(&self) -> bool {
        false
    }

    /// Whether the term is a rule that holds for sequences of any length.
    fn is_rule(&self) -> bool {
        matches!(self.structure(), Some(TermStructure::Window(_)))
    }

    /// Whether the term is a function of the caller, which fits sequences of any length, too.
    fn is_function(&self) -> bool {
        false
    }

    /// Whether the term changes scores of visible keys. A kind that only hides keys should return `false`; windows and
    /// lengths do.
    fn adds_to_scores(&self) -> bool {
        !matches!(self.structure(), Some(TermStructure::Window(_) | TermStructure::Lengths(_)))
    }

    /// Whether query `i` of head `h` in sequence `b` of the call sees a key, if a function of the caller says it.
    fn pair_function(&self, _call: &MaskCall) -> Option<Arc<dyn PairFunction>> {
        None
    }

    /// The function of scores, if the term is one: it has no dense form.
    fn score_function(&self) -> Option<&ScoreFunction> {
        None
    }

    /// The numbers of embeddings of distances that the term compares queries and keys with.
    fn distance_embeddings(&self) -> [usize; 2] {
        [0; 2]
    }

    /// The biases `(distances, h)`, if the term adds one per head and distance to the scores, and no more.
    fn biases_by_distance(&self) -> Option<&Tensor> {
        None
    }

    /// Whether a gradient flows into the term.
    fn tracks_gradient(&self) -> bool {
        false
    }

    /// The term in short, as a mask prints it.
    fn describe(&self) -> String;
}

//! Lowering a mask to the forms that backends read, and questions about its structure.

use std::borrow::Cow;
use std::sync::Arc;

use candle_attention_kernels::{Lengths, MaskStructure};
use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::mask::attention_mask::AttentionMask;
use crate::mask::dense::DenseMask;
use crate::mask::kinds::{ScoreFunction, ScoreFunctionCall, Window};
use crate::mask::lowered::{LoweredMask, TermStructure};
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm};

impl AttentionMask {
    /// Checks every term against the call.
    pub(crate) fn check(&self, shape: AttnShape) -> Result<()> {
        self.terms.iter().try_for_each(|term| term.check(shape))
    }

    /// The mask for fused kernels, its tensors on `device`.
    pub(crate) fn lower(&self, shape: AttnShape, device: &Device) -> Result<LoweredMask> {
        self.lower_for(shape, device, device.is_cpu())
    }

    /// [`lower`](Self::lower) for kernels that read biases by distance, or for those that read them as tensors.
    pub(super) fn lower_for(&self, shape: AttnShape, device: &Device, is_for_cpu_kernel: bool) -> Result<LoweredMask> {
        let call = self.call(shape);
        let mut lowered = LoweredMask { is_for_cpu_kernel, ..LoweredMask::default() };
        lowered.structure.starts.clone_from(&self.starts);
        self.terms.iter().try_for_each(|term| term.lower(&mut lowered, &call, device))?;
        Ok(lowered)
    }

    /// The functions of scores, as they are called in a call of this shape.
    pub(crate) fn score_functions(&self, shape: AttnShape) -> Vec<ScoreFunctionCall> {
        let (call, functions) = (self.call(shape), self.terms.iter().filter_map(|term| term.score_function()));
        functions.map(|function| function.in_call(&call)).collect()
    }

    /// Whether there is a function of scores.
    pub(crate) fn has_score_functions(&self) -> bool {
        self.terms.iter().any(|term| term.score_function().is_some())
    }

    /// Whether every function of scores has a derivative.
    pub(crate) fn has_derivatives(&self) -> bool {
        self.terms.iter().filter_map(|term| term.score_function()).all(ScoreFunction::has_derivative)
    }

    /// The mask without its functions of scores.
    pub(crate) fn without_score_functions(&self) -> Self {
        let terms = self.terms.iter().filter(|term| term.score_function().is_none());
        Self { terms: terms.cloned().collect(), starts: self.starts.clone() }
    }

    /// The products with embeddings of distances, and all else of the mask.
    pub(crate) fn split_products(&self) -> [Self; 2] {
        let (products, others) =
            self.terms.iter().cloned().partition(|term: &Arc<dyn MaskTerm>| term.distance_embeddings() != [0; 2]);
        [products, others].map(|terms| Self { terms, starts: self.starts.clone() })
    }

    /// The mask as rules over positions alone, `None` if it needs a tensor.
    pub(crate) fn structure(&self) -> Option<MaskStructure> {
        let mut lowered = LoweredMask::default();
        lowered.structure.starts.clone_from(&self.starts);
        for term in &self.terms {
            lowered.add_structure(term.structure()?);
        }
        Some(lowered.structure)
    }

    /// The mask as tensors, for backends that need them; differentiable. Every query sees the last `appended` keys,
    /// which come after the `shape.s_kv` keys under the mask.
    pub(crate) fn dense(&self, shape: AttnShape, appended: usize, dtype: DType, device: &Device) -> Result<DenseMask> {
        self.dense_for(&self.call(shape), dtype, device)?.append_visible(shape.s_kv, appended)
    }

    /// [`dense`](Self::dense) for a call whose queries stand where it says.
    pub(super) fn dense_for(&self, call: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        // One tensor for all causal masks and windows together.
        let mut dense = self.narrowest_window().dense(call, dtype, device)?;
        for term in self.terms.iter().filter(|term| !is_window(term)) {
            dense = dense.and(term.dense(call, dtype, device)?)?;
        }
        Ok(dense)
    }

    /// The shape of the tensors of [`dense_for`](Self::dense_for), or one that they broadcast to.
    pub(super) fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        let dims = self.terms.iter().map(|term| term.dense_dims(call));
        dims.reduce(|a, b| std::array::from_fn(|i| a[i].max(b[i]))).unwrap_or([1; 4])
    }

    /// Whether two queries may see different keys, as they do not under a mask of padding alone.
    pub(crate) fn depends_on_query(&self) -> bool {
        self.dense_dims(&self.call(AttnShape { b: 1, h: 1, s_q: 2, s_kv: 2 }))[2] > 1
    }

    /// The number of elements of a tensor of [`dense`](Self::dense), at most.
    pub(crate) fn dense_elements(&self, shape: AttnShape, appended: usize) -> usize {
        if self.is_full() {
            return 0;
        }
        let [b, h, s_q, s_kv] = self.dense_dims(&self.call(shape));
        [b, h, s_q, s_kv.saturating_add(appended)].into_iter().fold(1, usize::saturating_mul)
    }

    /// Whether this is [`causal`](Self::causal) and no more.
    pub(crate) fn is_causal(&self) -> bool {
        self.structure() == Some(MaskStructure { right: Some(0), ..MaskStructure::default() })
    }

    /// Whether the mask consists of causal masks and windows, or is full.
    pub(crate) fn is_windowed(&self) -> bool {
        self.starts.is_none() && self.terms.iter().all(is_window)
    }

    /// The lengths of the sequences and the rest of the mask, if it is padding and otherwise windowed.
    pub(crate) fn as_padding(&self) -> Option<(&[usize], Self)> {
        let (padding, rest): (Vec<_>, Vec<_>) = self.terms.iter().partition(|term| padding_lengths(term).is_some());
        let [term] = padding[..] else { return None };
        let rest = Self { terms: rest.into_iter().cloned().collect(), starts: self.starts.clone() };
        rest.is_windowed().then_some((padding_lengths(term)?, rest))
    }

    /// Whether the mask holds for sequences of any length: causal, a window, chunks, functions.
    pub(crate) fn fits_any_length(&self) -> bool {
        self.starts.is_none() && self.terms.iter().all(|term| term.is_rule() || term.is_function())
    }

    /// Whether a part of the mask is a function of the caller.
    pub(crate) fn has_functions(&self) -> bool {
        self.terms.iter().any(|term| term.is_function())
    }

    /// Whether the mask counts the tokens of a sequence from its first one: all of them have to be keys.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.terms.iter().any(|term| term.counts_tokens())
    }

    /// The number of tokens of each sequence that are not padding, if the mask says it.
    pub(crate) fn padded_lengths(&self) -> Option<&[usize]> {
        self.terms.iter().find_map(padding_lengths)
    }

    /// Whether the mask changes scores of visible keys.
    pub(crate) fn adds_to_scores(&self) -> bool {
        self.terms.iter().any(|term| term.adds_to_scores())
    }

    /// The numbers of embeddings of distances that queries and that keys are compared with.
    pub(crate) fn distance_embeddings(&self) -> [usize; 2] {
        let most = |side: usize| self.terms.iter().map(|term| term.distance_embeddings()[side]).max().unwrap_or(0);
        [most(0), most(1)]
    }

    /// Whether a gradient flows into the mask.
    pub(crate) fn tracks_gradient(&self) -> bool {
        self.terms.iter().any(|term| term.tracks_gradient())
    }

    /// The biases by distance `(distances, h)`, if they track a gradient and nothing else of the mask does.
    pub(crate) fn learned_biases(&self) -> Option<&Tensor> {
        let mut learned = self.terms.iter().filter(|term| term.tracks_gradient());
        let first = learned.next()?.biases_by_distance();
        let tables = self.terms.iter().filter(|term| term.biases_by_distance().is_some()).count();
        first.filter(|_| learned.next().is_none() && tables == 1)
    }

    /// The call as the terms see it.
    pub(super) fn call(&self, shape: AttnShape) -> MaskCall<'_> {
        let starts = match &self.starts {
            Some(starts) => Cow::Borrowed(&starts[..]),
            None => Cow::Owned(vec![shape.s_kv as i64 - shape.s_q as i64]),
        };
        MaskCall { shape, starts, has_starts: self.starts.is_some() }
    }

    /// All causal masks and windows as one.
    pub(crate) fn narrowest_window(&self) -> Window {
        let mut structure = MaskStructure::default();
        for term in &self.terms {
            if let Some(TermStructure::Window(Window { left, right })) = term.structure() {
                structure.narrow_window(left, right);
            }
        }
        Window { left: structure.left, right: structure.right }
    }
}

/// Whether a term is causal or a window.
pub(super) fn is_window(term: &Arc<dyn MaskTerm>) -> bool {
    matches!(term.structure(), Some(TermStructure::Window(_)))
}

/// The lengths of the sequences under a mask of lengths or padding.
pub(super) fn key_lengths(term: &Arc<dyn MaskTerm>) -> Option<&[usize]> {
    match term.structure()? {
        TermStructure::Lengths(Lengths::PerSequence(lengths) | Lengths::Padding(lengths)) => Some(lengths),
        _ => None,
    }
}

/// The lengths of a padding mask.
fn padding_lengths(term: &Arc<dyn MaskTerm>) -> Option<&[usize]> {
    let TermStructure::Lengths(Lengths::Padding(lengths)) = term.structure()? else { return None };
    Some(lengths)
}

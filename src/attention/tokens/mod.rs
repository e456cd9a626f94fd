//! How the tokens of a call are stored and where its keys come from: one file for each kind, behind one trait.
//!
//! A kind checks its tensors, counts queries and keys, joins the mask with what it hides itself, and makes queries,
//! keys and values. All else of a call is the same for every kind.

mod cached;
mod memory;
mod padded;
mod places;
mod ragged;
mod shared;

use std::borrow::Cow;
use std::sync::PoisonError;

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::NewTokens;
use crate::attention::options::{AttentionInputs, AttentionOptions, Tokens};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::position::{ExplicitPositions, TokenPositions};
use crate::ragged::BatchCache;

use cached::Cached;
use memory::Memory;
use padded::Padded;
pub(super) use places::{NewPlaces, pack, pad};
use ragged::Ragged;
use shared::Shared;

/// A kind of tokens.
pub(super) trait CallTokens {
    /// Checks the tensors of a call against the layer. Returns the number of sequences.
    fn check(&self, layer: &MultiHeadAttention, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<usize>;

    /// Counts the queries and keys of checked inputs `xs`, and finds their positions. Joins `mask`, that of the call
    /// and of the layer, with what the kind hides. A cache does not change.
    fn count<'m>(
        &mut self,
        layer: &MultiHeadAttention,
        xs: &[Tensor; 3],
        options: &AttentionOptions,
        mask: Cow<'m, AttentionMask>,
    ) -> Result<(Counted, Cow<'m, AttentionMask>)>;

    /// The length of each sequence, if `mask`, the whole one of the call, has it or the keys bring it.
    fn lengths(&self, _mask: &AttentionMask, _counted: &Counted) -> Option<Vec<usize>> {
        None
    }

    /// The call over rows that replaces one over padded tokens under `mask`: the lengths of the sequences, `None` for
    /// whole ones, and a mask that is full, causal or a window. `None` where rows cannot replace them.
    fn rows(&self, _mask: &AttentionMask) -> Option<(Option<Vec<usize>>, AttentionMask)> {
        None
    }

    /// The lengths of a ragged batch, and what its layers share; `None` for every other kind.
    fn ragged(&self) -> Option<(&[usize], &BatchCache)> {
        None
    }

    /// Where the new tokens are among their padding; `None` if there is none.
    fn places(&self) -> Option<&NewPlaces> {
        None
    }

    /// The mask that a layer which takes the keys of this call joins with its own.
    fn shared_mask(&self, _counted: &Counted) -> AttentionMask {
        AttentionMask::full()
    }

    /// Queries, keys and values `(b, s, heads, d)`, ready for attention. A cache takes the new ones; what depends on
    /// queries and keys is joined to `mask`.
    fn keys(&mut self, projection: &Projection, mask: &mut Cow<AttentionMask>) -> Result<[Tensor; 3]>;

    /// Takes back what [`keys`](Self::keys) has changed, after an error.
    fn undo(&mut self) {}
}

/// The numbers of queries and keys of a call, and where they stand.
pub(super) struct Counted {
    pub b: usize,
    pub s_q: usize,
    pub s_kv: usize,
    /// The positions that the call gives.
    pub explicit: Option<ExplicitPositions>,
    /// The new tokens of a call with a cache, with their positions.
    pub new_tokens: Option<NewTokens>,
    /// The dtype of keys that are stored, and whether they track a gradient.
    pub stored: Option<(DType, bool)>,
}

impl Counted {
    fn new([b, s_q, s_kv]: [usize; 3]) -> Self {
        Self { b, s_q, s_kv, explicit: None, new_tokens: None, stored: None }
    }

    /// Where the tokens stand. `lengths` is the length of each sequence of a padded batch, if it is known.
    pub(super) fn positions<'a>(
        &'a self,
        lengths: Option<&'a [usize]>,
        options: &AttentionOptions<'a>,
    ) -> TokenPositions<'a> {
        let AttentionOptions { grid, cos_sin, .. } = *options;
        let Some(new) = &self.new_tokens else {
            let explicit = self.explicit.as_ref();
            return TokenPositions { explicit, lengths, grid, cos_sin, ..TokenPositions::default() };
        };
        let alike = |all: &[usize]| all.iter().all(|each| *each == all[0]);
        let sequences = if alike(&new.starts) && alike(&new.rotated_for) { 1 } else { usize::MAX };
        let sequences = sequences.min(new.starts.len());
        let (starts, lengths) = (&new.starts[..sequences], Some(&new.rotated_for[..sequences]));
        TokenPositions { starts, explicit: new.explicit.as_ref(), lengths, cos_sin, ..TokenPositions::default() }
    }

    /// The key at which the new tokens of each sequence start, where sequences have unequal lengths.
    pub(super) fn starts(&self) -> Option<&[usize]> {
        let [starts, _] = self.new_tokens.as_ref()?.unequal.as_ref()?;
        Some(starts)
    }
}

/// The inputs of queries, keys and values, and how they are projected.
pub(super) struct Projection<'a> {
    pub layer: &'a MultiHeadAttention,
    /// The inputs of queries, keys and values.
    pub xs: [&'a Tensor; 3],
    pub counted: &'a Counted,
    pub positions: TokenPositions<'a>,
    pub dtype: DType,
    pub tracks_gradient: bool,
    /// Whether latent attention runs in its absorbed form.
    pub absorbed: bool,
    pub options: &'a AttentionOptions<'a>,
}

impl AttentionInputs<'_> {
    /// The kind of tokens. A cache is locked for the length of a call.
    pub(super) fn kind(&self) -> Result<Box<dyn CallTokens + '_>> {
        let Some(cache) = &self.cache else {
            return Ok(match self.tokens {
                Tokens::Padded => Box::new(Padded),
                Tokens::Ragged(lengths) => {
                    Box::new(Ragged { lengths, buffers: self.buffers, own: BatchCache::default() })
                }
                Tokens::Memory(memory) => Box::new(Memory(memory)),
                Tokens::Shared(shared) => Box::new(Shared(shared)),
            });
        };
        if !matches!(self.tokens, Tokens::Padded) {
            return Err(Error::value("inputs with a key-value cache", "ragged or cross-cached", "new tokens, padded"));
        }
        let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Box::new(Cached { cache, lengths: self.new_lengths, places: None, before: None }))
    }
}

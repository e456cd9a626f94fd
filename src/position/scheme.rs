//! `PositionScheme`: how a position scheme takes part in attention.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::{Device, Tensor};
use candle_nn::Init;

use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, DistanceEmbeddings};
use crate::ops::Qkv;
use crate::position::explicit::ExplicitPositions;
use crate::ragged::{BatchCache, RaggedBatch};
use crate::weights::{Parameter, Parameters};

/// Positions of the tokens of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenPositions<'a> {
    /// The position of the first key: one for the whole batch, or one per sequence.
    pub starts: &'a [usize],
    /// The positions of all keys, if the call gives them.
    pub explicit: Option<&'a ExplicitPositions>,
    /// The length of each sequence up to its last token that is not padding. `None`: up to the last key.
    pub lengths: Option<&'a [usize]>,
    /// Cosines and sines `(b or 1, s_kv, pairs)`, if the call gives them.
    pub cos_sin: Option<[&'a Tensor; 2]>,
    /// Rows and columns, if the tokens are patches of an image and the call gives them.
    pub grid: Option<[usize; 2]>,
    /// The batch, if it is ragged.
    pub ragged: Option<RaggedBatch<'a>>,
}

impl Default for TokenPositions<'_> {
    fn default() -> Self {
        Self { starts: &[0], explicit: None, lengths: None, cos_sin: None, grid: None, ragged: None }
    }
}

impl TokenPositions<'_> {
    /// Where the last `s` of `s_kv` tokens stand, row by row, and the number of rows: 1 if all sequences stand alike.
    pub(crate) fn last_positions(&self, s: usize, s_kv: usize) -> Result<(usize, Vec<usize>)> {
        if let Some(batch) = self.ragged {
            return Ok((1, batch.lengths().flat_map(|length| 0..length).collect()));
        }
        let first = s_kv.saturating_sub(s);
        let Some(explicit) = self.explicit else {
            let positions = self.starts.iter().flat_map(|start| start + first..start + first + s);
            return Ok((self.starts.len(), positions.collect()));
        };
        let allowed = format!("at most {}, the positions", explicit.tokens);
        ensure!(s <= explicit.tokens, Error::value("the number of queries", s, allowed));
        let row_positions = |row| explicit.row(0, row)[first..].iter().map(|position| *position as usize);
        Ok((explicit.rows, (0..explicit.rows).flat_map(row_positions).collect()))
    }
}

/// A call of `s_q` queries over `s_kv` keys, as far as a bias needs it that depends on positions alone.
pub(crate) struct BiasCall<'a> {
    pub heads: usize,
    /// The factor on the scores.
    pub scale: f64,
    pub b: usize,
    pub s_q: usize,
    pub s_kv: usize,
    /// Rows and columns, if the tokens are patches of an image and the call gives them.
    pub grid: Option<[usize; 2]>,
    /// The key at which query 0 of each sequence stands; `None` if the last query stands at the last key.
    pub starts: Option<&'a [usize]>,
    pub device: &'a Device,
    pub state: &'a PositionState,
    /// For ragged batches, of which `s_q` and `s_kv` are the longest sequence.
    pub cache: Option<&'a BatchCache>,
}

/// A call of `s_q` queries over `s_kv` keys, of which the last query stands at the last key, for embeddings of
/// distances.
pub(crate) struct EmbeddingCall<'a> {
    pub s_q: usize,
    pub s_kv: usize,
    pub heads: usize,
    /// The projections of the layer.
    pub qkv: &'a Qkv,
    pub state: &'a PositionState,
}

/// A call whose queries are projected, for terms that depend on them or on the input of the layer.
pub(crate) struct QueryCall<'a> {
    /// The input of the queries, `(b, s_q, query_size)`.
    pub xs: &'a Tensor,
    /// `(b, s_q, h, d)`.
    pub q: &'a Tensor,
    pub s_kv: usize,
    /// The factor on the scores.
    pub scale: f64,
    /// Rows and columns, if the tokens are patches of an image and the call gives them.
    pub grid: Option<[usize; 2]>,
    /// The types of the keys, of which the queries are the last, `(b or 1, s_kv)`, if the call gives them.
    pub token_types: Option<&'a Tensor>,
    pub state: &'a PositionState,
}

/// Properties of a scheme: its needs in a call, and the ways to run it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SchemeTraits {
    /// Whether queries and keys have to be all tokens of a sequence, which excludes a cache.
    pub needs_full_sequence: bool,
    /// Whether the number of tokens of a sequence decides where they stand.
    pub counts_tokens: bool,
    /// Whether a call may give the cosines and sines of each token.
    pub accepts_cos_sin: bool,
    /// Whether a call may give the rows and columns of patches.
    pub uses_grid: bool,
    /// Whether a call may give the type of each token.
    pub uses_token_types: bool,
    /// Whether tensor operations run ragged batches without padding: [`rotate`](PositionScheme::rotate) and
    /// [`bias`](PositionScheme::bias) handle [`TokenPositions::ragged`] and [`BiasCall::cache`].
    pub runs_ragged: bool,
    /// Whether the buffers of the CPU kernel run it: a scheme that rotates implements
    /// [`rotate_in_place`](PositionScheme::rotate_in_place), a bias is by distance or `(1, h, s, s)`, and the kernel
    /// reads [embeddings of distances](PositionScheme::distance_embeddings).
    pub runs_rows: bool,
    /// Whether [`rotate`](PositionScheme::rotate) changes queries and keys.
    pub rotates: bool,
}

/// The behavior of a position scheme towards attention, pruning and checkpoints.
///
/// The defaults are right for every scheme that does not override them. A scheme implements at least
/// [`rotate`](Self::rotate) with [`rotates`](SchemeTraits::rotates), [`bias`](Self::bias),
/// [`distance_embeddings`](Self::distance_embeddings) or [`query_term`](Self::query_term).
pub(crate) trait PositionScheme {
    /// Checks the fields of the scheme for a layer of these sizes.
    fn validate(&self, _sizes: &LayerSizes) -> Result<()> {
        Ok(())
    }

    /// The tensors that the scheme learns.
    fn parameters(&self, _sizes: &LayerSizes) -> Vec<Parameter> {
        Vec::new()
    }

    /// The properties of the scheme.
    fn traits(&self) -> SchemeTraits {
        SchemeTraits::default()
    }

    /// Adapts the scheme to a layer that keeps only the heads `kept` of `heads`.
    fn prune(&mut self, _kept: &[usize], _heads: usize) {}

    /// The factor on dot products, if it is not `head_dim^-0.5`.
    fn default_scale(&self, _head_dim: usize) -> Option<f64> {
        None
    }

    /// Whether a call may give each token its position, as `axes` numbers.
    fn accepts_positions(&self, _axes: usize) -> bool {
        false
    }

    /// A number that two lengths of a sequence share if and only if its keys are rotated alike.
    fn rotation_class(&self, _length: usize) -> usize {
        0
    }

    /// Queries `(b, s_q, h, d)` and keys `(b, s_kv, h_kv, d)` with their positions applied. The last query stands at
    /// the last key. Differentiable.
    fn rotate(&self, q: Tensor, k: Tensor, _tokens: &TokenPositions) -> Result<[Tensor; 2]> {
        Ok([q, k])
    }

    /// The queries of [`rotate`](Self::rotate) alone, over `s_kv` keys that are rotated already.
    fn rotate_queries(&self, q: Tensor, s_kv: usize, tokens: &TokenPositions) -> Result<Tensor> {
        let (b, _, _, d) = q.dims4()?;
        let keys = Tensor::zeros((b, s_kv, 1, d), q.dtype(), q.device())?;
        let [q, _] = self.rotate(q, keys, tokens)?;
        Ok(q)
    }

    /// [`rotate`](Self::rotate) for a buffer of tokens of a ragged batch, each beginning with `heads` heads of
    /// `head_dim` elements: queries, then keys.
    fn rotate_in_place(&self, _xs: &mut [f32], _heads: usize, _head_dim: usize, _batch: RaggedBatch) -> Result<()> {
        Ok(())
    }

    /// Embeddings of distances `(2 n + 1, d_v)` that are added to values, from a key `n` tokens before the query to one
    /// `n` tokens after it.
    fn value_distances(&self, _state: &PositionState) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// A mask term that is added to the scores and depends on positions alone.
    fn bias(&self, _call: &BiasCall) -> Result<Option<AttentionMask>> {
        Ok(None)
    }

    /// Embeddings of distances, whose products with queries and keys are added to the scores. Differentiable.
    fn distance_embeddings(&self, _call: &EmbeddingCall) -> Result<Option<DistanceEmbeddings>> {
        Ok(None)
    }

    /// The numbers of [`distance_embeddings`](Self::distance_embeddings) that queries and that keys are compared with
    /// in a call over `s_kv` keys, or of biases of its [`query_term`](Self::query_term); not 0 if there are any.
    fn distance_embedding_count(&self, _s_kv: usize) -> [usize; 2] {
        [0; 2]
    }

    /// Vectors `(h, d)`, one per head, that are added to the queries after norms and rotation.
    fn query_bias<'a>(&self, _state: &'a PositionState) -> Result<Option<&'a Tensor>> {
        Ok(None)
    }

    /// A mask term that is added to the scores and depends on the queries or the input of the layer. Differentiable.
    fn query_term(&self, _call: &QueryCall) -> Result<Option<AttentionMask>> {
        Ok(None)
    }

    /// The scheme in short, as it is printed.
    fn describe(&self) -> String;
}

/// The distribution of new embeddings and biases.
pub(super) const NORMAL: Init = Init::Randn { mean: 0.0, stdev: 0.02 };

/// Sizes of the attention layer that a scheme belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerSizes {
    pub hidden_size: usize,
    pub query_size: usize,
    pub key_size: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub value_head_dim: usize,
}

/// Parameters of a scheme in one layer, with the tensors that are computed from them once.
#[derive(Debug, Clone, Default)]
pub(crate) struct PositionState {
    pub weights: Parameters,
    derived: Arc<OnceLock<[Option<Tensor>; 2]>>,
    /// The result for the longest sequence so far, and the length of that sequence.
    grown: Arc<Mutex<Option<(usize, Tensor)>>>,
}

/// The longest sequence for which [`PositionState::grown`] keeps what is computed: some megabytes per layer.
const LONGEST_KEPT: usize = 1 << 10;

impl PositionState {
    pub(crate) fn new(weights: Parameters) -> Self {
        Self { weights, derived: Arc::default(), grown: Arc::default() }
    }

    /// The result of `compute`. It is kept for later calls if `fixed`: nothing that it depends on can change.
    pub(crate) fn derived(
        &self,
        fixed: bool,
        compute: impl FnOnce() -> Result<[Option<Tensor>; 2]>,
    ) -> Result<[Option<Tensor>; 2]> {
        if !fixed {
            return compute();
        }
        if let Some(derived) = self.derived.get() {
            return Ok(derived.clone());
        }
        let derived = compute()?;
        Ok(self.derived.get_or_init(|| derived).clone())
    }

    /// The result of `compute` for a sequence of `length` tokens or more, and that length. It is kept for later calls
    /// if `fixed`: nothing else that it depends on can change.
    pub(crate) fn grown(
        &self,
        fixed: bool,
        length: usize,
        compute: impl FnOnce(usize) -> Result<Tensor>,
    ) -> Result<(usize, Tensor)> {
        if !fixed || length > LONGEST_KEPT {
            return Ok((length, compute(length)?));
        }
        let kept = || self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grown) = kept().clone().filter(|(longest, _)| *longest >= length) {
            return Ok(grown);
        }
        // Not under the lock: a thread that waits for its part of a product may run another call of this layer.
        let longest = length.next_power_of_two();
        let grown = (longest, compute(longest)?);
        let mut kept = kept();
        if kept.as_ref().is_none_or(|(other, _)| *other < longest) {
            *kept = Some(grown.clone());
        }
        Ok(grown)
    }
}

//! Shaw's relative positions: queries are also compared with learned embeddings of their distance to each key.

use candle_core::Tensor;

use super::scheme::{EmbeddingCall, LayerSizes, NORMAL, PositionScheme, SchemeTraits};
use crate::error::{Error, Result};
use crate::mask::DistanceEmbeddings;
use crate::ops::accumulate_dtype;
use crate::weights::{Parameter, Presence};

const EMBEDDINGS: &str = "distance_embedding.weight";
const REVERSED: &str = "rel_pos_emb.weight";

/// Upper bound of a distance.
const MAX_DISTANCE: usize = 1 << 20;

/// Relative positions added to keys (`relative_key`, [Shaw 2018](https://arxiv.org/abs/1803.02155)): a score is
/// `q · (k + e)`, times the scale, where `e` is a learned embedding of the distance from query to key.
///
/// The embeddings `distance_embedding.weight` `(left + right + 1, head_dim)` are a weight of the layer
/// ([`Parameters`](crate::weights::Parameters)), shared by all heads. The first is that of keys `left` tokens
/// before the query or more, the last that of keys `right` tokens after it or more. If they are
/// [reversed](Self::reversed), their name is `rel_pos_emb.weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelativeKey {
    /// The distance from which on all keys before the query share an embedding; at most 1,048,576.
    pub left: usize,
    /// The distance from which on all keys after the query share an embedding; at most 1,048,576.
    pub right: usize,
    /// Whether the embeddings come in the other order, that of keys after the query first (Granite Speech); default
    /// false.
    pub reversed: bool,
    /// The most tokens of a sequence, if the model cuts longer ones into blocks, which are sequences of the batch
    /// (Granite Speech); default any number.
    pub block: Option<usize>,
}

impl RelativeKey {
    /// Embeddings of distances up to `left` tokens before the query and `right` after it.
    pub fn new(left: usize, right: usize) -> Self {
        Self { left, right, reversed: false, block: None }
    }

    crate::setters! {
        /// Sets the distance from which on all keys before the query share an embedding.
        with_left, left: usize = left;
        /// Sets the distance from which on all keys after the query share an embedding.
        with_right, right: usize = right;
        /// Sets whether the embedding of keys after the query comes first.
        with_reversed, reversed: bool = reversed;
        /// Sets the most tokens of a sequence.
        with_block, block: usize = Some(block);
    }

    /// The number of embeddings.
    pub fn embeddings(&self) -> usize {
        // Saturating, because the distances may not have been validated yet.
        self.left.saturating_add(self.right).saturating_add(1)
    }

    fn name(&self) -> &'static str {
        if self.reversed { REVERSED } else { EMBEDDINGS }
    }

    /// The embeddings, those of keys after the query first, for each head: `(embeddings, h · d)`.
    fn for_heads(&self, call: &EmbeddingCall) -> Result<Tensor> {
        let table = call.state.weights.require(self.name())?.to_dtype(accumulate_dtype(call.qkv.like()))?;
        let (n, d) = table.dims2()?;
        let table = if self.reversed {
            table
        } else {
            table.index_select(&Tensor::new((0..n as u32).rev().collect::<Vec<_>>(), table.device())?, 0)?
        };
        Ok(table.unsqueeze(1)?.broadcast_as((n, call.heads, d))?.contiguous()?.reshape((n, call.heads * d))?)
    }
}

impl PositionScheme for RelativeKey {
    fn validate(&self, _: &LayerSizes) -> Result<()> {
        let sides = [("left_max_position_embeddings", self.left), ("right_max_position_embeddings", self.right)];
        match sides.into_iter().find(|(_, distance)| *distance > MAX_DISTANCE) {
            Some((key, distance)) => Err(Error::config(key, distance, format!("at most {MAX_DISTANCE}"))),
            None => Ok(()),
        }
    }

    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        // Granite Speech, which has blocks, stores one in each layer, SpeechT5 one beside all layers.
        let presence = if self.reversed && self.block.is_none() { Presence::Shared } else { Presence::Required };
        vec![Parameter::new(self.name(), [self.embeddings(), sizes.head_dim], NORMAL).with_presence(presence)]
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { needs_full_sequence: true, runs_rows: true, ..SchemeTraits::default() }
    }

    fn distance_embeddings(&self, call: &EmbeddingCall) -> Result<Option<DistanceEmbeddings>> {
        if let Some(block) = self.block.filter(|block| call.s_q.max(call.s_kv) > *block) {
            let expected = format!("at most {block}: the model cuts a longer sequence into blocks, each a sequence");
            return Err(Error::value("the number of tokens", call.s_q.max(call.s_kv), expected));
        }
        let fixed = !call.state.weights.tracks_gradient();
        let [c2p, p2c] = call.state.derived(fixed, || Ok([Some(self.for_heads(call)?), None]))?;
        let (left, right) = (self.left as i64, self.right as i64);
        let first = 1 - call.s_kv as i64;
        let indices = (first..call.s_q as i64).map(|distance| (right - distance.clamp(-left, right)) as u32).collect();
        Ok(Some(DistanceEmbeddings { c2p, p2c, bias: None, count: self.embeddings(), indices, first }))
    }

    fn distance_embedding_count(&self, _: usize) -> [usize; 2] {
        [self.embeddings(), 0]
    }

    fn describe(&self) -> String {
        format!("relative key({} left, {} right)", self.left, self.right)
    }
}

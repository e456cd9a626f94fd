//! The inputs that a layer needs of a call beyond its tokens.

use std::fmt;

/// An input of a call that neither weights nor configuration hold, because it follows from the image, the page or the
/// prompt that the tokens come from.
///
/// A layer lists those that it requires in [`AttentionConfig::requires`](crate::AttentionConfig::requires). A call
/// without one of them is [`Error::MissingInput`](crate::Error::MissingInput): its output would not be the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallInput {
    /// Vectors `(b or 1, s, size)` that are added to the inputs of queries and keys, and not to those of values:
    /// `q = q_proj(x + p)`, `k = k_proj(y + p')`, `v = v_proj(y)` (the object queries and position embeddings of
    /// [DETR](https://arxiv.org/abs/2005.12872)).
    ///
    /// By [`AttentionInputs::with_position_vectors`](crate::AttentionInputs::with_position_vectors), or added already:
    /// in a call whose keys and values are two tensors.
    PositionVectors,
    /// Cosines and sines `(b or 1, s, pairs)` of the angles by which each token's pairs of elements are rotated.
    ///
    /// By [`AttentionOptions::with_cos_sin`](crate::AttentionOptions::with_cos_sin).
    CosSin,
    /// Numbers `(b, h, s_q, s_kv)`, each dimension of its size or 1, that are added to the scores.
    ///
    /// By [`AttentionOptions::with_score_bias`](crate::AttentionOptions::with_score_bias), or in a mask that adds to
    /// the scores ([`AttentionMask::additive`](crate::AttentionMask::additive)).
    ScoreBias {
        /// Whether the layer multiplies the bias by the factor on its scores: `(q · k + bias) · scale` (LayoutLMv3).
        /// A mask is added as it is.
        scaled: bool,
    },
    /// Where the tokens stand, integers `(s)` or `(b, s)`: some patches of a video, in an order of their own, or the
    /// queries of a model that drafts for another one, over the [`KeyValues`](crate::KeyValues) of that model.
    ///
    /// By [`AttentionOptions::with_positions`](crate::AttentionOptions::with_positions).
    Positions,
    /// Which keys each query sees.
    ///
    /// By the mask of the call. One of padding alone, which hides the same keys from all queries, does not say it.
    /// Where all see all tokens, [`AttentionMask::prefix_lm`](crate::AttentionMask::prefix_lm) of all tokens does.
    Mask,
    /// Rows and columns of patches, of a model whose images have any shape.
    ///
    /// By [`AttentionOptions::with_grid`](crate::AttentionOptions::with_grid).
    Grid,
}

impl CallInput {
    /// The shape of the input, and how a call gives it.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Self::PositionVectors => {
                "(b or 1, s, size) for queries and for keys, by `AttentionInputs::with_position_vectors`, or keys and \
                 values as two tensors, of which the keys include them"
            }
            Self::CosSin => "(b or 1, s, pairs), by `AttentionOptions::with_cos_sin`",
            Self::ScoreBias { .. } => {
                "(b, h, s_q, s_kv), by `AttentionOptions::with_score_bias`, or a mask that adds to the scores"
            }
            Self::Positions => "where the tokens stand, (s) or (b, s), by `AttentionOptions::with_positions`",
            Self::Mask => "which keys each query sees, by a mask of the call that is not one of padding alone",
            Self::Grid => "rows and columns of patches, by `AttentionOptions::with_grid`",
        }
    }
}

impl fmt::Display for CallInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PositionVectors => "position vectors",
            Self::CosSin => "cosines and sines",
            Self::ScoreBias { .. } => "a score bias",
            Self::Positions => "positions",
            Self::Mask => "a mask",
            Self::Grid => "a grid",
        })
    }
}

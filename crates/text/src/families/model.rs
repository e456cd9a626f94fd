//! `Model`: the whole-model half of a family's row, from embeddings to the names of its blocks.
//!
//! The encoder builds its stack from these columns. A decoder that embeds texts is a row too, not code.

use candle_attention::NormKind;

use crate::families::task_heads::{ClassifierHead, MaskedLmHead, TokenClassifierHead};

/// Absolute positions: embeddings added to those of the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbsolutePositions {
    /// A table, counted from 0.
    Table,
    /// A table, counted from the padding token's id plus one; padding tokens do not count (RoBERTa).
    AfterPad,
    /// As `AfterPad`, with this id whatever the padding token is (MPNet).
    After(u32),
    /// `Table`, unless this config key is false (DeBERTa).
    TableUnless(&'static str),
    /// None: positions are part of attention.
    None,
}

/// Whether embeddings of segment types are added to those of the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentTypes {
    /// Always.
    Always,
    /// If `type_vocab_size` is not 0; the value is its default.
    Optional(usize),
    /// Never.
    Never,
}

/// The norms of a block, by their position around attention and feed-forward, each with its name in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockNorms {
    /// Post-norm, `x = norm(x + f(x))` (BERT).
    Post { attention: &'static str, feed_forward: &'static str },
    /// Pre-norm, `x = x + f(norm(x))` ([Xiong 2020](https://arxiv.org/abs/2002.04745)).
    Pre { attention: &'static str, feed_forward: &'static str },
    /// Both sides, `x = x + after(f(before(x)))`, as `[before, after]` (Gemma 2).
    Sandwich { attention: [&'static str; 2], feed_forward: [&'static str; 2] },
}

/// The projections of a feed-forward part: plain, `last(activation(first(x)))`, or gated,
/// `last(activation(activated(x)) · plain(x))` ([Shazeer 2020](https://arxiv.org/abs/2002.05202)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedForwardNames {
    /// Not gated.
    Plain { first: &'static str, last: &'static str },
    /// Gated, both factors in one matrix; `activated` is the index of the activated half, 0 or 1.
    Halves { both: &'static str, activated: usize, last: &'static str },
    /// Gated, with a matrix for each factor.
    Apart { activated: &'static str, plain: &'static str, last: &'static str },
}

/// One block of the stack: attention and feed-forward, each with a residual connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Prefix of the attention layer within the block.
    pub attention: &'static str,
    /// Position and names of the norms.
    pub norms: BlockNorms,
    /// Formula of all norms of the model.
    pub norm_kind: NormKind,
    /// Whether layer norms have a bias if the key `norm_bias` is absent.
    pub norm_bias: bool,
    /// A norm of input plus attention, whose result is added to the input once more (Jina's model for code).
    pub inner_norm: Option<&'static str>,
    /// Whether the first block has the norm of its attention. ModernBERT normalizes its embeddings instead.
    pub first_attention_norm: bool,
    /// Names of the projections.
    pub feed_forward: FeedForwardNames,
    /// Whether a feed-forward part that is not gated has biases. In gated ones each bias is optional.
    pub feed_forward_bias: bool,
    /// Whether a mixture of experts takes the place of the feed-forward part in some blocks (NomicBERT).
    pub has_experts: bool,
    /// Whether a short convolution takes the place of attention in some blocks (LFM2).
    pub has_convolutions: bool,
    /// Whether a third part multiplies its inner features by a projection of the token's embedding (EmbeddingGemma 2).
    pub has_embedding_gate: bool,
}

/// A config key that names a gate instead of an activation (`swiglu`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateKey {
    /// The key.
    pub key: &'static str,
    /// The gates that the family uses.
    pub gates: &'static [&'static str],
    /// Whether the key must be present.
    pub required: bool,
}

/// The differences of a whole model from BERT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    /// Prefixes of all names in checkpoints that also have a task head.
    pub prefixes: &'static [&'static str],
    /// The table of word embeddings.
    pub word_embeddings: &'static str,
    /// The encoder's own name for it, which counts where both are stored (T5).
    pub own_word_embeddings: Option<&'static str>,
    /// Whether they are multiplied by `sqrt(hidden_size)` (Gemma).
    pub scales_embeddings: bool,
    /// The table of absolute positions.
    pub position_embeddings: &'static str,
    /// How absolute positions are counted.
    pub positions: AbsolutePositions,
    /// The table of segment types.
    pub type_embeddings: &'static str,
    /// Whether there is one.
    pub types: SegmentTypes,
    /// Whether the tokenizer gives the second text of a pair its own segment type. RoBERTa's does not.
    pub pair_types: bool,
    /// The norm of the embeddings.
    pub embeddings_norm: Option<&'static str>,
    /// From the width of the embeddings to that of the model, if they may differ.
    pub projection: Option<&'static str>,
    /// Prefix of the blocks, which are numbered below it.
    pub layers: &'static str,
    /// The name of blocks within a group, in models whose groups of layers share their weights (ALBERT).
    pub shared_layers: Option<&'static str>,
    /// Whether heads can be removed. In T5 a table with a column per head is part of a layer.
    pub heads_can_be_pruned: bool,
    /// The blocks.
    pub block: Block,
    /// The norm after the last block.
    pub final_norm: Option<&'static str>,
    /// A projection of each token after that norm, with the config key for its size.
    pub final_projection: Option<(&'static str, &'static str)>,
    /// The padding token if `pad_token_id` is absent.
    pub pad_token_id: u32,
    /// Tensors of the family's checkpoints that have no effect here, or all those below these names: poolers of hidden
    /// states, parts of heads that only training uses. Names in the body, or whole names of tensors beside it.
    pub ignored_tensors: &'static [&'static str],
    /// Keys of the family's `config.json`, each with BERT's name for it: its value is also stored under that.
    pub renamed_keys: &'static [(&'static str, &'static str)],
    /// Values of numeric keys that `config.json` may leave out, by BERT's names, as the family's config class has them.
    pub default_keys: &'static [(&'static str, f64)],
    /// Whether `is_causal` must be stated if the model's folder brings code of its own (`auto_map`): such code is often
    /// there to see both ways (GTE's Qwen 2).
    pub mask_must_be_stated: bool,
    /// Whether tokens see later ones too, where the layer's family is causal: the model's own code says so.
    pub sees_both_ways: bool,
    /// The activation of a family whose configuration names none.
    pub activation: Option<&'static str>,
    /// Whether the inner size is two thirds of `intermediate_size`, rounded up (LFM2).
    pub adjusts_inner_size: bool,
    /// The key that names the activation with the prefix `gated-` if the feed-forward part is gated, and its default
    /// (T5).
    pub activation_key: Option<(&'static str, &'static str)>,
    /// The key that names the gate of the feed-forward part.
    pub gate: Option<GateKey>,
    /// Keys that must be absent, null, false or 0: they switch on what is not implemented.
    pub unsupported_keys: &'static [&'static str],
    /// Numbers that must have this value if they are stated.
    pub needed_numbers: &'static [(&'static str, u64)],
    /// The head for sequence classification.
    pub classifier: Option<ClassifierHead>,
    /// The head for token classification.
    pub token_classifier: TokenClassifierHead,
    /// The head for masked language modeling.
    pub masked_lm: Option<MaskedLmHead>,
}

impl Model {
    /// The prefix of each of `layers` blocks, in the order in which they run. With shared layers, the blocks come in
    /// `groups` of `group_size`, and prefixes repeat.
    pub fn block_prefixes(&self, layers: usize, groups: usize, group_size: usize) -> Vec<String> {
        let Some(shared) = self.shared_layers else {
            return (0..layers).map(|i| format!("{}.{i}", self.layers)).collect();
        };
        let group_prefixes =
            |group: usize| (0..group_size).map(move |i| format!("{}.{group}.{shared}.{i}", self.layers));
        (0..layers).flat_map(|i| group_prefixes(i * groups / layers)).collect()
    }
}

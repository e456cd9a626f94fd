//! The encoders of models with an encoder and a decoder.

use candle_attention::NormKind;

use crate::families::encoders::BERT_MODEL;
use crate::families::model::{AbsolutePositions, Block, BlockNorms, FeedForwardNames, Model, SegmentTypes};

/// The encoder of T5 alone ([Raffel 2020](https://arxiv.org/abs/1910.10683)), as sentence-t5 and GTR have it.
pub(super) const T5_MODEL: Model = Model {
    prefixes: &["transformer"],
    word_embeddings: "shared",
    own_word_embeddings: Some("encoder.embed_tokens"),
    positions: AbsolutePositions::None,
    types: SegmentTypes::Never,
    pair_types: false,
    embeddings_norm: None,
    layers: "encoder.block",
    heads_can_be_pruned: false,
    block: Block {
        attention: "layer.0.SelfAttention",
        norms: BlockNorms::Pre { attention: "layer.0.layer_norm", feed_forward: "layer.1.layer_norm" },
        norm_kind: NormKind::Rms,
        norm_bias: false,
        feed_forward: FeedForwardNames::Plain { first: "layer.1.DenseReluDense.wi", last: "layer.1.DenseReluDense.wo" },
        feed_forward_bias: false,
        ..BERT_MODEL.block
    },
    final_norm: Some("encoder.final_layer_norm"),
    renamed_keys: &[
        ("d_model", "hidden_size"),
        ("d_kv", "head_dim"),
        ("d_ff", "intermediate_size"),
        ("num_layers", "num_hidden_layers"),
        ("num_heads", "num_attention_heads"),
        ("layer_norm_epsilon", "layer_norm_eps"),
        ("dropout_rate", "hidden_dropout_prob"),
    ],
    // Distances have no bound. This one is far beyond what a tokenizer states, which is the limit that counts.
    default_keys: &[("layer_norm_eps", 1e-6), ("head_dim", 64.0), ("max_position_embeddings", 1_048_576.0)],
    ignored_tensors: &["shared", "decoder"],
    activation_key: Some(("feed_forward_proj", "relu")),
    unsupported_keys: &[],
    classifier: None,
    masked_lm: None,
    ..BERT_MODEL
};

/// T5 1.1 and later, with a gated feed-forward.
pub(super) const GATED_T5_MODEL: Model = Model {
    block: Block {
        feed_forward: FeedForwardNames::Apart {
            activated: "layer.1.DenseReluDense.wi_0",
            plain: "layer.1.DenseReluDense.wi_1",
            last: "layer.1.DenseReluDense.wo",
        },
        ..T5_MODEL.block
    },
    activation_key: Some(("feed_forward_proj", "gated-gelu")),
    ..T5_MODEL
};

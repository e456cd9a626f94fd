//! Whole models of decoder families that embed texts and rank them (Qwen3-Embedding, e5-mistral, EmbeddingGemma).

use candle_attention::NormKind;

use crate::families::encoders::BERT_MODEL;
use crate::families::model::{AbsolutePositions, Block, BlockNorms, FeedForwardNames, Model, SegmentTypes};
use crate::families::task_heads::ClassifierHead;

const NORM_EPS: (&str, f64) = ("layer_norm_eps", 1e-6);

/// Llama: pre-norm blocks with RMS norms and a gated feed-forward.
pub(super) const LLAMA_MODEL: Model = Model {
    prefixes: &["model"],
    word_embeddings: "embed_tokens",
    positions: AbsolutePositions::None,
    types: SegmentTypes::Never,
    pair_types: false,
    embeddings_norm: None,
    projection: None,
    layers: "layers",
    block: Block {
        attention: "self_attn",
        norms: BlockNorms::Pre { attention: "input_layernorm", feed_forward: "post_attention_layernorm" },
        norm_kind: NormKind::Rms,
        norm_bias: false,
        feed_forward: FeedForwardNames::Apart {
            activated: "mlp.gate_proj",
            plain: "mlp.up_proj",
            last: "mlp.down_proj",
        },
        ..BERT_MODEL.block
    },
    final_norm: Some("norm"),
    renamed_keys: &[("rms_norm_eps", "layer_norm_eps"), ("attention_dropout", "attention_probs_dropout_prob")],
    default_keys: &[NORM_EPS, ("max_position_embeddings", 2_048.0)],
    mask_must_be_stated: true,
    unsupported_keys: &[],
    classifier: Some(ClassifierHead::DECODER),
    masked_lm: None,
    ..BERT_MODEL
};

pub(super) const MISTRAL_MODEL: Model = Model {
    default_keys: &[NORM_EPS, ("max_position_embeddings", 131_072.0), ("num_key_value_heads", 8.0)],
    ..LLAMA_MODEL
};

pub(super) const QWEN2_MODEL: Model = Model {
    default_keys: &[NORM_EPS, ("max_position_embeddings", 32_768.0), ("num_key_value_heads", 32.0)],
    ..LLAMA_MODEL
};

pub(super) const QWEN3_MODEL: Model = Model {
    default_keys: &[
        NORM_EPS,
        ("max_position_embeddings", 32_768.0),
        ("num_key_value_heads", 32.0),
        ("head_dim", 128.0),
    ],
    ..LLAMA_MODEL
};

pub(super) const GEMMA3_MODEL: Model = Model {
    scales_embeddings: true,
    block: Block {
        norms: BlockNorms::Sandwich {
            attention: ["input_layernorm", "post_attention_layernorm"],
            feed_forward: ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
        },
        norm_kind: NormKind::RmsOffset,
        ..LLAMA_MODEL.block
    },
    renamed_keys: &[
        ("hidden_activation", "hidden_act"),
        ("rms_norm_eps", "layer_norm_eps"),
        ("attention_dropout", "attention_probs_dropout_prob"),
    ],
    default_keys: &[
        NORM_EPS,
        ("max_position_embeddings", 131_072.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
    ],
    ..LLAMA_MODEL
};

pub(super) const EUROBERT_MODEL: Model = Model {
    default_keys: &[("layer_norm_eps", 1e-5), ("max_position_embeddings", 8_192.0)],
    mask_must_be_stated: false,
    pad_token_id: 128_001,
    classifier: None,
    ..LLAMA_MODEL
};

/// Qwen 3 that sees both ways (pplx-embed).
pub(super) const QWEN3_BOTH_WAYS_MODEL: Model = Model { sees_both_ways: true, classifier: None, ..QWEN3_MODEL };

/// Qwen 3 that sees both ways, with a projection of each token (voyage-4-nano).
pub(super) const VOYAGE_MODEL: Model =
    Model { final_projection: Some(("linear", "num_labels")), ..QWEN3_BOTH_WAYS_MODEL };

/// LFM2: short convolutions, and attention in some blocks.
pub(super) const LFM2_MODEL: Model = Model {
    prefixes: &["model", "lfm2"],
    block: Block {
        norms: BlockNorms::Pre { attention: "operator_norm", feed_forward: "ffn_norm" },
        feed_forward: FeedForwardNames::Apart {
            activated: "feed_forward.w1",
            plain: "feed_forward.w3",
            last: "feed_forward.w2",
        },
        has_convolutions: true,
        ..LLAMA_MODEL.block
    },
    final_norm: Some("embedding_norm"),
    heads_can_be_pruned: false,
    renamed_keys: &[("norm_eps", "layer_norm_eps"), ("block_ff_dim", "intermediate_size")],
    default_keys: &[("layer_norm_eps", 1e-5), ("max_position_embeddings", 128_000.0), ("num_key_value_heads", 8.0)],
    activation: Some("silu"),
    adjusts_inner_size: true,
    classifier: None,
    ..LLAMA_MODEL
};

/// LFM2 that sees both ways (LFM2.5-Embedding, LFM2.5-ColBERT).
pub(super) const LFM2_BOTH_WAYS_MODEL: Model = Model { sees_both_ways: true, ..LFM2_MODEL };

/// The text model of EmbeddingGemma 2, which is an encoder. The model around it has images and sounds too.
pub(super) const EMBEDDING_GEMMA2_MODEL: Model = Model {
    prefixes: &["language_model", "model.language_model", "model"],
    block: Block { norm_kind: NormKind::Rms, has_embedding_gate: true, ..GEMMA3_MODEL.block },
    final_projection: Some(("embedding_projection", "embedding_dim")),
    heads_can_be_pruned: false,
    activation: Some("gelu_pytorch_tanh"),
    default_keys: &[
        NORM_EPS,
        ("max_position_embeddings", 262_144.0),
        ("num_key_value_heads", 2.0),
        ("head_dim", 256.0),
        ("hidden_size_per_layer_input", 512.0),
        ("embedding_dim", 768.0),
    ],
    mask_must_be_stated: false,
    classifier: None,
    ..GEMMA3_MODEL
};

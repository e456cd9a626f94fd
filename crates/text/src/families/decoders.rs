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

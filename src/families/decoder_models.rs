//! Decoder families whose whole models embed texts and rank them (Qwen3-Embedding, e5-mistral, EmbeddingGemma).

use crate::config::{NormKind, NormOver};
use crate::families::block::{
    AbsolutePositions, Block, BlockNorms, EmbeddingScale, FeedForwardNames, Model, SegmentTypes,
};
use crate::families::decoders::{EVERYWHERE, LLAMA, QWEN2_DEFAULTS, QWEN3, UPPER, windows};
use crate::families::encoders::BERT_MODEL;
use crate::families::family::{BASE, Causal, Family, LayerPositions, ROTARY, RotaryRow, Scale, WindowLayers};
use crate::families::task_heads::ClassifierHead;

const NORM_EPS: (&str, f64) = ("layer_norm_eps", 1e-6);

/// Llama: pre-norm blocks with RMS norms and a gated feed-forward.
const LLAMA_MODEL: Model = Model {
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

const MISTRAL_MODEL: Model = Model {
    default_keys: &[NORM_EPS, ("max_position_embeddings", 131_072.0), ("num_key_value_heads", 8.0)],
    ..LLAMA_MODEL
};

const QWEN2_MODEL: Model = Model {
    default_keys: &[NORM_EPS, ("max_position_embeddings", 32_768.0), ("num_key_value_heads", 32.0)],
    ..LLAMA_MODEL
};

const QWEN3_MODEL: Model = Model {
    default_keys: &[
        NORM_EPS,
        ("max_position_embeddings", 32_768.0),
        ("num_key_value_heads", 32.0),
        ("head_dim", 128.0),
    ],
    ..LLAMA_MODEL
};

const GEMMA3_MODEL: Model = Model {
    embedding_scale: EmbeddingScale::SqrtHiddenSize,
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

const EUROBERT_MODEL: Model = Model {
    default_keys: &[("layer_norm_eps", 1e-5), ("max_position_embeddings", 8_192.0)],
    mask_must_be_stated: false,
    pad_token_id: 128_001,
    classifier: None,
    ..LLAMA_MODEL
};

const GEMMA3: Family = Family {
    causal: Causal::UnlessBidirectional,
    window: windows(WindowLayers::AllButLastOf { key: Some("sliding_window_pattern"), default: 6 }),
    positions: LayerPositions::Rotary(RotaryRow {
        theta: 1_000_000.0,
        window_theta: Some(10_000.0),
        scales_windowed: false,
        ..ROTARY
    }),
    scale: Scale::QueryPreAttnScalar,
    qk_norm: Some((NormKind::RmsOffset, NormOver::Head)),
    defaults: &[("sliding_window", 4096.0), ("query_pre_attn_scalar", 256.0)],
    ..LLAMA
};

pub(crate) const DECODER_MODELS: &[Family] = &[
    Family { model_types: &["llama"], model: Some(LLAMA_MODEL), ..LLAMA },
    Family {
        model_types: &["mistral"],
        window: EVERYWHERE,
        defaults: &[("sliding_window", 4096.0)],
        model: Some(MISTRAL_MODEL),
        ..LLAMA
    },
    Family { model_types: &["qwen2"], window: UPPER, defaults: QWEN2_DEFAULTS, model: Some(QWEN2_MODEL), ..LLAMA },
    Family { model_types: &["qwen3"], window: UPPER, defaults: QWEN2_DEFAULTS, model: Some(QWEN3_MODEL), ..QWEN3 },
    // With images. Its text model alone is `gemma3_text`.
    Family { model_types: &["gemma3"], ..GEMMA3 },
    Family { model_types: &["gemma3_text"], model: Some(GEMMA3_MODEL), ..GEMMA3 },
    // A Llama that sees both ways.
    Family {
        model_types: &["eurobert"],
        positions: LayerPositions::Rotary(ROTARY),
        qk_norm: None,
        model: Some(EUROBERT_MODEL),
        ..BASE
    },
];

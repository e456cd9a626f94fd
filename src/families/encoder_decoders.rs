//! Families of an encoder and a decoder: causal in the decoder's self-attention, no mask of their own elsewhere.

use crate::config::NormKind;
use crate::families::block::{AbsolutePositions, Block, BlockNorms, FeedForwardNames, Model, SegmentTypes};
use crate::families::encoders::BERT_MODEL;
use crate::families::family::{BASE, Causal, Family, LayerPositions, Scale};

const T5: Family = Family { causal: Causal::Decoder, positions: LayerPositions::T5Bias, scale: Scale::One, ..BASE };

/// The encoder of T5 alone ([Raffel 2020](https://arxiv.org/abs/1910.10683)), as sentence-t5 and GTR have it.
const T5_MODEL: Model = Model {
    prefixes: &["transformer"],
    word_embeddings: "shared",
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
    activation_key: Some(("feed_forward_proj", "relu")),
    unsupported_keys: &[],
    classifier: None,
    masked_lm: None,
    ..BERT_MODEL
};

/// T5 1.1 and later, with a gated feed-forward.
const GATED_T5_MODEL: Model = Model {
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

/// Attention of an encoder over parts of its sequence.
const SPARSE: &str = "attention to a part of the tokens";

pub(crate) const ENCODER_DECODERS: &[Family] = &[
    Family {
        model_types: &["t5"],
        stated: Some(("feed_forward_proj", "gated-gelu")),
        model: Some(GATED_T5_MODEL),
        ..T5
    },
    Family { model_types: &["t5"], model: Some(T5_MODEL), ..T5 },
    Family { model_types: &["mt5"], model: Some(GATED_T5_MODEL), ..T5 },
    // Each of its layers has a table of its own.
    Family { model_types: &["umt5"], model: Some(GATED_T5_MODEL), ..T5 },
    Family { model_types: &["switch_transformers"], ..T5 },
    Family {
        model_types: &["longt5", "pop2piano", "udop"],
        unsupported_parts: &[("encoder", "local attention, or biases of several relative positions")],
        ..T5
    },
    Family {
        model_types: &[
            "bart",
            "mbart",
            "marian",
            "pegasus",
            "blenderbot",
            "blenderbot-small",
            "m2m_100",
            "mvp",
            "nllb-moe",
            "plbart",
            "trocr",
            "whisper",
            "speech_to_text",
        ],
        causal: Causal::Decoder,
        ..BASE
    },
    Family { model_types: &["fsmt"], causal: Causal::FixedDecoder, ..BASE },
    Family {
        model_types: &["led"],
        reads: &["attention_window"],
        causal: Causal::Decoder,
        unsupported_parts: &[("encoder", SPARSE)],
        ..BASE
    },
    Family {
        model_types: &["bigbird_pegasus", "pegasus_x"],
        causal: Causal::Decoder,
        unsupported_parts: &[("encoder", SPARSE)],
        ..BASE
    },
    Family {
        model_types: &["speecht5"],
        causal: Causal::Decoder,
        unsupported_parts: &[("encoder", "relative positions of their own")],
        ..BASE
    },
    Family {
        model_types: &["seamless_m4t", "seamless_m4t_v2"],
        causal: Causal::Decoder,
        unsupported_parts: &[
            ("speech_encoder", "relative positions of their own"),
            ("t2u_model", "no check against transformers"),
        ],
        ..BASE
    },
];

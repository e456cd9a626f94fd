//! Whole models of encoder families: BERT and the models that changed a part of it, and the encoder of T5.

use candle_attention::NormKind;
use candle_nn::Activation;

use crate::families::model::{AbsolutePositions, Block, BlockNorms, FeedForwardNames, GateKey, Model, SegmentTypes};
use crate::families::task_heads::{ClassifierHead, HeadActivation, HeadLayers, MaskedLmHead, TokenClassifierHead};

const GELU: HeadActivation = HeadActivation::Fixed(Activation::Gelu);

/// BERT ([Devlin 2019](https://arxiv.org/abs/1810.04805)), on which the other models build.
pub(crate) const BERT_MODEL: Model = Model {
    prefixes: &["bert"],
    word_embeddings: "embeddings.word_embeddings",
    own_word_embeddings: None,
    scales_embeddings: false,
    position_embeddings: "embeddings.position_embeddings",
    positions: AbsolutePositions::Table,
    type_embeddings: "embeddings.token_type_embeddings",
    types: SegmentTypes::Always,
    pair_types: true,
    embeddings_norm: Some("embeddings.LayerNorm"),
    projection: Some("embeddings_project"),
    layers: "encoder.layer",
    shared_layers: None,
    heads_can_be_pruned: true,
    block: Block {
        attention: "attention",
        norms: BlockNorms::Post { attention: "attention.output.LayerNorm", feed_forward: "output.LayerNorm" },
        norm_kind: NormKind::Layer,
        norm_bias: true,
        inner_norm: None,
        first_attention_norm: true,
        feed_forward: FeedForwardNames::Plain { first: "intermediate.dense", last: "output.dense" },
        feed_forward_bias: true,
        has_experts: false,
        has_convolutions: false,
        has_embedding_gate: false,
    },
    final_norm: None,
    final_projection: None,
    pad_token_id: 0,
    ignored_tensors: &["pooler", "cls.seq_relationship"],
    renamed_keys: &[],
    default_keys: &[("layer_norm_eps", 1e-12)],
    mask_must_be_stated: false,
    sees_both_ways: false,
    activation: None,
    adjusts_inner_size: false,
    activation_key: None,
    gate: None,
    unsupported_keys: &["is_decoder", "add_cross_attention"],
    needed_numbers: &[],
    classifier: Some(ClassifierHead::BERT),
    token_classifier: TokenClassifierHead::BERT,
    masked_lm: Some(MaskedLmHead::BERT),
};

pub(super) const ROBERTA_MODEL: Model = Model {
    prefixes: &["roberta"],
    positions: AbsolutePositions::AfterPad,
    pair_types: false,
    pad_token_id: 1,
    classifier: Some(ClassifierHead::ROBERTA),
    masked_lm: Some(MaskedLmHead::ROBERTA),
    ..BERT_MODEL
};

/// Jina-BERT v2, with ALiBi.
pub(super) const JINA_MODEL: Model = Model {
    positions: AbsolutePositions::None,
    block: Block {
        norms: BlockNorms::Post { attention: "attention.output.LayerNorm", feed_forward: "mlp.layernorm" },
        feed_forward: FeedForwardNames::Halves { both: "mlp.gated_layers", activated: 0, last: "mlp.wo" },
        ..BERT_MODEL.block
    },
    // It decides, whatever `hidden_act` states.
    gate: Some(GateKey { key: "feed_forward_type", gates: &["geglu", "reglu"], required: true }),
    ..BERT_MODEL
};

/// Jina's model for code. Only its tensors distinguish it from [`JINA_MODEL`].
pub(super) const JINA_CODE_MODEL: Model = Model {
    block: Block {
        norms: BlockNorms::Post { attention: "layer_norm_1", feed_forward: "layer_norm_2" },
        inner_norm: Some("attention.output.LayerNorm"),
        feed_forward: FeedForwardNames::Halves { both: "mlp.up_gated_layer", activated: 1, last: "mlp.down_layer" },
        ..JINA_MODEL.block
    },
    ..JINA_MODEL
};

/// The columns that NomicBERT shares with the models that grew out of the same code.
const NOMIC_BASE: Model = Model {
    prefixes: &["bert", "nomic_bert"],
    positions: AbsolutePositions::None,
    types: SegmentTypes::Optional(2),
    embeddings_norm: Some("emb_ln"),
    layers: "encoder.layers",
    block: Block {
        attention: "attn",
        norms: BlockNorms::Post { attention: "norm1", feed_forward: "norm2" },
        feed_forward: FeedForwardNames::Apart { activated: "mlp.fc12", plain: "mlp.fc11", last: "mlp.fc2" },
        ..BERT_MODEL.block
    },
    classifier: None,
    masked_lm: None,
    ..BERT_MODEL
};

/// GTE in transformers' form.
pub(super) const GTE_MODEL: Model = Model {
    prefixes: &["new", "gte"],
    positions: AbsolutePositions::None,
    types: SegmentTypes::Optional(1),
    block: Block {
        norms: BlockNorms::Post { attention: "attn_ln", feed_forward: "mlp_ln" },
        feed_forward: FeedForwardNames::Halves { both: "mlp.up_gate_proj", activated: 1, last: "mlp.down_proj" },
        ..BERT_MODEL.block
    },
    pad_token_id: 1,
    unsupported_keys: &["is_decoder", "add_cross_attention", "logn_attention_scale"],
    masked_lm: Some(MaskedLmHead {
        first: HeadLayers { norm: Some("lm_head.norm"), ..MaskedLmHead::ROBERTA.first },
        bias: "lm_head.decoder.bias",
        ..MaskedLmHead::ROBERTA
    }),
    ..BERT_MODEL
};

/// GTE with its own code, whose head has the activation of the blocks.
pub(super) const NEW_MODEL: Model = Model {
    masked_lm: Some(MaskedLmHead {
        first: HeadLayers::new("lm_head.dense", HeadActivation::Hidden, Some("lm_head.norm")),
        bias: "lm_head.decoder.bias",
        ..MaskedLmHead::ROBERTA
    }),
    ..GTE_MODEL
};

/// ELECTRA.
pub(super) const ELECTRA_MODEL: Model = Model {
    prefixes: &["electra"],
    classifier: Some(ClassifierHead {
        // Whatever the activation of its blocks.
        first: HeadLayers::new("classifier.dense", GELU, None),
        ..ClassifierHead::ROBERTA
    }),
    masked_lm: Some(MaskedLmHead {
        first: HeadLayers::new("generator_predictions.dense", GELU, Some("generator_predictions.LayerNorm")),
        decoder: "generator_lm_head",
        bias: "generator_lm_head.bias",
    }),
    ..BERT_MODEL
};

/// MPNet.
pub(super) const MPNET_MODEL: Model = Model {
    prefixes: &["mpnet"],
    positions: AbsolutePositions::After(1),
    types: SegmentTypes::Never,
    pair_types: true,
    block: Block {
        norms: BlockNorms::Post { attention: "attention.LayerNorm", feed_forward: "output.LayerNorm" },
        ..BERT_MODEL.block
    },
    ..ROBERTA_MODEL
};

/// DistilBERT.
pub(super) const DISTILBERT_MODEL: Model = Model {
    prefixes: &["distilbert"],
    types: SegmentTypes::Never,
    layers: "transformer.layer",
    block: Block {
        norms: BlockNorms::Post { attention: "sa_layer_norm", feed_forward: "output_layer_norm" },
        feed_forward: FeedForwardNames::Plain { first: "ffn.lin1", last: "ffn.lin2" },
        ..BERT_MODEL.block
    },
    renamed_keys: &[
        ("dim", "hidden_size"),
        ("n_layers", "num_hidden_layers"),
        ("n_heads", "num_attention_heads"),
        ("hidden_dim", "intermediate_size"),
        ("activation", "hidden_act"),
        ("dropout", "hidden_dropout_prob"),
        ("attention_dropout", "attention_probs_dropout_prob"),
    ],
    classifier: Some(ClassifierHead {
        first: HeadLayers::new("pre_classifier", HeadActivation::Fixed(Activation::Relu), None),
        ..ClassifierHead::BERT
    }),
    masked_lm: Some(MaskedLmHead {
        first: HeadLayers::new("vocab_transform", HeadActivation::Hidden, Some("vocab_layer_norm")),
        decoder: "vocab_projector",
        bias: "vocab_projector.bias",
    }),
    ..BERT_MODEL
};

/// ALBERT.
pub(super) const ALBERT_MODEL: Model = Model {
    prefixes: &["albert"],
    layers: "encoder.albert_layer_groups",
    shared_layers: Some("albert_layers"),
    projection: Some("encoder.embedding_hidden_mapping_in"),
    block: Block {
        norms: BlockNorms::Post { attention: "attention.LayerNorm", feed_forward: "full_layer_layer_norm" },
        feed_forward: FeedForwardNames::Plain { first: "ffn", last: "ffn_output" },
        ..BERT_MODEL.block
    },
    classifier: Some(ClassifierHead {
        first: HeadLayers { dense: "pooler", ..ClassifierHead::BERT.first },
        ..ClassifierHead::BERT
    }),
    masked_lm: Some(MaskedLmHead {
        first: HeadLayers::new("predictions.dense", HeadActivation::Hidden, Some("predictions.LayerNorm")),
        decoder: "predictions.decoder",
        bias: "predictions.bias",
    }),
    ..BERT_MODEL
};

/// The layers before the last projection of all heads of ModernBERT.
const MODERNBERT_HEAD: HeadLayers = HeadLayers {
    optional_bias: true,
    ..HeadLayers::new("head.dense", HeadActivation::Stated("classifier_activation"), Some("head.norm"))
};

/// ModernBERT.
pub(super) const MODERNBERT_MODEL: Model = Model {
    prefixes: &["model"],
    word_embeddings: "embeddings.tok_embeddings",
    positions: AbsolutePositions::None,
    types: SegmentTypes::Never,
    embeddings_norm: Some("embeddings.norm"),
    layers: "layers",
    block: Block {
        attention: "attn",
        norms: BlockNorms::Pre { attention: "attn_norm", feed_forward: "mlp_norm" },
        norm_bias: false,
        first_attention_norm: false,
        feed_forward: FeedForwardNames::Halves { both: "mlp.Wi", activated: 0, last: "mlp.Wo" },
        ..BERT_MODEL.block
    },
    final_norm: Some("final_norm"),
    default_keys: &[("layer_norm_eps", 1e-5)],
    renamed_keys: &[
        ("hidden_activation", "hidden_act"),
        ("norm_eps", "layer_norm_eps"),
        ("mlp_dropout", "hidden_dropout_prob"),
        ("attention_dropout", "attention_probs_dropout_prob"),
    ],
    classifier: Some(ClassifierHead {
        first: MODERNBERT_HEAD,
        pooling_key: Some("classifier_pooling"),
        ..ClassifierHead::BERT
    }),
    token_classifier: TokenClassifierHead { first: Some(MODERNBERT_HEAD), ..TokenClassifierHead::BERT },
    masked_lm: Some(MaskedLmHead { first: MODERNBERT_HEAD, decoder: "decoder", bias: "decoder.bias" }),
    ..BERT_MODEL
};

/// NomicBERT.
pub(super) const NOMIC_MODEL: Model = Model {
    // As Nomic's own code writes them; transformers writes BERT's.
    renamed_keys: &[
        ("n_embd", "hidden_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("n_inner", "intermediate_size"),
        ("activation_function", "hidden_act"),
        // Without a table of positions, a shorter `max_position_embeddings` beside it is no limit.
        ("n_positions", "max_position_embeddings"),
        ("layer_norm_epsilon", "layer_norm_eps"),
        ("resid_pdrop", "hidden_dropout_prob"),
        ("attn_pdrop", "attention_probs_dropout_prob"),
    ],
    gate: Some(GateKey { key: "activation_function", gates: &["swiglu", "geglu", "glu"], required: false }),
    unsupported_keys: &[
        "prenorm",
        "parallel_block",
        "causal",
        "use_rms_norm",
        "rotary_emb_scale_base",
        "moe_every_n_layers",
    ],
    ..NOMIC_BASE
};

/// NomicBERT without gates, and with a mixture of experts in every other block (nomic-embed-text-v2-moe).
pub(super) const NOMIC_MOE_MODEL: Model = Model {
    block: Block {
        feed_forward: FeedForwardNames::Plain { first: "mlp.fc1", last: "mlp.fc2" },
        has_experts: true,
        ..NOMIC_BASE.block
    },
    gate: None,
    unsupported_keys: &[
        "prenorm",
        "parallel_block",
        "causal",
        "use_rms_norm",
        "rotary_emb_scale_base",
        "expert_choice_router",
        "num_shared_experts",
    ],
    needed_numbers: &[("ffn_div", 1)],
    ..NOMIC_MODEL
};

/// Jina embeddings v3.
pub(super) const JINA_V3_MODEL: Model = Model {
    prefixes: &["roberta"],
    types: SegmentTypes::Optional(1),
    pair_types: false,
    block: Block {
        attention: "mixer",
        feed_forward: FeedForwardNames::Plain { first: "mlp.fc1", last: "mlp.fc2" },
        ..NOMIC_BASE.block
    },
    default_keys: &[("layer_norm_eps", 1e-5)],
    pad_token_id: 1,
    classifier: Some(ClassifierHead::ROBERTA),
    masked_lm: Some(MaskedLmHead::ROBERTA),
    ..NOMIC_BASE
};

/// DeBERTa ([He 2021](https://arxiv.org/abs/2006.03654)), all versions: BERT with disentangled attention.
pub(super) const DEBERTA_MODEL: Model = Model {
    prefixes: &["deberta"],
    positions: AbsolutePositions::TableUnless("position_biased_input"),
    types: SegmentTypes::Optional(0),
    projection: None,
    default_keys: &[("layer_norm_eps", 1e-7)],
    renamed_keys: &[("attention_head_size", "head_dim")],
    ignored_tensors: &["pooler", "embeddings.position_embeddings"],
    unsupported_keys: &["conv_kernel_size"],
    classifier: Some(ClassifierHead {
        first: HeadLayers::new("pooler.dense", HeadActivation::Stated("pooler_hidden_act"), None),
        ..ClassifierHead::BERT
    }),
    ..BERT_MODEL
};

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

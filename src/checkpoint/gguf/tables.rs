//! The architectures of llama.cpp whose files are read: what their tensors and the keys of their metadata are called at
//! Hugging Face, and what the converter did to them.
//!
//! Sources: `gguf-py/gguf/constants.py` and `tensor_mapping.py` for the names, the folder `conversion` for the changes,
//! and `src/models/*.cpp` for what llama.cpp takes for granted, all in <https://github.com/ggml-org/llama.cpp>.

/// An architecture, or a variant of one.
#[derive(Debug)]
pub(super) struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Which files of this name it is.
    pub files: Files,
    /// Sections of `tensors.txt`.
    pub tensors: &'static [&'static str],
    /// Keys of `config.json` beside [`SIZES`], and where their values are from.
    pub config: &'static [(&'static str, Origin)],
    /// Keys that llama.cpp reads or writes and that say nothing more here; below the name of the architecture.
    pub ignored: &'static [&'static str],
    /// The values that the metadata has to have, if it has any: keys below the name of the architecture.
    pub expected: &'static [(&'static str, Expected)],
}

/// The files of an architecture that a row is for, by a tensor.
#[derive(Debug, Clone, Copy)]
pub(super) enum Files {
    All,
    With(&'static str),
    Without(&'static str),
}

/// Where a value of `config.json` is from. Keys are those below the name of the architecture.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    Key(&'static str),
    /// If it is there.
    Optional(&'static str),
    /// The rows of a tensor.
    Rows(&'static str),
    Text(&'static str),
    Number(f64),
    Flag(bool),
    /// The kinds of the layers, by the key of a pattern: an array of whether a layer has the window, or a number n of
    /// which every n-th layer has none. With the number where the key is absent.
    LayerTypes(&'static str, usize),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Expected {
    Flag(bool),
    Zero,
    /// The size of a head: the width by the number of heads.
    WidthByHeads,
    /// The size of a head: `attention.key_length`, or else the width by the number of heads.
    HeadSize,
}

use Origin::{Flag, Key, LayerTypes, Number, Optional, Rows, Text};

/// Keys of all architectures that say nothing of what a model computes here. `pooling_type` belongs to the text model.
#[rustfmt::skip]
pub(super) const IGNORED: &[&str] = &[
    "attention.causal", "classifier.output_labels", "context_length", "pooling_type", "vocab_size",
    "tensor_data_layout",
];

/// Tensors of all architectures that have no name at Hugging Face, or one in a file of its own.
pub(super) const UNNAMED: &[&str] = &["rope_freqs.weight", "dense_2.weight", "dense_3.weight"];

/// Values of the `config.json` of all architectures.
#[rustfmt::skip]
pub(super) const SIZES: &[(&str, Origin)] = &[
    ("vocab_size", Rows("token_embd.weight")), ("hidden_size", Key("embedding_length")),
    ("num_hidden_layers", Key("block_count")), ("num_attention_heads", Key("attention.head_count")),
    ("intermediate_size", Key("feed_forward_length")),
];

const KEY_VALUE_HEADS: (&str, Origin) = ("num_key_value_heads", Optional("attention.head_count_kv"));
const HEAD_DIM: (&str, Origin) = ("head_dim", Optional("attention.key_length"));
const TYPES: (&str, Origin) = ("type_vocab_size", Rows("token_types.weight"));
const LENGTH: (&str, Origin) = ("max_position_embeddings", Key("context_length"));
const EPS: (&str, Origin) = ("layer_norm_eps", Key("attention.layer_norm_epsilon"));
const RMS_EPS: (&str, Origin) = ("rms_norm_eps", Key("attention.layer_norm_rms_epsilon"));
const THETA: (&str, Origin) = ("rope_theta", Optional("rope.freq_base"));
const CAUSAL: (&str, Origin) = ("is_causal", Optional("attention.causal"));

/// Encoders see both ways.
#[rustfmt::skip]
const ENCODER: &[(&str, Expected)] = &[
    ("attention.causal", Expected::Flag(false)), ("attention.key_length", Expected::WidthByHeads),
    ("attention.value_length", Expected::WidthByHeads), ("rope.dimension_count", Expected::WidthByHeads),
];

#[rustfmt::skip]
const DECODER: &[(&str, Expected)] = &[
    ("attention.value_length", Expected::HeadSize), ("rope.dimension_count", Expected::HeadSize),
    ("expert_count", Expected::Zero), ("expert_used_count", Expected::Zero),
];

/// BERT and the models that differ by the ids of their positions alone (RoBERTa, XLM-RoBERTa): the converter cuts the
/// rows of the table of positions that they do not use.
#[rustfmt::skip]
const BERT: Architecture = Architecture {
    name: "bert",
    files: Files::With("token_types.weight"), tensors: &["bert embeddings", "bert attention", "bert head", "bert"],
    config: &[
        ("model_type", Text("bert")), TYPES, ("max_position_embeddings", Rows("position_embd.weight")), EPS,
        ("hidden_act", Text("gelu")),
    ],
    ignored: &[], expected: ENCODER,
};

/// DistilBERT, which has no segment types.
#[rustfmt::skip]
const DISTILBERT: Architecture = Architecture {
    files: Files::Without("token_types.weight"), tensors: &["bert embeddings", "distilbert"],
    config: &[
        ("model_type", Text("distilbert")), ("max_position_embeddings", Rows("position_embd.weight")), EPS,
        ("hidden_act", Text("gelu")),
    ],
    ..BERT
};

#[rustfmt::skip]
const NOMIC_BERT: Architecture = Architecture {
    name: "nomic-bert", files: Files::All, tensors: &["nomic", "bert embeddings"],
    config: &[
        ("model_type", Text("nomic_bert")), TYPES, LENGTH, EPS, ("activation_function", Text("swiglu")),
        ("rotary_emb_base", Key("rope.freq_base")), ("rotary_emb_fraction", Number(1.0)),
    ],
    ..BERT
};

#[rustfmt::skip]
const MODERN_BERT: Architecture = Architecture {
    name: "modern-bert", files: Files::All, tensors: &["modernbert"],
    config: &[
        ("model_type", Text("modernbert")), LENGTH, ("norm_eps", Key("attention.layer_norm_epsilon")),
        ("hidden_activation", Text("gelu")), ("hidden_activation", Optional("hidden_activation")),
        ("local_attention", Key("attention.sliding_window")), ("global_attn_every_n_layers", Number(3.0)),
        ("global_attn_every_n_layers", Optional("attention.sliding_window_pattern")),
        ("global_rope_theta", Key("rope.freq_base")), ("local_rope_theta", Optional("rope.freq_base_swa")),
    ],
    ignored: &["attention.layer_norm_rms_epsilon", "classifier_pooling_type", "classifier.pooling_type"],
    expected: ENCODER,
};

/// Jina-BERT v2. Its activation is what llama.cpp computes, whatever the configuration states.
#[rustfmt::skip]
const JINA_BERT_V2: Architecture = Architecture {
    name: "jina-bert-v2",
    files: Files::Without("blk.0.attn_q_norm.weight"), tensors: &["bert embeddings", "bert attention", "jina"],
    config: &[
        ("model_type", Text("bert")), ("position_embedding_type", Text("alibi")),
        // No class of transformers has these positions.
        ("auto_map", Text("JinaBert")),
        ("feed_forward_type", Text("geglu")), TYPES, LENGTH, EPS,
    ],
    ignored: &["attention.max_alibi_bias"], expected: ENCODER,
};

/// Jina's model for code, with norms of queries and keys.
#[rustfmt::skip]
const JINA_BERT_V2_CODE: Architecture = Architecture {
    files: Files::With("blk.0.attn_q_norm.weight"), tensors: &["bert embeddings", "bert attention", "jina code"],
    ..JINA_BERT_V2
};

/// EmbeddingGemma: a Gemma 3 that sees both ways.
#[rustfmt::skip]
const GEMMA_EMBEDDING: Architecture = Architecture {
    name: "gemma-embedding", files: Files::All, tensors: &["decoders", "gemma"],
    config: &[
        ("model_type", Text("gemma3_text")), ("use_bidirectional_attention", Flag(true)), KEY_VALUE_HEADS,
        ("head_dim", Key("attention.key_length")),
        // llama.cpp divides scores by the root of the head's size.
        ("query_pre_attn_scalar", Key("attention.key_length")), LENGTH, RMS_EPS,
        ("hidden_activation", Text("gelu_pytorch_tanh")), ("sliding_window", Key("attention.sliding_window")),
        ("layer_types", LayerTypes("attention.sliding_window_pattern", 6)), ("rope_theta", Key("rope.freq_base")),
        ("rope_local_base_freq", Number(10_000.0)), ("rope_local_base_freq", Optional("rope.freq_base_swa")),
    ],
    ignored: &["dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"],
    expected: &[
        ("attention.causal", Expected::Flag(false)), ("attention.value_length", Expected::HeadSize),
        ("rope.dimension_count", Expected::HeadSize),
    ],
};

#[rustfmt::skip]
const QWEN3: Architecture = Architecture {
    name: "qwen3", files: Files::All, tensors: &["decoders", "llama norms", "qwen3"],
    config: &[
        ("model_type", Text("qwen3")), KEY_VALUE_HEADS, HEAD_DIM, LENGTH, RMS_EPS, ("hidden_act", Text("silu")),
        ("rope_theta", Key("rope.freq_base")), CAUSAL,
    ],
    ignored: &[], expected: DECODER,
};

#[rustfmt::skip]
const LLAMA: Architecture = Architecture {
    name: "llama", tensors: &["decoders", "llama norms", "llama"],
    config: &[
        ("model_type", Text("llama")), KEY_VALUE_HEADS, HEAD_DIM, LENGTH, RMS_EPS, ("hidden_act", Text("silu")),
        ("rope_theta", Number(10_000.0)), THETA, CAUSAL,
    ],
    ..QWEN3
};

/// The rows, of which the first that fits a file is taken.
pub(super) static ARCHITECTURES: &[Architecture] =
    &[BERT, DISTILBERT, NOMIC_BERT, MODERN_BERT, JINA_BERT_V2, JINA_BERT_V2_CODE, GEMMA_EMBEDDING, QWEN3, LLAMA];

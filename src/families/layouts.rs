//! The rows of known layouts.

use crate::families::layout::{Layout, LinearNames, QkvNames, Stored};
use crate::weights::FusedOrder;

macro_rules! dense {
    ($name:literal) => {
        LinearNames { weight: concat!($name, ".weight"), bias: concat!($name, ".bias"), stored: Stored::OutIn }
    };
}
macro_rules! conv1d {
    ($name:literal) => {
        LinearNames { weight: concat!($name, ".weight"), bias: concat!($name, ".bias"), stored: Stored::InOut }
    };
}
macro_rules! kernel {
    ($name:literal) => {
        LinearNames { weight: concat!($name, ".kernel"), bias: concat!($name, ".bias"), stored: Stored::Kernel }
    };
}
macro_rules! split {
    ($dense:ident, $q:literal, $k:literal, $v:literal) => {
        QkvNames::Split([$dense!($q), $dense!($k), $dense!($v)])
    };
}

const ALL: [bool; 4] = [true; 4];
const NONE: [bool; 4] = [false; 4];
const NO_KEY: [bool; 4] = [true, false, true, true];
const NO_OUT: [bool; 4] = [true, true, true, false];
const ONLY_OUT: [bool; 4] = [false, false, false, true];
const IN_PROJ: LinearNames = LinearNames { weight: "in_proj_weight", bias: "in_proj_bias", stored: Stored::OutIn };
const SPLIT_PROJ: [&str; 3] = ["q_proj_weight", "k_proj_weight", "v_proj_weight"];

/// Layouts whose families may have fewer key-value heads.
pub(crate) const GROUPED: &[&str] = &["candle-attention", "phi", "phi3", "neox", "gpt-bigcode"];
/// Layouts whose kernels have the heads as a dimension of their own.
pub(crate) const HEADS_APART: &[&str] = &["flax", "keras"];
/// Layouts whose families may norm queries and keys, and what they call it.
pub(crate) const NORMS_OF: &[(&str, [&str; 2])] = &[
    ("candle-attention", ["q_norm", "k_norm"]),
    ("timm", ["q_norm", "k_norm"]),
    ("phi", ["q_layernorm", "k_layernorm"]),
    ("neox", ["q_layernorm", "k_layernorm"]),
];

/// Every known layout. A new family is a new row.
#[rustfmt::skip]
pub const LAYOUTS: &[Layout] = &[
    Layout { name: "candle-attention", families: "this crate, Llama, Mistral, Qwen2, DINOv3",
        qkv: split!(dense, "q_proj", "k_proj", "v_proj"), o: dense!("o_proj"), biases: &[] },
    Layout { name: "bert", families: "BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, Swin",
        qkv: split!(dense, "self.query", "self.key", "self.value"), o: dense!("output.dense"), biases: &[ALL] },
    Layout { name: "deberta-v2", families: "DeBERTa v2 and v3",
        qkv: split!(dense, "self.query_proj", "self.key_proj", "self.value_proj"), o: dense!("output.dense"),
        biases: &[ALL] },
    Layout { name: "deberta", families: "DeBERTa",
        qkv: QkvNames::FusedSplitBias("self.in_proj.weight", ["self.q_bias", "self.v_bias"], FusedOrder::Grouped),
        o: dense!("output.dense"), biases: &[ALL] },
    Layout { name: "distilbert", families: "DistilBERT",
        qkv: split!(dense, "q_lin", "k_lin", "v_lin"), o: dense!("out_lin"), biases: &[ALL] },
    Layout { name: "albert", families: "ALBERT",
        qkv: split!(dense, "query", "key", "value"), o: dense!("dense"), biases: &[ALL] },
    Layout { name: "mpnet", families: "MPNet",
        qkv: split!(dense, "attn.q", "attn.k", "attn.v"), o: dense!("attn.o"), biases: &[ALL] },
    Layout { name: "mpnet-attn", families: "MPNet, from the prefix one further down; T5, mT5, UMT5",
        qkv: split!(dense, "q", "k", "v"), o: dense!("o"), biases: &[ALL, NONE] },
    Layout { name: "vit", families: "ViT, DINOv2, BEiT (transformers)",
        qkv: split!(dense, "attention.query", "attention.key", "attention.value"), o: dense!("output.dense"),
        biases: &[ALL, NO_KEY, ONLY_OUT] },
    Layout { name: "timm-beit", families: "timm BEiT, EVA",
        qkv: QkvNames::FusedSplitBias("qkv.weight", ["q_bias", "v_bias"], FusedOrder::Blocks), o: dense!("proj"),
        biases: &[ALL] },
    Layout { name: "timm", families: "timm ViT, DINOv2 (original)",
        qkv: QkvNames::Fused(dense!("qkv"), FusedOrder::Blocks), o: dense!("proj"), biases: &[ALL, ONLY_OUT] },
    Layout { name: "bart", families: "BART, Marian, Whisper, CLIP, SigLIP, wav2vec 2.0, OPT, GPT-J, GPT-Neo, fairseq",
        qkv: split!(dense, "q_proj", "k_proj", "v_proj"), o: dense!("out_proj"), biases: &[ALL, NO_KEY, ONLY_OUT, NONE] },
    Layout { name: "torch", families: "torch.nn.MultiheadAttention, OpenCLIP",
        qkv: QkvNames::Fused(IN_PROJ, FusedOrder::Blocks), o: dense!("out_proj"), biases: &[ALL, NONE] },
    Layout { name: "torch-split", families: "torch.nn.MultiheadAttention with kdim or vdim",
        qkv: QkvNames::SplitFusedBias(SPLIT_PROJ, IN_PROJ.bias), o: dense!("out_proj"), biases: &[ALL, NONE] },
    Layout { name: "d2l", families: "Dive into Deep Learning: PyTorch, MXNet",
        qkv: split!(dense, "W_q", "W_k", "W_v"), o: dense!("W_o"), biases: &[ALL, NONE] },
    Layout { name: "d2l-kernel", families: "Dive into Deep Learning: JAX, TensorFlow",
        qkv: split!(kernel, "W_q", "W_k", "W_v"), o: kernel!("W_o"), biases: &[ALL, NONE] },
    Layout { name: "flax", families: "flax.linen.MultiHeadDotProductAttention, flax.nnx.MultiHeadAttention",
        qkv: split!(kernel, "query", "key", "value"), o: kernel!("out"), biases: &[ALL, NONE] },
    Layout { name: "keras", families: "keras.layers.MultiHeadAttention",
        qkv: split!(kernel, "query", "key", "value"), o: kernel!("attention_output"), biases: &[ALL, NONE] },
    Layout { name: "flax-bert", families: "BERT, RoBERTa, ELECTRA in Flax (transformers)",
        qkv: split!(kernel, "self.query", "self.key", "self.value"), o: kernel!("output.dense"), biases: &[ALL] },
    Layout { name: "phi", families: "Phi-1.5, Phi-2",
        qkv: split!(dense, "q_proj", "k_proj", "v_proj"), o: dense!("dense"), biases: &[ALL, NONE] },
    Layout { name: "phi3", families: "Phi-3, GTE (new)",
        qkv: QkvNames::Fused(dense!("qkv_proj"), FusedOrder::Blocks), o: dense!("o_proj"),
        biases: &[ALL, NONE, NO_OUT, ONLY_OUT] },
    Layout { name: "modernbert", families: "ModernBERT",
        qkv: QkvNames::Fused(dense!("Wqkv"), FusedOrder::Blocks), o: dense!("Wo"), biases: &[ALL, NONE] },
    Layout { name: "mpt", families: "MPT, NomicBERT, Jina embeddings v3",
        qkv: QkvNames::Fused(dense!("Wqkv"), FusedOrder::Blocks), o: dense!("out_proj"),
        biases: &[ALL, NONE, NO_OUT, ONLY_OUT] },
    Layout { name: "neox", families: "GPT-NeoX, Pythia, BLOOM, Falcon, Persimmon",
        qkv: QkvNames::Fused(dense!("query_key_value"), FusedOrder::Grouped), o: dense!("dense"),
        biases: &[ALL, NONE] },
    Layout { name: "codegen", families: "CodeGen",
        qkv: QkvNames::Fused(dense!("qkv_proj"), FusedOrder::FourBlocks), o: dense!("out_proj"), biases: &[NONE] },
    Layout { name: "gpt2-cross", families: "GPT-2, cross-attention",
        qkv: QkvNames::Pair(conv1d!("q_attn"), conv1d!("c_attn")), o: conv1d!("c_proj"), biases: &[ALL] },
    Layout { name: "gpt2", families: "GPT-2",
        qkv: QkvNames::Fused(conv1d!("c_attn"), FusedOrder::Blocks), o: conv1d!("c_proj"), biases: &[ALL] },
    Layout { name: "gpt-bigcode", families: "GPT-BigCode",
        qkv: QkvNames::Fused(dense!("c_attn"), FusedOrder::Grouped), o: dense!("c_proj"), biases: &[ALL] },
    Layout { name: "timm-pool", families: "timm attention pooling (SigLIP)",
        qkv: QkvNames::Pair(dense!("q"), dense!("kv")), o: dense!("proj"), biases: &[ALL] },
    Layout { name: "timm-eva", families: "timm EVA with split projections",
        qkv: split!(dense, "q_proj", "k_proj", "v_proj"), o: dense!("proj"), biases: &[NO_KEY] },
];

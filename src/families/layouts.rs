//! The table of known layouts.

use crate::config::ProjectionBias;
use crate::families::layout::{DISTANCE_EMBEDDINGS, PATCH_BIAS, QK_NORMS, RELATIVE_BIAS};
use crate::families::layout::{Layout, LinearNames, Orientation, PositionName, PositionRole, QkvNames};
use crate::weights::FusedOrder;

macro_rules! linear {
    ($name:literal) => {
        LinearNames {
            weight: concat!($name, ".weight"),
            bias: concat!($name, ".bias"),
            orientation: Orientation::OutIn,
        }
    };
}
macro_rules! conv1d {
    ($name:literal) => {
        LinearNames {
            weight: concat!($name, ".weight"),
            bias: concat!($name, ".bias"),
            orientation: Orientation::InOut,
        }
    };
}
macro_rules! kernel {
    ($name:literal) => {
        LinearNames {
            weight: concat!($name, ".kernel"),
            bias: concat!($name, ".bias"),
            orientation: Orientation::Kernel,
        }
    };
}
macro_rules! split {
    ($linear:ident, $q:literal, $k:literal, $v:literal) => {
        QkvNames::Split([$linear!($q), $linear!($k), $linear!($v)])
    };
}

const ALL: ProjectionBias = ProjectionBias::ALL;
const NONE: ProjectionBias = ProjectionBias::NONE;
const NO_KEY: ProjectionBias = ProjectionBias { k: false, ..ALL };
const NO_OUT: ProjectionBias = ProjectionBias { o: false, ..ALL };
const ONLY_OUT: ProjectionBias = ProjectionBias { o: true, ..NONE };
const IN_PROJ: LinearNames =
    LinearNames { weight: "in_proj_weight", bias: "in_proj_bias", orientation: Orientation::OutIn };
const SPLIT_PROJ: [&str; 3] = ["q_proj_weight", "k_proj_weight", "v_proj_weight"];

const fn bias_table(scheme: &'static str, stored: &'static str) -> PositionName {
    PositionName { role: PositionRole::BiasTable, scheme, stored }
}

/// Embedded distances, and their projections to keys and to queries.
const fn distances(key: &'static str, query: &'static str) -> [PositionName; 3] {
    const fn name(scheme: &'static str, stored: &'static str) -> PositionName {
        PositionName { role: PositionRole::Disentangled, scheme, stored }
    }
    [name("pos_key_proj", key), name("pos_query_proj", query), name(DISTANCE_EMBEDDINGS, DISTANCE_EMBEDDINGS)]
}

const DEBERTA_POSITION: &[PositionName] = &distances("self.pos_proj", "self.pos_q_proj");
const DEBERTA_V2_POSITION: &[PositionName] = &distances("self.pos_key_proj", "self.pos_query_proj");
/// This crate's own layout names all weights as the schemes do.
const OWN_POSITION: &[PositionName] = {
    let [key, query, embeddings] = distances("pos_key_proj", "pos_query_proj");
    &[bias_table(RELATIVE_BIAS, RELATIVE_BIAS), bias_table(PATCH_BIAS, PATCH_BIAS), key, query, embeddings]
};

/// The usual value of each column.
const BASE: Layout = Layout {
    name: "",
    families: "",
    qkv: split!(linear, "q_proj", "k_proj", "v_proj"),
    o: linear!("o_proj"),
    biases: &[ALL],
    grouped: false,
    wide_biases: false,
    per_head_kernels: false,
    qk_norms: None,
    position: &[],
    sinks: false,
    check_orientation: false,
    may_be_eva: false,
};

/// Every known layout, in the order in which detection tries them.
#[rustfmt::skip]
pub(crate) const LAYOUTS: &[Layout] = &[
    Layout { name: "candle-attention", families: "this crate, Llama, Mistral, Qwen2, DINOv3", biases: &[],
        grouped: true, qk_norms: Some(QK_NORMS[0]), position: OWN_POSITION, sinks: true, ..BASE },
    Layout { name: "bert", families: "BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, Swin",
        qkv: split!(linear, "self.query", "self.key", "self.value"), o: linear!("output.dense"),
        position: &[bias_table(PATCH_BIAS, "self.relative_position_bias_table")], ..BASE },
    Layout { name: "deberta-v2", families: "DeBERTa v2 and v3",
        qkv: split!(linear, "self.query_proj", "self.key_proj", "self.value_proj"), o: linear!("output.dense"),
        position: DEBERTA_V2_POSITION, ..BASE },
    Layout { name: "deberta", families: "DeBERTa",
        qkv: QkvNames::FusedSplitBias("self.in_proj.weight", ["self.q_bias", "self.v_bias"], FusedOrder::Grouped),
        o: linear!("output.dense"), position: DEBERTA_POSITION, ..BASE },
    Layout { name: "distilbert", families: "DistilBERT",
        qkv: split!(linear, "q_lin", "k_lin", "v_lin"), o: linear!("out_lin"), ..BASE },
    Layout { name: "albert", families: "ALBERT",
        qkv: split!(linear, "query", "key", "value"), o: linear!("dense"), ..BASE },
    Layout { name: "mpnet", families: "MPNet",
        qkv: split!(linear, "attn.q", "attn.k", "attn.v"), o: linear!("attn.o"), ..BASE },
    Layout { name: "t5", families: "T5, mT5, UMT5; MPNet, from the prefix one further down",
        qkv: split!(linear, "q", "k", "v"), o: linear!("o"), biases: &[ALL, NONE],
        position: &[bias_table(RELATIVE_BIAS, RELATIVE_BIAS)], ..BASE },
    Layout { name: "videomae", families: "VideoMAE", qkv: QkvNames::Split([
            LinearNames { bias: "attention.q_bias", ..linear!("attention.query") }, linear!("attention.key"),
            LinearNames { bias: "attention.v_bias", ..linear!("attention.value") }]),
        o: linear!("output.dense"), biases: &[NO_KEY], ..BASE },
    Layout { name: "vit", families: "ViT, DINOv2, BEiT (transformers)",
        qkv: split!(linear, "attention.query", "attention.key", "attention.value"), o: linear!("output.dense"),
        biases: &[ALL, NO_KEY, ONLY_OUT],
        position: &[bias_table(PATCH_BIAS, "attention.relative_position_bias.relative_position_bias_table")], ..BASE },
    Layout { name: "timm-beit", families: "timm BEiT, EVA",
        qkv: QkvNames::FusedSplitBias("qkv.weight", ["q_bias", "v_bias"], FusedOrder::Blocks), o: linear!("proj"),
        position: &[bias_table(PATCH_BIAS, PATCH_BIAS)], may_be_eva: true, ..BASE },
    Layout { name: "timm", families: "timm ViT, DINOv2 (original), vision of Qwen-VL and GLM-4V",
        qkv: QkvNames::Fused(linear!("qkv"), FusedOrder::Blocks), o: linear!("proj"), biases: &[ALL, ONLY_OUT, NONE],
        qk_norms: Some(QK_NORMS[0]), position: &[bias_table(PATCH_BIAS, PATCH_BIAS)], ..BASE },
    Layout { name: "bart",
        families: "BART, Marian, Whisper, CLIP, SigLIP, wav2vec 2.0, OPT, GPT-J, GPT-Neo, LFM2, fairseq",
        o: linear!("out_proj"), biases: &[ALL, NO_KEY, ONLY_OUT, NONE], grouped: true, qk_norms: Some(QK_NORMS[1]),
        ..BASE },
    Layout { name: "torch", families: "torch.nn.MultiheadAttention, OpenCLIP",
        qkv: QkvNames::Fused(IN_PROJ, FusedOrder::Blocks), o: linear!("out_proj"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "torch-split", families: "torch.nn.MultiheadAttention with kdim or vdim",
        qkv: QkvNames::SplitFusedBias(SPLIT_PROJ, IN_PROJ.bias), o: linear!("out_proj"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "d2l", families: "Dive into Deep Learning: PyTorch, MXNet",
        qkv: split!(linear, "W_q", "W_k", "W_v"), o: linear!("W_o"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "d2l-kernel", families: "Dive into Deep Learning: JAX, TensorFlow",
        qkv: split!(kernel, "W_q", "W_k", "W_v"), o: kernel!("W_o"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "flax", families: "flax.linen.MultiHeadDotProductAttention, flax.nnx.MultiHeadAttention",
        qkv: split!(kernel, "query", "key", "value"), o: kernel!("out"), biases: &[ALL, NONE],
        per_head_kernels: true, ..BASE },
    Layout { name: "keras", families: "keras.layers.MultiHeadAttention",
        qkv: split!(kernel, "query", "key", "value"), o: kernel!("attention_output"), biases: &[ALL, NONE],
        per_head_kernels: true, ..BASE },
    Layout { name: "flax-bert", families: "BERT, RoBERTa, ELECTRA in Flax (transformers)",
        qkv: split!(kernel, "self.query", "self.key", "self.value"), o: kernel!("output.dense"), ..BASE },
    Layout { name: "phi", families: "Phi-1.5, Phi-2", o: linear!("dense"), biases: &[ALL, NONE],
        grouped: true, qk_norms: Some(QK_NORMS[1]), ..BASE },
    Layout { name: "phi3", families: "Phi-3, GTE (new)",
        qkv: QkvNames::Fused(linear!("qkv_proj"), FusedOrder::Blocks), biases: &[ALL, NONE, NO_OUT, ONLY_OUT],
        grouped: true, ..BASE },
    Layout { name: "modernbert", families: "ModernBERT",
        qkv: QkvNames::Fused(linear!("Wqkv"), FusedOrder::Blocks), o: linear!("Wo"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "modernbert-decoder", families: "ModernBERT as a decoder", o: linear!("Wo"), biases: &[ALL, NONE],
        ..BASE },
    Layout { name: "ctrl", families: "CTRL",
        qkv: split!(linear, "Wq", "Wk", "Wv"), o: linear!("dense"), ..BASE },
    Layout { name: "mpt", families: "MPT, NomicBERT, Jina embeddings v3",
        qkv: QkvNames::Fused(linear!("Wqkv"), FusedOrder::Blocks), o: linear!("out_proj"),
        biases: &[ALL, NONE, NO_OUT, ONLY_OUT], ..BASE },
    Layout { name: "neox", families: "GPT-NeoX, Pythia, BLOOM, Falcon, Persimmon",
        qkv: QkvNames::Fused(linear!("query_key_value"), FusedOrder::Grouped), o: linear!("dense"),
        biases: &[ALL, NONE], grouped: true, qk_norms: Some(QK_NORMS[1]), ..BASE },
    Layout { name: "codegen", families: "CodeGen",
        qkv: QkvNames::Fused(linear!("qkv_proj"), FusedOrder::FourBlocks), o: linear!("out_proj"),
        biases: &[NONE], ..BASE },
    Layout { name: "gpt2-cross", families: "GPT-2, cross-attention",
        qkv: QkvNames::Pair(conv1d!("q_attn"), conv1d!("c_attn")), o: conv1d!("c_proj"),
        check_orientation: true, ..BASE },
    Layout { name: "gpt2", families: "GPT-2",
        qkv: QkvNames::Fused(conv1d!("c_attn"), FusedOrder::Blocks), o: conv1d!("c_proj"),
        check_orientation: true, ..BASE },
    Layout { name: "gpt-bigcode", families: "GPT-BigCode",
        qkv: QkvNames::Fused(linear!("c_attn"), FusedOrder::Grouped), o: linear!("c_proj"),
        grouped: true, check_orientation: true, ..BASE },
    Layout { name: "timm-pool", families: "timm attention pooling (SigLIP)",
        qkv: QkvNames::Pair(linear!("q"), linear!("kv")), o: linear!("proj"), ..BASE },
    Layout { name: "timesformer", families: "TimeSformer",
        qkv: QkvNames::Fused(linear!("attention.qkv"), FusedOrder::Blocks), o: linear!("output.dense"),
        biases: &[ALL, ONLY_OUT], ..BASE },
    Layout { name: "blip", families: "BLIP, BLIP-2, InstructBLIP",
        qkv: QkvNames::Fused(linear!("qkv"), FusedOrder::Blocks), o: linear!("projection"), biases: &[ALL, ONLY_OUT],
        ..BASE },
    Layout { name: "internvl", families: "InternVL, Janus", o: linear!("projection_layer"), biases: &[ALL, ONLY_OUT],
        qk_norms: Some(QK_NORMS[0]), ..BASE },
    Layout { name: "pix2struct", families: "Pix2Struct, Kosmos-2.5",
        qkv: split!(linear, "query", "key", "value"), o: linear!("output"), biases: &[NONE],
        position: &[bias_table(RELATIVE_BIAS, RELATIVE_BIAS)], ..BASE },
    Layout { name: "vjepa2", families: "V-JEPA 2",
        qkv: split!(linear, "query", "key", "value"), o: linear!("proj"), biases: &[ALL, ONLY_OUT], ..BASE },
    Layout { name: "layoutlmv2", families: "LayoutLMv2",
        qkv: QkvNames::FusedSplitBias("self.qkv_linear.weight", ["self.q_bias", "self.v_bias"], FusedOrder::Blocks),
        o: linear!("output.dense"), wide_biases: true, ..BASE },
    Layout { name: "grounding-dino", families: "Grounding DINO, OmDet-Turbo",
        qkv: split!(linear, "query", "key", "value"), o: linear!("out_proj"), ..BASE },
    Layout { name: "qwen2.5-omni", families: "vision of Qwen2.5-Omni",
        qkv: split!(linear, "q", "k", "v"), o: linear!("proj"), ..BASE },
    Layout { name: "timm-eva", families: "timm EVA with split projections", o: linear!("proj"), biases: &[NO_KEY],
        may_be_eva: true, ..BASE },
];

/// Every known layout, in the order in which detection tries them.
pub fn layouts() -> impl ExactSizeIterator<Item = &'static Layout> {
    LAYOUTS.iter()
}

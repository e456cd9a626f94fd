//! The table of known layouts.

use crate::attention::mechanisms::{BLOCKS, CONTEXT_NORM, GLOBAL, GLOBAL_NAMES, GROUPS};
use crate::config::ProjectionBias;
use crate::families::layout::{
    ApartNames, GateNames, LatentNames, Layout, LinearNames, Orientation, PositionName, PositionRole, QkvNames,
};
use crate::families::layout::{
    CONTENT_BIAS, DISTANCE_EMBEDDINGS, GATED_BIAS, PATCH_BIAS, PATCH_KEYS, QK_NORMS, RELATIVE_BIAS, REVERSED_KEYS,
    SINK_NAMES,
};
use crate::weights::{FACTORS, FusedOrder, LOGIT_SCALE, NORMS, SCORE, SINKS};

macro_rules! linear {
    ($name:expr) => {
        LinearNames {
            weight: concat!($name, ".weight"),
            bias: concat!($name, ".bias"),
            orientation: Orientation::OutIn,
        }
    };
    ($name:literal, $orientation:expr) => {
        LinearNames { orientation: $orientation, ..linear!($name) }
    };
}
macro_rules! kernel {
    ($name:literal) => {
        LinearNames { weight: concat!($name, ".kernel"), orientation: Orientation::Kernel, ..linear!($name) }
    };
}
/// The network that computes a table of biases of patches.
macro_rules! network {
    ($module:literal) => {
        [
            PositionName { stored: concat!($module, ".0.weight"), ..relative("cpb_mlp.0.weight") },
            PositionName { stored: concat!($module, ".0.bias"), ..relative("cpb_mlp.0.bias") },
            PositionName { stored: concat!($module, ".2.weight"), ..relative("cpb_mlp.2.weight") },
        ]
    };
}
/// The projections of contents and of position vectors.
macro_rules! apart {
    ($start:literal, $q:literal, $k:literal, $v:literal, $sines:expr) => {
        ApartNames {
            q: [linear!(concat!($start, $q, "content_proj")), linear!(concat!($start, $q, "pos_proj"))],
            k: [linear!(concat!($start, $k, "content_proj")), linear!(concat!($start, $k, "pos_proj"))],
            v: linear!(concat!($start, $v, "proj")),
            sines: $sines,
        }
    };
}
macro_rules! split {
    ($linear:ident, $q:literal, $k:literal, $v:literal $(, $orientation:expr)?) => {
        QkvNames::Split(
            &[$linear!($q $(, $orientation)?), $linear!($k $(, $orientation)?), $linear!($v $(, $orientation)?)],
            None,
        )
    };
}
macro_rules! fused {
    ($name:literal, $order:ident) => {
        QkvNames::Fused(linear!($name), None, FusedOrder::$order)
    };
}

const IN_OUT: Orientation = Orientation::InOut;
const PIXELS: Orientation = Orientation::Pointwise(2);
const FRAMES: Orientation = Orientation::Pointwise(1);
const ALL: ProjectionBias = ProjectionBias::ALL;
const NONE: ProjectionBias = ProjectionBias::NONE;
const NO_KEY: ProjectionBias = ProjectionBias { k: false, ..ALL };
const NO_OUT: ProjectionBias = ProjectionBias { o: false, ..ALL };
const ONLY_QUERY: ProjectionBias = ProjectionBias { q: true, ..NONE };
const ONLY_OUT: ProjectionBias = ProjectionBias { o: true, ..NONE };
const IN_PROJ: LinearNames =
    LinearNames { weight: "in_proj_weight", bias: "in_proj_bias", orientation: Orientation::OutIn };
const SPLIT_PROJ: &[LinearNames] = &[bare("q_proj_weight"), bare("k_proj_weight"), bare("v_proj_weight")];

/// A weight `[out, in]` whose bias is elsewhere, if there is one.
const fn bare(weight: &'static str) -> LinearNames {
    LinearNames { weight, bias: "", orientation: Orientation::OutIn }
}

/// A kernel without a module, of a projection without a bias.
const fn bare_kernel(weight: &'static str) -> LinearNames {
    LinearNames { orientation: Orientation::Kernel, ..bare(weight) }
}

/// Latent attention with queries of low rank, too.
const DEEPSEEK: LatentNames = LatentNames {
    q_a: Some((linear!("q_a_proj"), "q_a_layernorm.weight")),
    q: linear!("q_b_proj"),
    kv_a: linear!("kv_a_proj_with_mqa"),
    kv_a_norm: "kv_a_layernorm.weight",
    kv_b: linear!("kv_b_proj"),
};
/// Latent attention with one projection of the queries.
const DEEPSEEK_LITE: LatentNames = LatentNames { q_a: None, q: linear!("q_proj"), ..DEEPSEEK };
/// Latents that are the one key and value of all heads, by this crate's own names.
const MULTI_QUERY: LatentNames = LatentNames { kv_b: LinearNames::ABSENT, ..DEEPSEEK };
/// Latents that are the one key and value of all heads, in DeepSeek V4.
const DEEPSEEK_V4: LatentNames = LatentNames {
    q_a: Some((linear!("wq_a"), "q_norm.weight")),
    q: linear!("wq_b"),
    kv_a: linear!("wkv"),
    kv_a_norm: "kv_norm.weight",
    kv_b: LinearNames::ABSENT,
};
/// The latents of DeepSeek V4 as transformers writes them.
const DEEPSEEK_V4_SAVED: LatentNames = LatentNames { kv_a_norm: "norm.weight", ..DEEPSEEK_V4 };
const DEEPSEEK_V4_PARAMETERS: &[(&str, &str)] = &[
    (SINKS, SINK_NAMES[4]),
    (GROUPS[0], GROUPS[1]),
    ("compressor.kv_proj", "compressor.wkv"),
    ("compressor.gate_proj", "compressor.wgate"),
    ("compressor.position_bias", "compressor.ape"),
    ("compressor.kv_norm", "compressor.norm"),
];

const DAB_SELF: ApartNames = apart!("self_attn_", "query_", "key_", "value_", None);
const DAB_CROSS: ApartNames =
    apart!("cross_attn_", "query_", "key_", "value_", Some(linear!("cross_attn_query_pos_sine_proj")));
/// Those of Conditional DETR, beside the modules of the output projections.
const CONDITIONAL_SELF: ApartNames = apart!("../sa_", "q", "k", "v_", None);
const CONDITIONAL_CROSS: ApartNames = apart!("../ca_", "q", "k", "v_", Some(linear!("../ca_qpos_sine_proj")));

/// The norms of queries and keys by one pair of their names.
const fn qk_norms(row: usize) -> [(&'static str, &'static str); 2] {
    [(NORMS[0], QK_NORMS[row][0]), (NORMS[1], QK_NORMS[row][1])]
}

/// The projections of global tokens by one row of their names.
const fn global(row: usize) -> [(&'static str, &'static str); 3] {
    [(GLOBAL[0], GLOBAL_NAMES[0][row]), (GLOBAL[1], GLOBAL_NAMES[1][row]), (GLOBAL[2], GLOBAL_NAMES[2][row])]
}
const BART_PARAMETERS: [(&str, &str); 3] = {
    let [q, k] = qk_norms(1);
    [q, k, (CONTEXT_NORM, "inner_attn_ln")]
};

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
const OWN_POSITION: &[PositionName] = &joined::<23>(&[
    &[bias_table(RELATIVE_BIAS, RELATIVE_BIAS), bias_table(PATCH_BIAS, PATCH_BIAS)],
    &network!("cpb_mlp"),
    &distances("pos_key_proj", "pos_query_proj"),
    &RELATIVE_SINUSOIDS,
    &SEGMENTS,
    &[SHAW, SHAW_REVERSED],
    &KEYS_AND_VALUES,
    &PATCH_POSITION,
    &GATED,
]);

/// `N` names, list after list.
const fn joined<const N: usize>(lists: &[&[PositionName]]) -> [PositionName; N] {
    let (mut all, mut count, mut list) = ([relative(""); N], 0, 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            all[count] = lists[list][i];
            (count, i) = (count + 1, i + 1);
        }
        list += 1;
    }
    assert!(count == N);
    all
}

/// A tensor that the scheme and its families name alike.
const fn relative(name: &'static str) -> PositionName {
    PositionName { role: PositionRole::Relative, scheme: name, stored: name }
}

const SWIN_V2_POSITION: &[PositionName] = &network!("self.continuous_position_bias_mlp");

const SHAW: PositionName = relative("distance_embedding.weight");
const SHAW_REVERSED: PositionName = relative(REVERSED_KEYS);
const PATCH_POSITION: [PositionName; 2] = [relative(PATCH_KEYS[0]), relative(PATCH_KEYS[1])];
const RELATIVE_SINUSOIDS: [PositionName; 3] =
    [relative("relative_k_proj.weight"), relative(CONTENT_BIAS), relative("bias_v")];
const SEGMENTS: [PositionName; 2] = [relative("segment_embeddings"), relative("segment_bias")];
const XLNET_POSITION: &[PositionName] = {
    let ([projection, u, v], [embeddings, bias]) = (RELATIVE_SINUSOIDS, SEGMENTS);
    &[
        PositionName { role: PositionRole::RelativeKernel, stored: "r", ..projection },
        PositionName { stored: "r_w_bias", ..u },
        PositionName { stored: "r_r_bias", ..v },
        PositionName { stored: "seg_embed", ..embeddings },
        PositionName { stored: "r_s_bias", ..bias },
    ]
};
const GATED: [PositionName; 4] = [
    relative(GATED_BIAS),
    relative("gru_rel_pos_linear.weight"),
    relative("gru_rel_pos_linear.bias"),
    relative("gru_rel_pos_const"),
];
const KEYS_AND_VALUES: [PositionName; 2] = [relative("emb_rel_k"), relative("emb_rel_v")];
const BART_POSITION: &[PositionName] = &joined::<6>(&[&GATED, &KEYS_AND_VALUES]);
const CONFORMER_POSITION: &[PositionName] = {
    let [projection, u, v] = RELATIVE_SINUSOIDS;
    &[
        PositionName { stored: "linear_pos.weight", ..projection },
        PositionName { stored: "pos_bias_u", ..u },
        PositionName { stored: "pos_bias_v", ..v },
        SHAW,
    ]
};
const TIMM_POSITION: &[PositionName] = &joined::<3>(&[&[bias_table(PATCH_BIAS, PATCH_BIAS)], &PATCH_POSITION]);

/// The usual value of each column.
const BASE: Layout = Layout {
    name: "",
    families: "",
    qkv: split!(linear, "q_proj", "k_proj", "v_proj"),
    o: linear!("o_proj"),
    gate: GateNames::None,
    indexer: None,
    biases: &[ALL],
    grouped: false,
    wide_biases: false,
    per_head_kernels: false,
    parameters: &[],
    position: &[],
    after: &[],
    check_orientation: false,
    within: None,
    requires: &[],
    excludes: &[],
    may_be_eva: false,
};

/// Every known layout, in the order in which detection tries them, after those that a component of the prefix tells.
#[rustfmt::skip]
pub(crate) const LAYOUTS: &[Layout] = &[
    Layout { name: "candle-attention", families: "this crate, Llama, Mistral, Qwen2, DINOv3, AFMoE, BitNet",
        biases: &[], gate: GateNames::Optional(linear!("gate_proj")),
        indexer: Some(&["indexer.q_proj.weight"]),
        grouped: true, parameters: &[(CONTEXT_NORM, CONTEXT_NORM)], position: OWN_POSITION,
        excludes: &["query_layernorm.weight", SINK_NAMES[1], "g_proj.weight", "gate_bias"], ..BASE },
    Layout { name: "mimo", families: "MiMo-V2-Flash, layers with a window", biases: &[], grouped: true,
        parameters: &[(SINKS, SINK_NAMES[1])], requires: &[SINK_NAMES[1]], ..BASE },
    Layout { name: "hunyuan", families: "HunYuan", biases: &[], grouped: true, parameters: &qk_norms(3),
        requires: &["query_layernorm.weight"], ..BASE },
    Layout { name: "gated-query", families: "Qwen3-Next, Qwen3.5", gate: GateNames::InQuery, biases: &[],
        indexer: Some(&["indexer.index_qk_proj.weight"]),
        grouped: true, parameters: &qk_norms(0), excludes: &["gate_proj.weight", "g_proj.weight"], ..BASE },
    Layout { name: "beam", families: "Beam", biases: &[], grouped: true, parameters: &qk_norms(0),
        gate: GateNames::Required(LinearNames { bias: "gate_bias", ..linear!("gate_proj") }),
        requires: &["gate_proj.weight", "gate_bias"], ..BASE },
    Layout { name: "g-proj", families: "LFM3, Step-3.5, Laguna", biases: &[], grouped: true,
        gate: GateNames::Required(linear!("g_proj")), parameters: &qk_norms(0), requires: &["g_proj.weight"], ..BASE },
    Layout { name: "perceiver", families: "Perceiver",
        qkv: split!(linear, "self.query", "self.key", "self.value"), o: linear!("output.dense"),
        after: &["layernorm1", "layernorm2"], requires: &["self.layernorm1.weight"], ..BASE },
    Layout { name: "idefics-perceiver", families: "Idefics, resampler", o: linear!("output_proj"), biases: &[NONE],
        after: &["context_layer_norm", "latents_layer_norm"], ..BASE },
    Layout { name: "swin-v2", families: "Swin v2, Swin2SR",
        qkv: split!(linear, "self.query", "self.key", "self.value"), o: linear!("output.dense"),
        biases: &[NO_KEY, ONLY_OUT], parameters: &[(LOGIT_SCALE, "self.logit_scale")], position: SWIN_V2_POSITION,
        requires: &["self.logit_scale"], ..BASE },
    Layout { name: "bigbird-pegasus", families: "BigBird-Pegasus, encoder",
        qkv: split!(linear, "self.query", "self.key", "self.value"), o: linear!("output"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "bert", families: "BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, Swin, Longformer, I-BERT",
        qkv: split!(linear, "self.query", "self.key", "self.value"), o: linear!("output.dense"), parameters: &global(1),
        position: &[bias_table(PATCH_BIAS, "self.relative_position_bias_table")],
        // The integers of I-BERT, which is computed in floats.
        after: &["weight_integer", "bias_integer", "fc_scaling_factor", "query_activation", "key_activation",
            "value_activation", "output_activation", "ln_input_act", "softmax"], ..BASE },
    Layout { name: "led", families: "LED, encoder",
        qkv: split!(linear, "longformer_self_attn.query", "longformer_self_attn.key", "longformer_self_attn.value"),
        o: linear!("output"), biases: &[ALL], parameters: &global(2), ..BASE },
    Layout { name: "lxmert", families: "LXMERT, cross-attention",
        qkv: split!(linear, "att.query", "att.key", "att.value"), o: linear!("output.dense"), ..BASE },
    Layout { name: "deberta-v2", families: "DeBERTa v2 and v3",
        qkv: split!(linear, "self.query_proj", "self.key_proj", "self.value_proj"), o: linear!("output.dense"),
        position: DEBERTA_V2_POSITION, ..BASE },
    Layout { name: "deberta", families: "DeBERTa",
        qkv: QkvNames::Fused(bare("self.in_proj.weight"), Some(["self.q_bias", "self.v_bias"]), FusedOrder::Grouped),
        o: linear!("output.dense"), position: DEBERTA_POSITION, ..BASE },
    Layout { name: "distilbert", families: "DistilBERT, XLM, FlauBERT",
        qkv: split!(linear, "q_lin", "k_lin", "v_lin"), o: linear!("out_lin"), ..BASE },
    Layout { name: "albert", families: "ALBERT, TVP",
        qkv: split!(linear, "query", "key", "value"), o: linear!("dense"), after: &["layer_norm"], ..BASE },
    Layout { name: "mpnet", families: "MPNet",
        qkv: split!(linear, "attn.q", "attn.k", "attn.v"), o: linear!("attn.o"), ..BASE },
    Layout { name: "t5", families: "T5, mT5, UMT5; MPNet, from the prefix one further down",
        qkv: split!(linear, "q", "k", "v"), o: linear!("o"), biases: &[ALL, NONE],
        position: &[bias_table(RELATIVE_BIAS, RELATIVE_BIAS)], ..BASE },
    Layout { name: "videomae", families: "VideoMAE", qkv: QkvNames::Split(&[
            LinearNames { bias: "attention.q_bias", ..linear!("attention.query") }, linear!("attention.key"),
            LinearNames { bias: "attention.v_bias", ..linear!("attention.value") }], None),
        o: linear!("output.dense"), biases: &[NO_KEY], ..BASE },
    Layout { name: "vit", families: "ViT, DINOv2, BEiT (transformers)",
        qkv: split!(linear, "attention.query", "attention.key", "attention.value"), o: linear!("output.dense"),
        biases: &[ALL, NO_KEY, ONLY_OUT],
        position: &[bias_table(PATCH_BIAS, "attention.relative_position_bias.relative_position_bias_table")], ..BASE },
    Layout { name: "timm-beit", families: "timm BEiT, EVA",
        qkv: QkvNames::Fused(bare("qkv.weight"), Some(["q_bias", "v_bias"]), FusedOrder::Blocks), o: linear!("proj"),
        position: &[bias_table(PATCH_BIAS, PATCH_BIAS)], may_be_eva: true, ..BASE },
    Layout { name: "timm", families: "timm ViT, DINOv2 (original), vision of Qwen-VL and GLM-4V",
        qkv: fused!("qkv", Blocks), o: linear!("proj"), biases: &[ALL, ONLY_OUT, NONE],
        parameters: &qk_norms(0), position: TIMM_POSITION, ..BASE },
    Layout { name: "bart",
        families: "BART, Marian, Whisper, CLIP, SigLIP, wav2vec 2.0, OPT, GPT-J, GPT-Neo, LFM2, fairseq",
        o: linear!("out_proj"), biases: &[ALL, NO_KEY, ONLY_OUT, NONE], grouped: true, parameters: &BART_PARAMETERS,
        position: BART_POSITION, ..BASE },
    Layout { name: "torch", families: "torch.nn.MultiheadAttention, OpenCLIP",
        qkv: QkvNames::Fused(IN_PROJ, None, FusedOrder::Blocks), o: linear!("out_proj"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "torch-split", families: "torch.nn.MultiheadAttention with kdim or vdim",
        qkv: QkvNames::Split(SPLIT_PROJ, Some(IN_PROJ.bias)), o: linear!("out_proj"), biases: &[ALL, NONE], ..BASE },
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
        grouped: true, parameters: &qk_norms(1), ..BASE },
    Layout { name: "phi3", families: "Phi-3, GTE (new)",
        qkv: fused!("qkv_proj", Blocks), biases: &[ALL, NONE, NO_OUT, ONLY_OUT], grouped: true, ..BASE },
    Layout { name: "unlimited-ocr", families: "Unlimited OCR, vision",
        qkv: fused!("qkv_proj", Blocks), o: linear!("out_proj"), requires: &["qkv_proj.bias"], ..BASE },
    Layout { name: "kimi", families: "Kimi K2.5, vision",
        qkv: fused!("wqkv", Blocks), o: linear!("wo"),
        after: &["mlp", "norm0", "norm1"], ..BASE },
    Layout { name: "hrm", families: "HRM-Text", gate: GateNames::BeforeQuery,
        qkv: fused!("gqkv_proj", Blocks), biases: &[NONE], ..BASE },
    Layout { name: "modernbert", families: "ModernBERT",
        qkv: fused!("Wqkv", Blocks), o: linear!("Wo"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "modernbert-decoder", families: "ModernBERT as a decoder", o: linear!("Wo"), biases: &[ALL, NONE],
        ..BASE },
    Layout { name: "cpm-ant", families: "CPM-Ant",
        qkv: split!(linear, "project_q", "project_k", "project_v"), o: linear!("attention_out"), biases: &[NONE],
        ..BASE },
    Layout { name: "nemotron-speech", families: "Nemotron 3.5 Transcribe",
        qkv: fused!("w_qkv", Blocks), o: linear!("out_proj"), biases: &[ALL, ONLY_OUT],
        parameters: &qk_norms(0), ..BASE },
    Layout { name: "pixels", families: "Chameleon, Janus and Apertus, tokenizers of images",
        qkv: split!(linear, "q", "k", "v", PIXELS), o: linear!("proj_out", PIXELS), after: &["norm"], ..BASE },
    Layout { name: "frames", families: "WavTokenizer",
        qkv: split!(linear, "q", "k", "v", FRAMES), o: linear!("proj_out", FRAMES), after: &["norm"], ..BASE },
    Layout { name: "squeezebert", families: "SqueezeBERT",
        qkv: split!(linear, "attention.query", "attention.key", "attention.value", Orientation::Grouped),
        o: linear!("post_attention.conv1d", Orientation::Grouped),
        after: &["layernorm", "intermediate", "output"], ..BASE },
    Layout { name: "x-clip", families: "X-CLIP, prompts", o: linear!("proj"), biases: &[ONLY_OUT],
        excludes: &["q_proj.bias"], ..BASE },
    Layout { name: "ctrl", families: "CTRL",
        qkv: split!(linear, "Wq", "Wk", "Wv"), o: linear!("dense"), ..BASE },
    Layout { name: "mpt", families: "MPT, NomicBERT, Jina embeddings v3, DBRX",
        qkv: fused!("Wqkv", Blocks), o: linear!("out_proj"),
        biases: &[ALL, NONE, NO_OUT, ONLY_OUT], grouped: true, ..BASE },
    Layout { name: "bark", families: "Bark",
        qkv: fused!("att_proj", Blocks), o: linear!("out_proj"), biases: &[ALL, NONE], ..BASE },
    Layout { name: "molmo", families: "Molmo 2",
        qkv: fused!("att_proj", Blocks), o: linear!("attn_out"), biases: &[ALL, NONE, NO_OUT],
        grouped: true, parameters: &qk_norms(0), ..BASE },
    Layout { name: "gradium", families: "Gradium Phonon",
        qkv: fused!("in_proj", Blocks), biases: &[NONE], ..BASE },
    Layout { name: "inner-linear", families: "Kyutai's speech to text, vision of Gemma 4",
        qkv: split!(linear, "q_proj.linear", "k_proj.linear", "v_proj.linear"), o: linear!("o_proj.linear"),
        biases: &[NONE], grouped: true, parameters: &qk_norms(0), ..BASE },
    Layout { name: "cosmos", families: "Cosmos 3",
        qkv: split!(linear, "to_q", "to_k", "to_v"), o: linear!("to_out"), biases: &[ALL, NONE], grouped: true,
        parameters: &qk_norms(4), ..BASE },
    Layout { name: "cosmos-vision", families: "Cosmos 3 Edge, vision",
        qkv: split!(linear, "to_q", "to_k", "to_v"), o: linear!("out_proj"), ..BASE },
    Layout { name: "cohere-asr", families: "Cohere ASR, decoder",
        qkv: split!(linear, "query_net", "key_net", "value_net"), o: linear!("out_projection"), ..BASE },
    Layout { name: "sapiens", families: "Sapiens 2",
        qkv: split!(linear, "wq", "wk", "wv"), o: linear!("proj"), biases: &[ALL, NONE], grouped: true,
        parameters: &qk_norms(0), after: &["gamma"], ..BASE },
    Layout { name: "molmo-vision", families: "Molmo 2, vision",
        qkv: split!(linear, "wq", "wk", "wv"), o: linear!("wo"), biases: &[ALL, NONE], grouped: true, ..BASE },
    Layout { name: "pvt-v2", families: "PVT v2",
        qkv: split!(linear, "query", "key", "value"), o: linear!("proj"), biases: &[ALL, ONLY_OUT], ..BASE },
    Layout { name: "neox-japanese", families: "GPT-NeoX Japanese, last layer",
        qkv: fused!("query_key_value", Grouped),
        o: LinearNames { bias: "dense_bias", ..linear!("dense") }, biases: &[ONLY_OUT], requires: &["dense_bias"], ..BASE },
    Layout { name: "neox", families: "GPT-NeoX, Pythia, BLOOM, Falcon, Persimmon",
        qkv: fused!("query_key_value", Grouped), o: linear!("dense"),
        biases: &[ALL, NONE], grouped: true, parameters: &qk_norms(1), excludes: &["query_layernorm.weight"], ..BASE },
    Layout { name: "sarvam", families: "Sarvam", qkv: fused!("query_key_value", Blocks),
        o: linear!("dense"), biases: &[], grouped: true, parameters: &qk_norms(3),
        requires: &["query_layernorm.weight"], ..BASE },
    Layout { name: "codegen", families: "CodeGen",
        qkv: fused!("qkv_proj", FourBlocks), o: linear!("out_proj"),
        biases: &[NONE], ..BASE },
    Layout { name: "gpt2-cross", families: "GPT-2, cross-attention",
        qkv: QkvNames::Pair(linear!("q_attn", IN_OUT), linear!("c_attn", IN_OUT)), o: linear!("c_proj", IN_OUT),
        check_orientation: true, ..BASE },
    Layout { name: "gpt2", families: "GPT-2",
        qkv: QkvNames::Fused(linear!("c_attn", IN_OUT), None, FusedOrder::Blocks), o: linear!("c_proj", IN_OUT),
        check_orientation: true, ..BASE },
    Layout { name: "gpt-bigcode", families: "GPT-BigCode",
        qkv: fused!("c_attn", Grouped), o: linear!("c_proj"),
        grouped: true, check_orientation: true, ..BASE },
    Layout { name: "timm-pool", families: "timm attention pooling (SigLIP)",
        qkv: QkvNames::Pair(linear!("q"), linear!("kv")), o: linear!("proj"), ..BASE },
    Layout { name: "timesformer", families: "TimeSformer",
        qkv: fused!("attention.qkv", Blocks), o: linear!("output.dense"),
        biases: &[ALL, ONLY_OUT], ..BASE },
    Layout { name: "blip", families: "BLIP, BLIP-2, InstructBLIP",
        qkv: fused!("qkv", Blocks), o: linear!("projection"), biases: &[ALL, ONLY_OUT], ..BASE },
    Layout { name: "internvl", families: "InternVL, Janus", o: linear!("projection_layer"), biases: &[ALL, ONLY_OUT],
        parameters: &qk_norms(0), ..BASE },
    Layout { name: "pix2struct", families: "Pix2Struct, Kosmos-2.5",
        qkv: split!(linear, "query", "key", "value"), o: linear!("output"), biases: &[NONE],
        position: &[bias_table(RELATIVE_BIAS, RELATIVE_BIAS)], ..BASE },
    Layout { name: "keys-as-values", families: "Gemma 4, layers whose keys are their values",
        qkv: QkvNames::Split(&[linear!("q_proj"), linear!("k_proj")], None), biases: &[], grouped: true,
        parameters: &qk_norms(0), excludes: &["v_proj.weight"], ..BASE },
    Layout { name: "shared-keys", families: "Gemma 3n, Gemma 4, layers with the keys and values of another one",
        qkv: QkvNames::Split(&[linear!("q_proj")], None), biases: &[], grouped: true, parameters: &qk_norms(0),
        excludes: &["k_proj.weight", "v_proj.weight", "kv_proj.weight", "kv_b_proj.weight",
            "kv_a_proj_with_mqa.weight"], ..BASE },
    Layout { name: "layoutlmv2", families: "LayoutLMv2",
        qkv: QkvNames::Fused(bare("self.qkv_linear.weight"), Some(["self.q_bias", "self.v_bias"]), FusedOrder::Blocks),
        o: linear!("output.dense"), wide_biases: true, ..BASE },
    Layout { name: "grounding-dino", families: "Grounding DINO, OmDet-Turbo",
        qkv: split!(linear, "query", "key", "value"), o: linear!("out_proj"), ..BASE },
    Layout { name: "diffusers", families: "U-Nets of Stable Diffusion", qkv: split!(linear, "to_q", "to_k", "to_v"),
        o: linear!("to_out.0"), biases: &[ONLY_OUT], excludes: &["to_q.bias"], ..BASE },
    Layout { name: "qwen2.5-omni-dit", families: "speech of Qwen2.5-Omni",
        qkv: split!(linear, "to_q", "to_k", "to_v"), o: linear!("to_out.0"), ..BASE },
    Layout { name: "qwen2.5-omni", families: "vision of Qwen2.5-Omni",
        qkv: split!(linear, "q", "k", "v"), o: linear!("proj"), ..BASE },
    Layout { name: "gemma3n-audio", families: "audio of Gemma 3n",
        qkv: split!(linear, "attn.q_proj", "attn.k_proj", "attn.v_proj"), o: linear!("post"), biases: &[NONE],
        parameters: &[(FACTORS[0], "attn.per_dim_scale")],
        position: &[PositionName { stored: "attn.relative_position_embedding.pos_proj.weight", ..RELATIVE_SINUSOIDS[0] }],
        after: &["pre_attn_norm", "post_norm"], ..BASE },
    Layout { name: "gemma4-audio", families: "audio of Gemma 4",
        qkv: split!(linear, "q_proj.linear", "k_proj.linear", "v_proj.linear"), o: linear!("post.linear"),
        biases: &[NONE], parameters: &[(FACTORS[0], "per_dim_scale"), ("o_proj", "post")],
        position: &[RELATIVE_SINUSOIDS[0]], ..BASE },
    Layout { name: "conformer", families: "wav2vec 2.0 Conformer, wav2vec 2.0 BERT, FastSpeech 2 Conformer",
        qkv: split!(linear, "linear_q", "linear_k", "linear_v"), o: linear!("linear_out"),
        position: CONFORMER_POSITION, ..BASE },
    Layout { name: "xlnet", families: "XLNet",
        qkv: QkvNames::Split(&[bare_kernel("q"), bare_kernel("k"), bare_kernel("v")], None),
        o: LinearNames { orientation: Orientation::OutHeads, ..bare_kernel("o") }, biases: &[NONE], per_head_kernels: true,
        position: XLNET_POSITION, requires: &["r"], after: &["layer_norm"], ..BASE },
    Layout { name: "evolla-resampler", families: "Evolla, resampler",
        qkv: QkvNames::Pair(linear!("to_q"), linear!("to_kv")), o: linear!("to_out"), biases: &[NONE],
        requires: &["norm_media.weight"], after: &["norm_media", "norm_latents"], ..BASE },
    Layout { name: "evolla-adapter", families: "Evolla, adapters",
        qkv: split!(linear, "query", "key_protein", "value_protein"), o: linear!("out_proj"), biases: &[ALL, NO_OUT],
        after: &["attention_norm", "ff", "gate_attention", "gate_ffw"], ..BASE },
    Layout { name: "aimv2-pool", families: "AIMv2, head",
        qkv: QkvNames::Split(&[LinearNames::ABSENT, linear!("k_proj"), linear!("v_proj")], None), o: linear!("output_proj"),
        biases: &[ONLY_OUT, ALL], requires: &["cls_token"], after: &["cls_token"], ..BASE },
    Layout { name: "gru-cell", families: "SLANet, the attention of its recurrent cell",
        qkv: QkvNames::Split(&[linear!("hidden_to_hidden"), linear!("input_to_hidden"), LinearNames::ABSENT], None),
        o: LinearNames::ABSENT, biases: &[ONLY_QUERY], requires: &[SCORE], after: &["rnn"], ..BASE },
    Layout { name: "dab-detr", families: "DAB-DETR, decoder", qkv: QkvNames::Apart(&DAB_SELF),
        o: linear!("self_attn.output_proj"), ..BASE },
    Layout { name: "dab-detr-cross", families: "DAB-DETR, cross-attention", qkv: QkvNames::Apart(&DAB_CROSS),
        o: linear!("cross_attn.output_proj"), after: &["cross_attn_layer_norm"], ..BASE },
    Layout { name: "conditional-detr", families: "Conditional DETR, decoder", qkv: QkvNames::Apart(&CONDITIONAL_SELF),
        o: linear!("out_proj"), within: Some("self_attn"), ..BASE },
    Layout { name: "conditional-detr-cross", families: "Conditional DETR, cross-attention",
        qkv: QkvNames::Apart(&CONDITIONAL_CROSS), o: linear!("out_proj"), within: Some("encoder_attn"), ..BASE },
    Layout { name: "blt-cross", families: "Byte Latent Transformer, cross-attention, whose norms are of its inputs",
        biases: &[NONE], grouped: true, within: Some("cross_attn_layers"),
        requires: &["q_norm.weight", "k_norm.weight"], after: &["q_norm", "k_norm"], ..BASE },
    Layout { name: "granite-speech", families: "Granite Speech",
        qkv: QkvNames::Pair(linear!("to_q"), linear!("to_kv")), o: linear!("to_out"), biases: &[ONLY_OUT],
        position: &[SHAW_REVERSED], ..BASE },
    Layout { name: "hy-v4", families: "HY V4", qkv: QkvNames::Latent(&DEEPSEEK), biases: &[],
        gate: GateNames::Required(linear!("linear_gate")), parameters: &[(SINKS, SINK_NAMES[3])],
        requires: &["linear_gate.weight", SINK_NAMES[3]], ..BASE },
    Layout { name: "deepseek", families: "DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash, GLM-5, MiniCPM3, LongCat-Flash",
        qkv: QkvNames::Latent(&DEEPSEEK), biases: &[], ..BASE },
    Layout { name: "deepseek-lite", families: "DeepSeek-V2-Lite, Kimi-Linear",
        qkv: QkvNames::Latent(&DEEPSEEK_LITE), biases: &[], ..BASE },
    Layout { name: "multi-query", families: "this crate, latents that are the one key and value of all heads",
        qkv: QkvNames::Latent(&MULTI_QUERY), indexer: Some(&["indexer.wq_b.weight"]), biases: &[],
        parameters: &[(SINKS, SINK_NAMES[0]), (GROUPS[0], GROUPS[0]), (BLOCKS, BLOCKS)],
        excludes: &["kv_b_proj.weight"], ..BASE },
    Layout { name: "deepseek-v4", families: "DeepSeek V4", qkv: QkvNames::Latent(&DEEPSEEK_V4), o: linear!("wo_b"),
        indexer: Some(&["indexer.wq_b.weight"]), biases: &[], parameters: DEEPSEEK_V4_PARAMETERS, ..BASE },
    Layout { name: "deepseek-v4-saved", families: "DeepSeek V4, saved by transformers",
        qkv: QkvNames::Latent(&DEEPSEEK_V4_SAVED), o: linear!("wo_b"), indexer: Some(&["indexer.wq_b.weight"]),
        biases: &[], parameters: DEEPSEEK_V4_PARAMETERS, ..BASE },
    Layout { name: "ling", families: "Ling 3", qkv: QkvNames::Latent(&DEEPSEEK_LITE), o: linear!("dense"), biases: &[],
        gate: GateNames::Required(linear!("g_proj")), requires: &["g_proj.weight"], ..BASE },
    Layout { name: "kimi-vision", families: "vision of Kimi K2.5 and Muse", o: linear!("proj"),
        requires: &["k_proj.bias"], ..BASE },
    Layout { name: "timm-eva", families: "timm EVA with split projections", o: linear!("proj"), biases: &[NO_KEY],
        may_be_eva: true, ..BASE },
];

/// The rows of [`LAYOUTS`] in the order in which detection tries them.
pub(crate) fn detected() -> impl Iterator<Item = (usize, &'static Layout)> {
    let rows = || LAYOUTS.iter().enumerate();
    rows().filter(|(_, layout)| layout.within.is_some()).chain(rows())
}

/// Every known layout, in the order in which detection tries them, after those that a component of the prefix tells.
pub fn layouts() -> impl ExactSizeIterator<Item = &'static Layout> {
    LAYOUTS.iter()
}

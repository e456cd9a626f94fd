//! Families that this version cannot run as their own models do, each with the reason.

use crate::families::family::{BASE, Family};

/// A row that only says why.
const fn unsupported(model_types: &'static [&'static str], why: &'static str) -> Family {
    Family { model_types, unsupported: Some(why), ..BASE }
}

#[rustfmt::skip]
pub(crate) const UNSUPPORTED: &[Family] = &[
    unsupported(
        &["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_linear", "longcat_flash",
          "minicpm3", "mistral4", "youtu"],
        "keys and values of low rank (multi-head latent attention)",
    ),
    unsupported(
        &["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "afmoe", "laguna", "lfm3", "step3p5", "hrm_text", "beam"],
        "a gate on the output of each head",
    ),
    unsupported(
        &["hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "nanochat", "llama4_text"],
        "norms of queries and keys after their rotation",
    ),
    unsupported(
        &["gemma3n_text", "gemma4_text", "gemma4_unified_text"],
        "norms of values, and layers that share keys and values",
    ),
    unsupported(&["ministral3"], "a factor on the queries that grows with the position"),
    unsupported(&["bitnet", "kosmos_2_text_model"], "a norm between the heads and the output projection"),
    unsupported(&["diffllama"], "differential attention"),
    unsupported(&["doge"], "a mask that is computed from the values"),
    unsupported(&["jetmoe"], "a mixture of experts in place of the projections"),
    unsupported(&["moshi", "moshi_depth"], "projections for each codebook"),
    unsupported(&["mimo_v2_flash"], "a factor on the values"),
    unsupported(&["zamba", "zamba2"], "attention over twice the hidden size, scaled by half of the head size"),
    unsupported(&["swinv2", "swin2sr"], "cosine attention with a computed position bias"),
    unsupported(&["wavlm"], "gated relative positions"),
    unsupported(&["sew-d"], "disentangled attention with names of its own"),
    unsupported(
        &["wav2vec2-bert", "wav2vec2-conformer"],
        "relative positions in conformers",
    ),
    unsupported(&["vits"], "relative positions added to keys"),
    unsupported(
        &["sam_vision_model", "sam_hq_vision_model", "got_ocr2_vision", "pp_chart2table_vision", "slanext_vision",
          "pp_formulanet_vision", "deepseek_ocr2_sam_vision_model", "unlimited_ocr_sam_vision_model", "vitdet", "seggpt"],
        "relative positions of rows and columns that depend on the queries",
    ),
    unsupported(&["florence_vision"], "attention between channels"),
    unsupported(&["idefics2_perceiver"], "keys of the context and of the queries together"),
    unsupported(&["t5gemma2_decoder"], "self-attention and cross-attention in one softmax"),
    unsupported(
        &["longformer", "mra", "nystromformer", "reformer", "yoso"],
        "attention to a part of the tokens, or an approximation of attention",
    ),
    unsupported(&["lilt"], "text and layout in two streams whose scores add"),
    unsupported(&["bros"], "queries that are compared with the distances of boxes on the page"),
    unsupported(&["funnel", "xlnet"], "relative positions of their own, and pooled or repeated sequences"),
    unsupported(&["prophetnet"], "n-gram streams"),
    unsupported(&["convbert"], "convolutions beside the heads"),
    unsupported(&["ibert"], "integer arithmetic"),
];

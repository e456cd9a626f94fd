//! Families that this version cannot run as their own models do, each with the reason.

use crate::families::family::{BASE, Family};

/// A row that only says why.
const fn unsupported(model_types: &'static [&'static str], why: &'static str) -> Family {
    Family { model_types, unsupported: Some(why), ..BASE }
}

#[rustfmt::skip]
pub(crate) const UNSUPPORTED: &[Family] = &[
    unsupported(&["axk2"], "queries and gates of normalized and other latents together"),
    unsupported(&["dots3_note_text"], "a norm of the rotated key, and sizes of latents per layer"),
    unsupported(&["mistral_large4_text"], "latents of another layer, and a learned factor on the queries"),
    unsupported(&["gemma4_assistant", "gemma4_unified_assistant"], "keys and values of another model"),
    unsupported(&["diffllama"], "differential attention"),
    unsupported(&["doge"], "a mask that is computed from the values"),
    unsupported(&["jetmoe"], "a mixture of experts in place of the projections"),
    unsupported(&["moshi", "moshi_depth"], "projections for each codebook"),
    unsupported(&["zamba", "zamba2"], "attention over twice the hidden size, scaled by half of the head size"),
    unsupported(&["swinv2", "swin2sr"], "cosine attention with a computed position bias"),
    unsupported(&["aimv2_text_model", "videoprism_text_model"], "causal only in a call with a padding mask"),
    unsupported(&["paligemma"], "tokens of image and prompt that see one another"),
    unsupported(&["mllama_vision_model"], "a mask of tiles and of padded patches"),
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
    unsupported(&["qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder"], "patches in the order of windows"),
    unsupported(&["mlcd_vision_model"], "a learned position of the class token"),
    unsupported(&["llama4_vision_model"], "rotated patches before a class token that is not"),
    unsupported(&["sam3_vit_model", "vjepa2"], "rotation by coordinates that depend on the image"),
    unsupported(
        &["detr", "conditional_detr", "dab-detr", "deformable_detr", "table-transformer", "rt_detr", "rt_detr_v2",
          "d_fine", "lw_detr", "rf_detr", "maskformer", "mask2former", "oneformer", "grounding-dino",
          "mm-grounding-dino", "omdet-turbo"],
        "positions added to queries and keys, not to values",
    ),
    unsupported(&["layoutlmv2", "layoutxlm", "layoutlmv3"], "biases of the layout on the page"),
    unsupported(&["florence_vision"], "attention between channels"),
    unsupported(&["idefics2_perceiver"], "keys of the context and of the queries together"),
    unsupported(&["t5gemma2_decoder"], "self-attention and cross-attention in one softmax"),
    unsupported(
        &["longformer", "mra", "nystromformer", "reformer", "yoso"],
        "attention to a part of the tokens, or an approximation of attention",
    ),
    unsupported(&["funnel", "xlnet"], "relative positions of their own, and pooled or repeated sequences"),
    unsupported(&["prophetnet"], "n-gram streams"),
    unsupported(&["convbert"], "convolutions beside the heads"),
    unsupported(&["ibert"], "integer arithmetic"),
    unsupported(
        &["step3p5_vision"],
        "rotary positions of patches in an order or with frequencies of their own",
    ),
];

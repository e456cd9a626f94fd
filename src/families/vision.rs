//! Families of images and video, of a text and a vision tower, and the parts of multimodal models.

use crate::config::{CallInput, NormKind, NormOver};
use crate::families::family::{
    BART, BASE, Causal, Family, HeadSizes, HeadsKey, LATENTS, LayerPositions, MASK, Mechanism, OWN, PATCH_ROTARY,
    PREDICTED, PatchRotaryRow, PatchWindows, QueryFactor, RMS, ROTARY, Required, RotaryRow, Scale, StepRow,
};
use crate::position::{GridFrequencies, RotaryStyle};

/// Vision transformers as transformers has them, and as their authors or timm do.
const VIT: &[&str] = &["vit", "timm"];
/// Those whose authors have biases of queries and values alone.
const BEIT: &[&str] = &["vit", "timm-beit", "timm"];
const TIMM: &[&str] = &["timm"];
/// Towers of CLIP's kind as transformers has them; OpenCLIP's, and heads of SigLIP, are modules of torch; then timm's.
const CLIP: &[&str] = &["bart", "torch", "timm", "timm-pool"];

/// Layouts of towers, and that of Cosmos.
const TOWERS: &[&str] = &["bart", "torch", "timm", "timm-pool", "cosmos-vision"];

/// A part that adds its positions to its input, and in which every token sees every other.
const PLAIN: Family = Family { qk_norm: None, ..BASE };

const fn patch_rotary(frequencies: GridFrequencies, block: Option<(&'static str, usize)>) -> LayerPositions {
    LayerPositions::PatchRotary(PatchRotaryRow { frequencies, block, ..PATCH_ROTARY })
}

/// Of Perceiver, whose decoders have as many heads as their code says.
const OWN_HEADS: &[(&str, &str)] = &[("decoder", "a number of heads that no configuration states")];

/// Patches by angles that the call gives.
#[rustfmt::skip]
const GIVEN: Family = Family { layouts: OWN, positions: LayerPositions::Given(RotaryStyle::HalfSplit),
    requires: &[Required::new(CallInput::CosSin)], ..PLAIN };

/// Of models whose images have any shape.
const GRID: &[Required] = &[Required::new(CallInput::Grid)];

/// Images of any size, whose patches are rotated, and come in blocks that are merged after the last layer.
#[rustfmt::skip]
const QWEN_VL: Family = Family { layouts: TIMM,
    positions: patch_rotary(GridFrequencies::Same, Some(("spatial_merge_size", 2))), requires: GRID, ..PLAIN };

/// Patches that come in windows. Frames of a video are rows of the batch.
#[rustfmt::skip]
const QWEN2_5_VL: Family = Family {
    positions: LayerPositions::PatchRotary(PatchRotaryRow { block: Some(("spatial_merge_size", 2)),
        windows: PatchWindows::Ordered, ..PATCH_ROTARY }), ..QWEN_VL };

/// The note of Swin's layers.
const SHIFTED: Option<&str> =
    Some("windows are rows of the batch: where a block shifts them, the call masks what the shift joined");
/// Cosines of queries and keys, and biases that are computed.
#[rustfmt::skip]
const SWIN_V2: Family = Family { layouts: &["swin-v2"], note: SHIFTED, head_sizes: HeadSizes::PerStage,
    scale: Scale::Cosine, positions: LayerPositions::ComputedBias { shrinks: true },
    steps: &[StepRow::NormEps(1e-24), StepRow::WeightlessNorms, StepRow::QueryFactor(QueryFactor::Exp)], ..PLAIN };

#[rustfmt::skip]
pub(crate) const VISION: &[Family] = &[
    // The name under which timm's checkpoints are read. Their own config.json states no family, and nothing of
    // attention.
    Family { model_types: &["timm"], layouts: &["timm", "timm-beit", "timm-eva", "timm-pool"],
        own_keys: &["use_rot_pos_emb"], ..BASE },
    Family { model_types: &["vit", "dinov2", "dinov2_with_registers", "deit", "ijepa", "vit_mae", "vit_msn", "yolos",
            "vilt", "vivit", "dpt", "pixio", "vitpose_backbone", "audio-spectrogram-transformer", "flava_image_model",
            "flava_text_model", "flava_multimodal_model", "mobilevit"],
        layouts: VIT, ..PLAIN },
    Family { model_types: &["mgp-str", "radio", "tipsv2_vision_model", "glm_image_vision"], layouts: TIMM, ..PLAIN },
    Family { model_types: &["videoprism_vision_model"], layouts: OWN,
        mechanisms: &[Mechanism::Softcap("attn_logit_softcapping")], defaults: &[("attn_logit_softcapping", 50.0)],
        ..PLAIN },
    // The query is learned.
    Family { model_types: &["videoprism_head"], layouts: OWN, scale: Scale::One,
        ignored_keys: &["attn_logit_softcapping"], steps: &[StepRow::QueryFactor(QueryFactor::Softplus)], ..PLAIN },
    Family { model_types: &["minicpm_ocr_vision", "minicpmv4_6_vision", "minicpmv4_7_vision"], layouts: CLIP,
        // Patches see their own window.
        requires: &[Required::below("vit_merger", CallInput::Mask)], ..PLAIN },
    Family { model_types: &["pe_audio_encoder", "pe_video_encoder", "pe_audio_video_encoder"], layouts: OWN,
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, theta: 20_000.0, ..ROTARY }), qk_norm: RMS,
        defaults: &[("rms_norm_eps", 1e-5)], ..PLAIN },
    Family { model_types: &["videomae"], layouts: &["videomae", "vit", "timm-beit", "timm"], ..PLAIN },
    Family { model_types: &["timesformer"], layouts: &["timesformer", "timm"], ..PLAIN },
    Family { model_types: &["lw_detr_vit"], layouts: &["candle-attention", "vit", "timm"], ..PLAIN },
    Family { model_types: &["rf_detr_dinov2"], layouts: &["candle-attention", "vit"], ..PLAIN },
    Family { model_types: &["videomt"], layouts: &["bart", "vit", "timm"], ..PLAIN },
    Family { model_types: &["sapiens2"], layouts: &["sapiens"], positions: LayerPositions::DinoRotary, qk_norm: RMS,
        ..BASE },
    Family { model_types: &["dinov3_vit"], layouts: OWN, positions: LayerPositions::DinoRotary, ..BASE },
    Family { model_types: &["eomt_dinov3"], layouts: OWN, positions: LayerPositions::DinoRotary, note: Some(PREDICTED),
        ..BASE },
    Family { model_types: &["beit", "data2vec-vision"], layouts: BEIT, ..BASE },
    Family { model_types: &["pixtral"], layouts: OWN, positions: patch_rotary(GridFrequencies::Alternating, None),
        requires: GRID, ..BASE },
    // Frames of a video are rows of the batch.
    Family { model_types: &["qwen2_vl_vision", "qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen3_5_vision",
            "qwen3_5_moe_vision", "qwen3_omni_moe_vision_encoder", "qwen4_exp_vision", "glm4v_vision",
            "glm4v_moe_vision", "ernie4_5_vl_moe_vision", "cohere_compass_vision"], ..QWEN_VL },
    Family { model_types: &["lfm3_vl_vision"], layouts: BART, qk_norm: RMS, defaults: &[("norm_eps", 1e-5)],
        ..QWEN_VL },
    Family { model_types: &["video_llama_3_vision"], layouts: BART, ..QWEN_VL },
    Family { model_types: &["paddleocr_vl_vision"], layouts: BART, positions: patch_rotary(GridFrequencies::Same, None),
        requires: GRID, ..PLAIN },
    Family { model_types: &["glm_ocr_vision", "glm5_next_vision", "dots3_note_vision_encoder"], qk_norm: RMS,
        defaults: &[("rms_norm_eps", 1e-5)], ..QWEN_VL },
    // Patches come window by window; frames of a video are rows of the batch.
    Family { model_types: &["qwen2_5_vl_vision", "exaone4_5_vision"], layouts: TIMM, ..QWEN2_5_VL },
    Family { model_types: &["qwen2_5_omni_vision_encoder"], layouts: &["qwen2.5-omni"], ..QWEN2_5_VL },
    Family { model_types: &["sam3_vit_model"], layouts: OWN,
        positions: LayerPositions::PatchRotary(PatchRotaryRow { style: RotaryStyle::Interleaved, columns_first: true,
            windows: PatchWindows::Rows, ..PATCH_ROTARY }), ..PLAIN },
    Family { model_types: &["llama4_vision_model"], layouts: OWN,
        positions: LayerPositions::PatchRotary(PatchRotaryRow { style: RotaryStyle::Interleaved, columns_first: true,
            first: 1, suffix_tokens: 1, ..PATCH_ROTARY }), ..PLAIN },
    // Patches row by row, columns in the first half of a head.
    Family { model_types: &["gemma4_vision"], layouts: &["inner-linear"], required_keys: &["rope_parameters"],
        qk_norm: RMS, scale: Scale::One, steps: &[StepRow::ValueNorm],
        positions: LayerPositions::PatchRotary(PatchRotaryRow { columns_first: true, halves: true, ..PATCH_ROTARY }),
        requires: GRID, ..PLAIN },
    Family { model_types: &["step3p5_vision"],
        // transformers turns these weights into ones for pairs that are half a head apart.
        layouts: &["torch"],
        positions: LayerPositions::PatchRotary(PatchRotaryRow { style: RotaryStyle::Interleaved, columns_first: true,
            ..PATCH_ROTARY }), ..PLAIN },
    Family { model_types: &["vjepa2"], layouts: &["pvt-v2"],
        heads: &[HeadsKey::part(&["predictor"], "pred_num_attention_heads", "pred_hidden_size")],
        positions: LayerPositions::Video,
        // Tokens of the predictor are some patches of the video, and those that are predicted.
        requires: &[Required::below("predictor", CallInput::Positions)],
        unsupported_parts: &[("pooler", "no rotation, and a query that is learned")], ..PLAIN },
    Family { model_types: &["mlcd_vision_model", "minimax_m3_vl_vision"], layouts: BART, ..GIVEN },
    Family { model_types: &["kimi_k25_vision"], layouts: &["kimi-vision", "kimi"], ..GIVEN },
    // The keys of memory repeat the angles of a frame. Those that are not rotated come before them, with angles of 0.
    Family { model_types: &["sam2_video_memory"],
        heads: &[HeadsKey::part(&["memory_attention"], "memory_attention_num_attention_heads",
            "memory_attention_hidden_size")],
        positions: LayerPositions::Given(RotaryStyle::Interleaved), ..GIVEN },
    // Patches see those of their own window or image.
    Family { model_types: &["muse_glimmer_vision", "muse_spark_vision"], layouts: &["kimi-vision"],
        requires: &[Required::new(CallInput::CosSin), Required::new(CallInput::Mask)], ..GIVEN },
    // The places of key points give the angles, in self-attention.
    Family { model_types: &["lightglue"], positions: LayerPositions::Given(RotaryStyle::Interleaved),
        requires: &[Required::below("self_attention", CallInput::CosSin)], ..GIVEN },
    // Patches see one another, and queries, which come after them, patches and the queries before them.
    Family { model_types: &["deepseek_ocr2_encoder"], layouts: OWN, ignored_keys: &["sliding_window"],
        positions: LayerPositions::Rotary(ROTARY), requires: MASK, ..PLAIN },
    // Latents, whose keys and values are those of the context and, after them, their own.
    Family { model_types: &["evolla_resampler"], layouts: &["evolla-resampler"],
        ignored_keys: &["rope_parameters", "rope_scaling", "rope_theta"],
        heads: &[HeadsKey::part(&["sequence_compressor_resampler"], "resampler_heads", "")], note: Some(LATENTS),
        ..PLAIN },
    Family { model_types: &["evolla_adapter"], layouts: &["evolla-adapter"],
        ignored_keys: &["rope_parameters", "rope_scaling", "rope_theta"],
        heads: &[HeadsKey::part(&["adapter"], "num_attention_heads", "hidden_size")], scale: Scale::Heads, ..PLAIN },
    Family { model_types: &["idefics2_perceiver"], layouts: OWN, note: Some(LATENTS), ..PLAIN },
    Family { model_types: &["idefics_perciever"], layouts: &["idefics-perceiver"], note: Some(LATENTS), ..PLAIN },
    Family { model_types: &["perceiver"], layouts: &["perceiver"],
        heads: &[HeadsKey::new(&["cross_attention"], "num_cross_attention_heads")], unsupported_parts: OWN_HEADS,
        note: Some("the inputs are what the norms of the layer, `layernorm1` and `layernorm2`, make of them"),
        ..PLAIN },
    // Tiles of an image are one sequence, some of them and some patches of each padding.
    Family { model_types: &["mllama_vision_model"], layouts: OWN, requires: MASK, ..PLAIN },
    // Causal in a call with a padding mask, and not without.
    Family { model_types: &["aimv2_text_model"], layouts: &["bart", "candle-attention"], requires: MASK, ..PLAIN },
    Family { model_types: &["videoprism_text_model"], layouts: OWN,
        mechanisms: &[Mechanism::Softcap("attn_logit_softcapping")], defaults: &[("attn_logit_softcapping", 50.0)],
        requires: MASK, ..PLAIN },
    // Windows are rows of the batch; the caller masks those that a shift joined.
    Family { model_types: &["swin", "donut-swin", "maskformer-swin", "clap_audio_model"], layouts: &["bert", "timm"],
        head_sizes: HeadSizes::PerStage, note: SHIFTED, ..BASE },
    // Swin with cosines as scores. A mask of windows that a shift joined is added twice in the model.
    Family { model_types: &["swinv2"], ..SWIN_V2 },
    Family { model_types: &["swin2sr"], positions: LayerPositions::ComputedBias { shrinks: false }, ..SWIN_V2 },
    // Windows are rows of the batch.
    Family { model_types: &["sam2_hiera_det_model"], layouts: TIMM, head_sizes: HeadSizes::PerBlockOfStage,
        mechanisms: &[Mechanism::PooledQueries], ..PLAIN },
    // SAM's tower, also in models of documents. Windows are rows of the batch.
    Family { model_types: &["sam_vision_model", "sam_hq_vision_model", "got_ocr2_vision", "pp_chart2table_vision",
            "slanext_vision", "pp_formulanet_vision", "deepseek_ocr2_sam_vision_model",
            "unlimited_ocr_sam_vision_model", "vitdet", "seggpt"],
        layouts: TIMM, positions: LayerPositions::RelativeKey2d,
        note: Some("in layers with windows the input is the windows of an image, each a sequence, with their padding"),
        ..PLAIN },
    Family { model_types: &["slanet", "slanext"], layouts: &["gru-cell"], ..PLAIN },
    Family { model_types: &["segformer", "glpn", "pvt"], head_sizes: HeadSizes::PerStage, ..PLAIN },
    // Windows are rows of the batch.
    Family { model_types: &["florence_vision", "davit"], layouts: TIMM,
        heads: &[HeadsKey::part(&["channel_attn"], "num_groups", "dim_embed")], head_sizes: HeadSizes::PerStage,
        mechanisms: &[Mechanism::BetweenChannels("channel_attn")], ..PLAIN },
    Family { model_types: &["pvt_v2"], layouts: &["pvt-v2"], head_sizes: HeadSizes::PerStage, ..PLAIN },
    // Text towers.
    Family { model_types: &["clip_text_model", "clipseg_text_model", "metaclip_2_text_model", "owlvit_text_model",
            "owlv2_text_model", "groupvit_text_model", "kosmos_2_5_text_model", "xclip_text_model"],
        layouts: CLIP, causal: Causal::Always, ..BASE },
    Family { model_types: &["chinese_clip_text_model", "altclip_text_model", "align_text_model", "clap_text_model",
            "bridgetower_text_model", "bridgetower"], ..PLAIN },
    // Its vision tower is a module of torch.
    Family { model_types: &["bridgetower_vision_model"], layouts: &["torch"], defaults: &[("head_dim", 64.0)],
        ..PLAIN },
    Family { model_types: &["tipsv2_text_model"], layouts: &["torch"], ..PLAIN },
    Family { model_types: &["blip_2_qformer", "instructblip_qformer", "instructblipvideo_qformer"],
        layouts: &["vit", "bert"], ..PLAIN },
    Family { model_types: &["blip_text_model"], causal: Causal::Below("bert"), ..BASE },
    // The sections of both towers are in one file; a file for one tower may lack the nested section.
    Family { model_types: &["clip", "clipseg"], layouts: CLIP, causal: Causal::TextTower, ..BASE },
    Family { model_types: &["clip_vision_model"], layouts: CLIP, ..BASE },
    // SigLIP, and vision towers.
    Family { model_types: &["siglip", "siglip_text_model", "siglip_vision_model", "clipseg_vision_model",
            "metaclip_2_vision_model", "owlvit_vision_model", "owlv2_vision_model", "groupvit_vision_model",
            "chinese_clip_vision_model", "altclip_vision_model", "git_vision_model", "kosmos_2_vision_model",
            "ovis2_vision", "siglip2_text_model", "siglip2_vision_model", "idefics_vision", "idefics2_vision",
            "patchtst", "idefics3_vision", "smolvlm_vision", "phi4_multimodal_vision", "granite_docling_vision",
            "cosmos3_edge_vision"],
        layouts: TOWERS, ..PLAIN },
    Family { model_types: &["aimv2_vision_model"], layouts: &["bart", "torch", "timm", "timm-pool", "aimv2-pool"],
        note: Some("the query of the head is its `cls_token`, which has no projection"), ..PLAIN },
    Family { model_types: &["unlimited_ocr_vision_encoder"], layouts: &["unlimited-ocr"], ..PLAIN },
    Family { model_types: &["hunyuan_vl_vision", "hy_v4_vl_vision"], layouts: OWN,
        forbidden_keys: &[("attention_heads", "the number of heads by another name, which would count")], ..PLAIN },
    Family { model_types: &["molmo2_vision", "molmo2_adapter"], layouts: &["molmo-vision"], ..PLAIN },
    Family { model_types: &["inkling2_vision"], layouts: BART,
        positions: LayerPositions::PatchRotary(PatchRotaryRow { style: RotaryStyle::Interleaved, columns_first: true,
            prefix_tokens: 1, block: Some(("spatial_merge_size", 2)), first: 1, ..PATCH_ROTARY }),
        requires: GRID, ..PLAIN },
    Family { model_types: &["emu3_vqgan"], layouts: BART, defaults: &[("num_attention_heads", 1.0)], ..PLAIN },
    // One head over pixels or frames, whose norm comes before it.
    Family { model_types: &["chameleon_vqgan", "janus_vqgan", "apertus1p5_vision_tokenizer"], layouts: &["pixels"],
        head_sizes: HeadSizes::PerStage, defaults: &[("num_attention_heads", 1.0)], ..PLAIN },
    Family { model_types: &["wavtokenizer"], layouts: &["frames"], head_sizes: HeadSizes::PerStage,
        defaults: &[("num_attention_heads", 1.0)], ..PLAIN },
    Family { model_types: &["xclip_vision_model"], layouts: TOWERS,
        heads: &[HeadsKey::part(&["mit"], "mit_num_attention_heads", "mit_hidden_size")], ..PLAIN },
    // Prompts of texts that see the frames of a video.
    Family { model_types: &["xclip"], layouts: &["x-clip"],
        heads: &[HeadsKey::part(&["prompts_generator"], "prompt_num_attention_heads", "prompt_hidden_size")], ..PLAIN },
    Family { model_types: &["eomt"], layouts: BART, note: Some(PREDICTED), ..PLAIN },
    Family { model_types: &["janus_vision_model"], layouts: &["internvl", "timm"], ..PLAIN },
    Family { model_types: &["kosmos_2_5_vision_model"], layouts: &["pix2struct"], ..PLAIN },
    Family { model_types: &["blip_vision_model", "blip_2_vision_model", "instructblip_vision_model",
            "instructblipvideo_vision_model"],
        layouts: &["blip", "timm-beit", "timm"], ..PLAIN },
    Family { model_types: &["internvl_vision", "qianfan_ocr_vision"], layouts: &["internvl", "timm"],
        qk_norm: Some((NormKind::Rms, NormOver::AllHeads)), steps: &[StepRow::NormEps(1e-6)], ..PLAIN },
    // Its configuration states the buckets of the text beside it.
    Family { model_types: &["pix2struct_vision_model"], layouts: &["pix2struct"],
        ignored_keys: &["relative_attention_num_buckets"], scale: Scale::One, ..PLAIN },
];

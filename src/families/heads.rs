//! Numbers of heads of configurations that leave them out, as `text_config` of LLaVA and Gemma 3 does.
//!
//! The config class of a family then has its own, often that of the first model that was published.

/// Numbers of heads, each with the values of `model_type` whose config class has it.
#[rustfmt::skip]
const DEFAULT_HEADS: &[(usize, &[&str])] = &[
    (1, &["decision_transformer"]),
    (4, &["embedding_gemma2_text",
        "electra", "groupvit_text_model", "mobilevit"]),
    (6, &["nanochat",
        "dinov3_vit", "groupvit_vision_model"]),
    (8, &["diffusion_gemma_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text",
        "granite_speech5_encoder", "parakeet_encoder", "aimv2_vision_model", "blip_text_model", "bloom", "clip_text_model", "clipseg_text_model",
        "csm_depth_decoder_model", "gemma2", "gemma3", "gemma3_text", "imagegpt", "metaclip_2_text_model", "mimi",
        "mimi_decoder", "mimi_encoder", "moonshine", "ovis2_vision", "owlv2_text_model", "owlvit_text_model",
        "t5_gemma_module", "vaultgemma", "xclip_text_model"]),
    (12, &["deepseek_ocr2_sam_vision_model", "got_ocr2_vision", "pp_chart2table_vision", "pp_formulanet_vision",
        "sam_hq_vision_model", "sam_vision_model", "sew-d", "slanext_vision", "unlimited_ocr_sam_vision_model", "vitdet",
        "wav2vec2-conformer", "wavlm", "align_text_model", "altclip_vision_model", "audio-spectrogram-transformer", "beit", "bert",
        "blip_2_qformer", "blip_vision_model", "camembert", "chinese_clip_text_model", "chinese_clip_vision_model",
        "clap_text_model", "clip_vision_model", "clipseg_vision_model", "data2vec-audio", "data2vec-vision", "deberta",
        "deit", "dinov2", "dinov2_with_registers", "distilbert", "dpt", "esm", "eurobert", "flava_image_model",
        "flava_multimodal_model", "flava_text_model", "git", "git_vision_model", "glm4v_moe_vision", "glm4v_vision",
        "gpt2", "gpt_bigcode", "granite_docling_vision", "hrm_text", "hubert", "idefics2_vision", "ijepa",
        "instructblip_qformer", "instructblipvideo_qformer", "metaclip_2_vision_model", "mgp-str", "modernbert",
        "modernbert-decoder", "mpnet", "openai-gpt", "opt", "owlv2_vision_model", "owlvit_vision_model",
        "pix2struct_vision_model", "roberta", "sew", "siglip2_text_model", "siglip2_vision_model",
        "siglip_text_model", "siglip_vision_model", "timesformer", "tipsv2_text_model", "tipsv2_vision_model",
        "unispeech", "unispeech-sat", "videomae", "vilt", "vit", "vit_mae", "vit_msn", "vitpose_backbone", "vivit",
        "wav2vec2", "xclip_vision_model", "xlm-roberta", "yolos"]),
    (16, &["afmoe", "altclip_text_model", "biogpt", "blip_2_vision_model", "codegen", "cohere_compass_vision", "ctrl",
        "seggpt", "wav2vec2-bert",
        "ernie4_5", "ernie4_5_vl_moe_vision", "gemma", "glm_image_vision", "glm_ocr_text", "glm_ocr_vision", "gpt_neo",
        "gptj", "granite_docling_text", "idefics3_vision", "instructblip_vision_model",
        "instructblipvideo_vision_model", "internvl_vision", "janus_vision_model", "kosmos_2_5_text_model",
        "kosmos_2_vision_model", "moss_transcribe_diarize_audio", "mpt", "olmoe", "paddleocr_vl_text",
        "phi4_multimodal_vision", "pixio", "pixtral", "qianfan_ocr_vision", "qwen2_moe", "qwen2_vl_vision",
        "qwen3_5_moe_text", "qwen3_5_moe_vision", "qwen3_5_text", "qwen3_5_vision", "qwen3_next",
        "qwen3_omni_moe_talker_code_predictor", "qwen3_omni_moe_talker_text", "qwen3_omni_moe_vision_encoder",
        "qwen3_vl_moe_text", "qwen3_vl_moe_vision", "qwen3_vl_vision", "qwen4_exp_text", "qwen4_exp_vision", "radio",
        "smollm3", "smolvlm_vision", "timesfm2_5", "xglm"]),
    (20, &["audioflamingo3_encoder", "bitnet", "ernie4_5_moe", "ernie4_5_vl_moe_text", "glmasr_encoder", "granite_swa",
        "helium", "qwen2_audio_encoder", "voxtral_encoder"]),
    (24, &["deberta-v2", "higgs_audio_v2", "kosmos_2_5_vision_model", "starcoder2"]),
    (26, &["jais2"]),
    (28, &["qwen2_5_omni_talker", "qwen2_5_omni_text", "qwen3_omni_moe_text"]),
    (30, &["olmo_hybrid"]),
    (32, &["apertus", "arcee", "aria_text", "bamba", "csm", "deepseek_ocr2_text", "dots1", "emu3_text_model", "evolla",
        "exaone4", "exaone_moe", "falcon_h1", "flex_olmo", "glm", "glm4", "glm4v_text", "glm_image_text",
        "gpt_neox_japanese", "granite", "granite4_vision_text", "granitemoe", "granitemoe_swa", "granitemoehybrid",
        "granitemoeshared", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "hyperclovax", "internlm3",
        "jamba", "lfm2", "lfm2_moe", "llama", "mellum", "minimax", "ministral", "ministral3", "mistral", "mixtral",
        "mllama_text_model", "nemotron_h", "olmo", "olmo2", "olmo3", "phi", "phi3", "phi4_multimodal", "phimoe",
        "qwen2", "qwen3", "qwen3_moe", "qwen3_vl_text", "stablelm", "voxtral_realtime_encoder"]),
    (40, &["iquestcoder", "llama4_text"]),
    (48, &["cwm", "laguna", "minimax_m2", "nemotron"]),
    (64, &["albert", "cohere", "cohere2", "gpt_neox", "gpt_oss", "hy_v3", "mimo_v2_flash", "persimmon",
        "qwen2_5_vl_text", "qwen2_vl_text", "solar_open"]),
    (71, &["falcon"]),
    (80, &["seed_oss"]),
    (96, &["glm4_moe", "glm4v_moe_text"]),
];

/// The number of heads of this `model_type` if its configuration states none.
pub(super) fn default_heads(model_type: &str) -> Option<usize> {
    DEFAULT_HEADS.iter().find(|(_, names)| names.contains(&model_type)).map(|(heads, _)| *heads)
}

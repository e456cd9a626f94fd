//! Which keys of a `config.json` the config classes of transformers know beyond those that rows read.
//!
//! transformers ignores a key that neither a config class nor the code of its models has, and so does this crate where
//! it is that class which runs the file. Everywhere else the key was written for code that is not known here, and a key
//! that changes attention is an error.

use serde_json::{Map, Value};

use crate::families::family::Family;
use crate::families::keys::KEYS;
use crate::families::table::layer_family;

/// The version of transformers whose classes the lists are of.
const VERSION: (u32, u32) = (5, 23);

/// Names in rows that are no `model_type` of transformers, each with whose they are.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("new", "GTE's own code"),
    ("timm", "the name that reads timm's checkpoints"),
    ("evolla_protein_encoder", "the name of a section of Evolla"),
    ("bidirectional_pplx_qwen3", "pplx-embed's own code"),
    ("lfm2_bidirectional", "transformers after 5.23"),
    ("kimi_k2", "Kimi K2's own code"),
    ("fastspeech2_conformer_encoder", "a part of FastSpeech 2 Conformer"),
    ("fastspeech2_conformer_decoder", "a part of FastSpeech 2 Conformer"),
    ("semantic", "a section of Bark"),
    ("coarse_acoustics", "a section of Bark"),
    ("fine_acoustics", "a section of Bark"),
];

/// Keys that all config classes have, or had before transformers 5.
const OF_ALL: [&str; 2] = ["per_layer_config", "is_decoder"];

/// Keys that a class with `rope_parameters` takes into them.
pub(super) const OF_ROTATION: [&str; 2] = ["rope_scaling", "partial_rotary_factor"];

/// Keys that change attention, each with the values of `model_type` whose class knows it and whose row does not read it.
const UNREAD: &[(&str, &[&str])] = &[
    ("attention_k_eq_v", &["diffusion_gemma_text"]),
    ("attn_logit_softcapping", &["gemma3_text", "t5gemma2_text"]),
    ("clip_qkv", &["iquestcoder", "olmoe"]),
    ("gating", &["esm"]),
    ("index_topk", &["glm5_next_vision"]),
    ("rotary_value", &["roformer"]),
    (
        "sliding_window",
        &[
            "jamba",
            "modernbert",
            "nemotron",
            "nemotron_h",
            "olmoe",
            "paligemma",
            "qwen3_omni_moe_talker_code_predictor",
            "qwen3_omni_moe_talker_text",
            "qwen3_omni_moe_text",
        ],
    ),
    ("use_bidirectional_attention", &["gemma", "gemma2", "gemma3n_text", "step3p5", "t5gemma2_text"]),
    ("use_qk_norm", &["janus_vision_model"]),
];

/// Keys of sizes that weights show, each with the values of `model_type` whose class knows it.
#[rustfmt::skip]
const SIZES: &[(&str, &[&str])] = &[
    ("num_key_value_heads", &[
        "afmoe", "apertus", "arcee", "aria_text", "axk1", "bailing_hybrid", "bamba", "beam", "bitnet", "blt_global_transformer",
        "blt_local_decoder", "blt_local_encoder", "blt_patcher", "canary_decoder", "chameleon", "cohere", "cohere2",
        "cohere2_moe", "cohere_asr", "cohere_compass_text", "cosmos3_edge_text", "csm", "csm_depth_decoder_model", "cwm",
        "deepseek_ocr2_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dia_decoder", "dia_encoder",
        "diffusion_gemma_text", "dots1", "embedding_gemma2_text", "emu3_text_model", "ernie4_5", "ernie4_5_moe",
        "ernie4_5_vl_moe_text", "esmc", "eurobert", "evolla", "exaone4", "exaone4_5_vision", "exaone_moe", "falcon_h1",
        "flex_olmo", "flint", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text",
        "gemma4_vision", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm4v_text", "glm5_next_text",
        "glm_image_text", "glm_moe_dsa", "glm_ocr_text", "glmasr_encoder", "gpt_oss", "gradium_phonon_tts", "granite",
        "granite4_vision_text", "granite_docling_text", "granite_speech5_encoder", "granite_swa", "granitemoe",
        "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium", "higgs_audio_v2", "hunyuan_v1_dense",
        "hunyuan_v1_moe", "hunyuan_vl_text", "hunyuan_vl_vision", "hy_v3", "hy_v4", "hyperclovax", "idefics2_vision",
        "internlm3", "iquestcoder", "jais2", "jamba", "kimi_linear", "kolibri1", "kyutai_speech_to_text", "laguna",
        "lasr_encoder", "lfm2", "lfm2_moe", "lfm3", "lfm3_vl_vision", "llama", "llama4_text", "longcat_flash", "mellum", "mimi",
        "mimi_encoder", "mimo_v2_flash", "minicpm3", "minimax", "minimax_m2", "minimax_m3_vl_text", "ministral", "ministral3",
        "mistral", "mistral4", "mixtral", "mllama_text_model", "molmo2_adapter", "molmo2_text", "molmo2_vision", "moonshine",
        "moonshine_streaming", "muse_glimmer_text", "muse_spark_text", "nanochat", "nemotron",
        "nemotron3_5_transcribe_asr_audio", "nemotron3_5_transcribe_word_timestamp", "nemotron3_diarization_audio",
        "nemotron_h", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "openai_privacy_filter", "paddleocr_vl_text",
        "paligemma", "parakeet_encoder", "pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder", "phi", "phi3",
        "phi4_multimodal", "phimoe", "pocket_tts", "pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_encoder", "qwen2",
        "qwen2_5_omni_talker", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl_text", "qwen3",
        "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_omni_moe_audio_encoder",
        "qwen3_omni_moe_talker_code_predictor", "qwen3_omni_moe_talker_text", "qwen3_omni_moe_text",
        "qwen3_omni_moe_vision_encoder", "qwen3_vl_moe_text", "qwen3_vl_text", "qwen4_exp_text", "seed_oss", "smollm3",
        "solar_open", "stablelm", "starcoder2", "step3p5", "t5_gemma_module", "t5gemma2_text", "timesfm2_5", "ultrabert",
        "unlimited_ocr_text", "vaultgemma", "voxtral_realtime_encoder", "voxtral_realtime_text", "whisper", "youtu"]),
    ("head_dim", &[
        "afmoe", "apertus", "arcee", "aria_text", "audio-spectrogram-transformer", "axk1", "bailing_hybrid", "bamba", "beam",
        "beit", "bitnet", "canary_decoder", "chameleon", "cohere", "cohere2", "cohere2_moe", "cohere_asr",
        "cohere_compass_text", "cohere_compass_vision", "cosmos3_edge_text", "csm", "csm_depth_decoder_model", "cwm", "dbrx",
        "deepseek_ocr2_text", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deit", "dia_decoder", "dia_encoder",
        "diffusion_gemma_text", "dinov2", "dinov2_with_registers", "dots1", "dots3_note_vision_encoder",
        "embedding_gemma2_text", "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text", "ernie4_5_vl_moe_vision", "esm", "esmc",
        "eurobert", "evolla", "exaone4", "exaone4_5_vision", "exaone_moe", "falcon", "falcon_h1", "flex_olmo", "flint", "gemma",
        "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "gemma4_vision", "glm", "glm4",
        "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm4v_moe_vision", "glm4v_text", "glm4v_vision", "glm5_next_text",
        "glm5_next_vision", "glm_image_text", "glm_moe_dsa", "glm_ocr_text", "glm_ocr_vision", "gpt_neox", "gpt_neox_japanese",
        "gpt_oss", "gradium_phonon_tts", "granite", "granite4_vision_text", "granite_docling_text", "granite_speech5_encoder",
        "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "gte", "helium",
        "higgs_audio_v2", "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "hunyuan_vl_vision", "hy_v3",
        "hy_v4", "hyperclovax", "idefics", "ijepa", "inkling2_vision", "internlm3", "iquestcoder", "jais2", "jamba",
        "jina_embeddings_v3", "kimi_linear", "kolibri1", "kosmos_2_5_text_model", "kosmos_2_5_vision_model",
        "kyutai_speech_to_text", "laguna", "lasr_encoder", "lfm2", "lfm2_moe", "lfm3", "lfm3_vl_vision", "llama", "llama4_text",
        "longcat_flash", "longt5", "lw_detr", "lw_detr_vit", "mellum", "mimi", "mimi_encoder", "mimo_v2_flash", "minicpm3",
        "minimax", "minimax_m2", "minimax_m3_vl_text", "ministral", "ministral3", "mistral", "mistral4", "mixtral",
        "mlcd_vision_model", "mllama_text_model", "modernbert", "modernbert-decoder", "molmo2_adapter", "molmo2_text",
        "molmo2_vision", "moonshine", "moonshine_streaming", "mt5", "muse_glimmer_text", "muse_spark_text", "nanochat",
        "nemotron", "nemotron3_5_transcribe_asr_audio", "nemotron3_diarization_audio", "nemotron_h", "nomic_bert", "olmo",
        "olmo2", "olmo3", "olmo_hybrid", "olmoe", "openai_privacy_filter", "paddleocr_vl_text", "paddleocr_vl_vision",
        "parakeet_encoder", "pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder", "persimmon", "phi", "phi3",
        "phi4_multimodal", "phi4_multimodal_audio", "phimoe", "pixio", "pixtral", "pocket_tts", "pocket_tts_audio_tokenizer",
        "pocket_tts_audio_tokenizer_encoder", "qwen2", "qwen2_5_omni_talker", "qwen2_5_omni_vision_encoder",
        "qwen2_5_vl_vision", "qwen2_moe", "qwen2_vl_vision", "qwen3", "qwen3_5_moe_text", "qwen3_5_moe_vision", "qwen3_5_text",
        "qwen3_5_vision", "qwen3_moe", "qwen3_next", "qwen3_omni_moe_audio_encoder", "qwen3_omni_moe_talker_code_predictor",
        "qwen3_omni_moe_talker_text", "qwen3_omni_moe_text", "qwen3_omni_moe_vision_encoder", "qwen3_vl_moe_text",
        "qwen3_vl_moe_vision", "qwen3_vl_text", "qwen3_vl_vision", "qwen4_exp_text", "qwen4_exp_vision", "radio", "rf_detr",
        "rf_detr_dinov2", "sam3_vit_model", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2", "step3p5",
        "step3p5_vision", "t5", "t5_gemma_module", "t5gemma2_text", "timesfm2_5", "tipsv2_vision_model", "ultrabert", "umt5",
        "unlimited_ocr_text", "vaultgemma", "video_llama_3_vision", "videoprism_vision_model", "vit", "vit_mae", "vit_msn",
        "vivit", "voxtral_realtime_encoder", "voxtral_realtime_text", "youtu"]),
    ("d_model", &[
        "audioflamingo3_encoder", "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "conditional_detr", "d_fine",
        "dbrx", "deformable_detr", "detr", "fsmt", "grounding-dino", "led", "longt5", "lw_detr", "m2m_100", "marian", "mbart",
        "mm-grounding-dino", "moss_transcribe_diarize_audio", "mpt", "mt5", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart",
        "pop2piano", "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4", "pp_formulanet_text",
        "qwen2_5_omni_audio_encoder", "qwen2_audio_encoder", "qwen3_asr_encoder", "qwen3_omni_moe_audio_encoder",
        "qwen3_omni_moe_talker_code_predictor", "qwen3_omni_moe_talker_text", "qwen3_omni_moe_text",
        "qwen3_omni_moe_vision_encoder", "rf_detr", "rt_detr", "rt_detr_v2", "speech_to_text", "switch_transformers", "t5",
        "table-transformer", "time_series_transformer", "trocr", "udop", "umt5", "voxtral_encoder", "voxtral_realtime_encoder",
        "whisper", "xglm"]),
    ("n_embd", &["codegen", "ctrl", "gpt2", "gpt_bigcode", "gptj", "imagegpt", "openai-gpt"]),
    ("dim", &["distilbert"]),
];

/// Whether transformers' own class runs a file: it names no code of its own (`auto_map`), and is not of a later version.
pub(crate) fn is_of_class(json: &Map<String, Value>) -> bool {
    let version = json.get("transformers_version").and_then(Value::as_str).unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    let is_later = (numbers.next(), numbers.next()) > (Some(VERSION.0), Some(VERSION.1));
    !is_later && !json.contains_key("auto_map")
}

/// The keys of this section of a file that its class ignores. `model_type` is that of its row: where the section states
/// another one, both have to ignore a key.
pub(crate) fn ignored_keys(section: &Map<String, Value>, model_type: &str, family: &Family) -> Vec<&'static str> {
    let stated = section.get("model_type").and_then(Value::as_str).unwrap_or(model_type);
    let Ok(other) = layer_family(Some(stated)) else { return Vec::new() };
    let keys = KEYS.iter().map(|(key, _)| *key).chain(SIZES.iter().map(|(key, _)| *key));
    let ignored = |key: &&str| ignores(key, model_type, family) && ignores(key, stated, other);
    keys.filter(|key| section.contains_key(*key)).filter(ignored).collect()
}

/// Whether a class does not have a key, and its row does not read it.
fn ignores(key: &str, model_type: &str, family: &Family) -> bool {
    let of_rotation = || OF_ROTATION.contains(&key) && family.reads_key("rope_parameters");
    let has = match SIZES.iter().any(|(size, _)| *size == key) {
        true => lists(SIZES, key, model_type),
        false => family.reads_key(key) || OF_ALL.contains(&key) || of_rotation() || lists(UNREAD, key, model_type),
    };
    !has && !OTHERS.iter().any(|(name, _)| *name == model_type)
}

fn lists(table: &[(&str, &[&str])], key: &str, model_type: &str) -> bool {
    table.iter().any(|(listed, names)| *listed == key && names.contains(&model_type))
}

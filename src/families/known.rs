//! Which keys of a `config.json` the config classes of transformers know beyond those that layers read.
//!
//! transformers ignores a key that neither a config class nor the code of its models has, and so does this crate where
//! it is that class which runs the file. Everywhere else the key was written for code that is not known here, and a key
//! that changes attention is an error.

use serde_json::{Map, Value};

use crate::families::layer::Layer;
use crate::families::table::layer_family;

/// The version of transformers whose classes the lists are of.
const VERSION: (u32, u32) = (5, 24);

/// Names in rows that are no `model_type` of transformers, each with whose they are.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("new", "GTE's own code"),
    ("timm", "the name that reads timm's checkpoints"),
    ("evolla_protein_encoder", "the name of a section of Evolla"),
    ("evolla_adapter", "a part of Evolla"),
    ("evolla_resampler", "a part of Evolla"),
    ("bidirectional_pplx_qwen3", "pplx-embed's own code"),
    ("lfm2_bidirectional", "transformers after 5.24"),
    ("kimi_k2", "Kimi K2's own code"),
    ("sam2_video_memory", "a part of the video models of SAM 2 and SAM 3"),
    ("videoprism_head", "a part of VideoPrism"),
    ("fun_asr_nano_adaptor", "a part of Fun-ASR-Nano"),
    ("davit", "Florence-2's own code"),
    ("florence2_language", "Florence-2's own code"),
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

/// Keys that change attention, each with the values of `model_type` whose class knows it and whose layers do not read
/// it, or not where the whole model masks its text.
const UNREAD: &[(&str, &[&str])] = &[
    ("attention_k_eq_v", &["diffusion_gemma_text"]),
    ("attn_logit_softcapping", &["gemma3_text", "t5gemma2_decoder", "t5gemma2_text"]),
    ("clip_qkv", &["iquestcoder", "olmoe"]),
    ("gating", &["esm"]),
    ("index_topk", &["glm5_next_vision"]),
    ("quant_mode", &["ibert"]),
    (
        "sliding_window",
        &[
            "jamba",
            "deepseek_ocr2_encoder",
            "modernbert",
            "muse_glimmer_assistant",
            "nemotron",
            "nemotron_asr_streaming_encoder",
            "nemotron_h",
            "olmoe",
            "paligemma",
            "qwen3_omni_moe_talker_code_predictor",
            "qwen3_omni_moe_talker_text",
            "qwen3_omni_moe_text",
            "recurrent_gemma",
        ],
    ),
    ("use_bidirectional_attention", &["gemma", "gemma2", "gemma3_text", "gemma3n_text", "step3p5", "t5gemma2_text"]),
    ("use_qk_norm", &["janus_vision_model", "sarvam_moe"]),
];

/// Values of `model_type` whose class knows the size of a head and the number of key-value heads.
#[rustfmt::skip]
const HEADS_OF_KEYS: &[&str] = &[
    "afmoe", "apertus", "apertus1p5_text", "arcee", "aria_text", "axk1", "bailing_hybrid", "bamba", "beam", "bitnet",
    "canary_decoder", "chameleon", "cohere", "cohere2", "cohere2_moe", "cohere_asr", "cohere_compass_text",
    "cosmos3_edge_text", "csm", "csm_depth_decoder_model", "cwm", "deepseek_ocr2_text", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "deepseek_v4", "dia_decoder", "dia_encoder", "diffllama", "diffusion_gemma_text", "dots1", "dots3_note_audio_encoder",
    "embedding_gemma2_text", "ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text", "esmc", "eurobert", "evolla",
    "exaone", "exaone4", "exaone4_5_vision", "exaone_moe", "falcon_h1", "flex_olmo", "flint", "gemma", "gemma2",
    "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "gemma4_vision", "glm", "glm4", "glm4_moe",
    "glm4_moe_lite", "glm4v_moe_text", "glm4v_text", "glm5_next_text", "glm_image_text", "glm_moe_dsa",
    "glm_ocr_text", "gpt_oss", "gradium_phonon_tts", "granite", "granite4_vision_text", "granite_docling_text",
    "granite_speech5_encoder", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared",
    "helium", "higgs_audio_v2", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "hunyuan_vl_vision", "hy_v3",
    "hy_v4", "hy_v4_vl_text", "hy_v4_vl_vision", "hyperclovax", "internlm3", "iquestcoder", "jais2", "jamba",
    "kimi_linear", "kolibri1", "kyutai_speech_to_text", "laguna", "lara_mini", "lasr_encoder", "lfm2", "lfm2_moe",
    "lfm3", "lfm3_vl_vision", "lightglue", "llama", "llama4_text", "longcat_flash", "mellum", "mimi", "mimi_decoder",
    "mimi_encoder", "mimo_v2_flash", "minicpm3", "minimax", "minimax_m2", "minimax_m3_vl_text", "ministral",
    "ministral3", "mistral", "mistral4", "mixtral", "mllama_text_model", "molmo2_adapter", "molmo2_text",
    "molmo2_vision", "moonshine", "moonshine_streaming", "moonshine_streaming_encoder",
    "muse_glimmer_assistant", "muse_glimmer_text", "muse_spark_text", "nanochat", "nemotron", "nemotron3_5_transcribe_asr_audio",
    "nemotron3_diarization_audio", "nemotron_asr_streaming_encoder", "nemotron_h", "olmo", "olmo2", "olmo3",
    "olmo_hybrid", "olmoe", "openai_privacy_filter", "paddleocr_vl_text", "parakeet_encoder", "pe_audio_encoder",
    "pe_audio_video_encoder", "pe_video_encoder", "phi", "phi3", "phi4_multimodal", "phimoe", "pocket_tts",
    "pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_decoder", "pocket_tts_audio_tokenizer_encoder", "qwen2",
    "qwen2_5_omni_talker", "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next",
    "qwen3_omni_moe_audio_encoder", "qwen3_omni_moe_talker_code_predictor", "qwen3_omni_moe_talker_text",
    "qwen3_omni_moe_text", "qwen3_omni_moe_vision_encoder", "qwen3_vl_moe_text", "qwen3_vl_text", "qwen4_exp_text",
    "neucodec", "recurrent_gemma", "sarvam_mla", "sarvam_moe", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2", "step3p5",
    "t5_gemma_module", "t5gemma2_decoder", "t5gemma2_text", "timesfm2_5", "ultrabert", "unlimited_ocr_text", "vaultgemma",
    "voxtral_realtime_encoder", "voxtral_realtime_text", "xcodec2", "youtu", "zamba", "zamba2",
];

/// Keys of sizes that weights show, each with the values of `model_type` whose class knows it.
#[rustfmt::skip]
const SIZES: &[(&str, &[&str])] = &[
    ("num_key_value_heads", HEADS_OF_KEYS),
    ("head_dim", HEADS_OF_KEYS),
    ("num_key_value_heads", &[
        "blt_global_transformer", "blt_local_decoder", "blt_local_encoder", "blt_patcher", "deepseek_ocr2_encoder",
        "emu3_text_model", "glmasr_encoder", "idefics2_perceiver", "idefics2_vision",
        "nemotron3_5_transcribe_word_timestamp", "paligemma", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text",
        "whisper"]),
    ("head_dim", &[
        "audio-spectrogram-transformer", "beit", "cohere_compass_vision", "dbrx", "deit", "dinov2",
        "dinov2_with_registers", "dots3_note_vision_encoder", "ernie4_5_vl_moe_vision", "esm", "falcon", "fun_asr_nano_encoder",
        "glm4v_moe_vision", "glm4v_vision", "glm5_next_vision", "glm_ocr_vision", "gpt_neox", "gpt_neox_japanese",
        "gte", "hrm_text", "idefics", "ijepa", "inkling2_vision", "jina_embeddings_v3", "kimi_k25_vision",
        "kosmos_2_5_text_model", "kosmos_2_5_vision_model", "longt5", "lw_detr", "lw_detr_vit",
        "minimax_m3_vl_vision", "mlcd_vision_model", "modernbert", "modernbert-decoder", "mt5", "muse_glimmer_vision",
        "muse_spark_vision", "nomic_bert", "paddleocr_vl_vision", "persimmon", "phi4_multimodal_audio", "pixio",
        "pixtral", "qwen2_5_omni_dit", "qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision", "qwen2_vl_vision", "qwen3_5_moe_vision",
        "qwen3_5_vision", "qwen3_vl_moe_vision", "qwen3_vl_vision", "qwen4_exp_vision", "radio", "rf_detr",
        "rf_detr_dinov2", "sam3_vit_model", "step3p5_vision", "t5", "timesfm", "tipsv2_vision_model", "umt5",
        "video_llama_3_vision", "videoprism_vision_model", "vit", "vit_mae", "vit_msn", "vivit"]),
    ("d_model", &[
        "audioflamingo3_encoder", "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "conditional_detr",
        "d_fine", "dbrx", "deformable_detr", "detr", "dots3_note_audio_encoder", "fsmt", "grounding-dino", "led",
        "longt5", "lw_detr", "m2m_100", "marian", "mbart", "mm-grounding-dino", "moss_transcribe_diarize_audio",
        "mpt", "mt5", "mvp", "nllb-moe", "patchtst", "pegasus", "pegasus_x", "perceiver", "plbart", "pop2piano",
        "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4", "pp_formulanet_text", "qwen2_5_omni_audio_encoder",
        "qwen2_audio_encoder", "qwen3_asr_encoder", "qwen3_omni_moe_audio_encoder",
        "qwen3_omni_moe_talker_code_predictor", "qwen3_omni_moe_talker_text", "qwen3_omni_moe_text",
        "qwen3_omni_moe_vision_encoder", "rf_detr", "rt_detr", "rt_detr_v2", "speech_to_text", "switch_transformers",
        "t5", "table-transformer", "time_series_transformer", "trocr", "udop", "umt5", "voxtral_encoder",
        "voxtral_realtime_encoder", "whisper", "xglm", "xlnet"]),
    ("n_embd", &["codegen", "ctrl", "gpt2", "gpt_bigcode", "gptj", "imagegpt", "openai-gpt"]),
    ("dim", &["distilbert"]),
];

/// Whether transformers' own class runs a file: it names no code of its own (`auto_map`), and is not of a later
/// version.
pub(crate) fn is_of_class(json: &Map<String, Value>) -> bool {
    let version = json.get("transformers_version").and_then(Value::as_str).unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    let is_later = (numbers.next(), numbers.next()) > (Some(VERSION.0), Some(VERSION.1));
    !is_later && !json.contains_key("auto_map")
}

/// The keys of sizes in this section of a file that its class ignores.
pub(crate) fn ignored_sizes(section: &Map<String, Value>, model_type: &str) -> Vec<&'static str> {
    let keys = SIZES.iter().map(|(key, _)| *key).filter(|key| section.contains_key(*key));
    keys.filter(|key| no_class_has(section.get("model_type"), model_type, |name| lists(SIZES, key, name))).collect()
}

/// Whether the class of a layer's section ignores a key that changes attention and that the layer has not read.
pub(super) fn is_ignored(key: &str, layer: &Layer) -> bool {
    let of_rotation = || OF_ROTATION.contains(&key) && layer.has_read("rope_parameters");
    let stated = layer.section.json.get("model_type");
    !OF_ALL.contains(&key) && !of_rotation() && no_class_has(stated, layer.model_type, |name| lists(UNREAD, key, name))
}

/// Whether `has` is true for no class of a section: `model_type` is that of its row, and where the section states
/// another one, both have to ignore a key, or the model that it is a part of.
fn no_class_has(stated: Option<&Value>, model_type: &str, has: impl Fn(&str) -> bool) -> bool {
    let stated = stated.and_then(Value::as_str).unwrap_or(model_type);
    let is_part = OTHERS.iter().any(|(other, whose)| *other == model_type && whose.starts_with("a part of"));
    let model_type = if is_part { stated } else { model_type };
    let ignores = |name: &str| !has(name) && !OTHERS.iter().any(|(other, _)| *other == name);
    layer_family(Some(stated)).is_ok() && ignores(model_type) && ignores(stated)
}

fn lists(table: &[(&str, &[&str])], key: &str, model_type: &str) -> bool {
    table.iter().any(|(listed, names)| *listed == key && names.contains(&model_type))
}

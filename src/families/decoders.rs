//! Decoder families: causal self-attention.

use crate::config::{CallInput, NormKind, NormOver};
use crate::families::encoders::MODERNBERT_WINDOW;
use crate::families::family::{
    BART, BASE, Causal, FIXED_ROTATION, Family, GEMMA_ROTARY, IMAGES, LATENTS, LayerPositions, MASK, MaxKeys,
    Mechanism, Mrope, OWN, RMS, ROTARY, ROTARY_PER_KIND, Required, RequiredValue, RotaryLayers, RotaryRow, Scale,
    Sides, StepRow, Window, WindowLayers, mrope, share, theta,
};
use crate::position::RotaryStyle;

/// Layers of another kind between those of attention, by the last component of their prefix.
pub(super) const DELTA: &[(&str, &str)] =
    &[("linear_attn", "linear attention by the gated delta rule: a recurrent state in place of keys and values")];

/// A decoder whose attention knows nothing of positions.
pub(super) const DECODER: Family = Family { layouts: OWN, causal: Causal::Always, qk_norm: None, ..BASE };
/// A decoder with Llama's rotary positions.
pub(super) const LLAMA: Family = rotary(ROTARY);
/// Llama with Qwen 3's norms of each head.
pub(super) const QWEN3: Family = Family { qk_norm: RMS, ..LLAMA };
/// Llama with OLMo 2's norms over all heads.
const OLMO2: Family =
    Family { qk_norm: Some((NormKind::Rms, NormOver::AllHeads)), defaults: &[("rms_norm_eps", 1e-5)], ..LLAMA };
/// Granite, whose configuration states the factor on the scores.
const GRANITE: Family =
    Family { scale: Scale::AttentionMultiplier, defaults: &[("attention_multiplier", 1.0)], ..LLAMA };
/// LFM2: Qwen 3 with other names.
#[rustfmt::skip]
const LFM2: Family = Family { model_types: &["lfm2", "lfm2_moe"], layouts: BART, positions: theta(1_000_000.0),
    defaults: &[("norm_eps", 1e-5)], ..QWEN3 };

/// Kolibri: Qwen 3 whose layers without a window are not rotated.
#[rustfmt::skip]
const KOLIBRI: Family = Family { model_types: &["kolibri1"],
    window: windows(WindowLayers::AllButLastOf { key: None, default: 5 }),
    positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::Windowed, ..ROTARY }),
    defaults: &[("sliding_window", 513.0)], ..QWEN3 };

/// A decoder with rotary positions.
pub(super) const fn rotary(row: RotaryRow) -> Family {
    Family { positions: LayerPositions::Rotary(row), ..DECODER }
}

pub(super) const fn windows(layers: WindowLayers) -> Window {
    Window { layers, ..BASE.window }
}

/// All layers, if the configuration states a width.
pub(super) const EVERYWHERE: Window = windows(WindowLayers::All { switch: false });
/// Every second layer, beginning with the first.
const ALTERNATING: Window = windows(WindowLayers::AllButLastOf { key: None, default: 2 });
/// Three of four layers, by default.
const PATTERN: Window = windows(WindowLayers::AllButLastOf { key: Some("sliding_window_pattern"), default: 4 });
/// Upper layers, if windows are switched on (Qwen).
pub(super) const UPPER: Window = windows(WindowLayers::FromLayerNumber { switch: true });

pub(super) const QWEN2_DEFAULTS: &[(&str, f64)] = &[("sliding_window", 4096.0), ("max_window_layers", 28.0)];

const GPT2: &[&str] = &["gpt2", "gpt2-cross"];
const NEOX: &[&str] = &["neox"];

/// The rotation as files of GPT-NeoX spell it.
const GPT_NEOX_KEYS: &[&str] = &["rotary_emb_base", "rotary_pct"];

/// Phi, whose norms are those of each head.
const PHI: Family =
    Family { positions: share(0.5), qk_norm: BASE.qk_norm, defaults: &[("layer_norm_eps", 1e-5)], ..LLAMA };

/// GPT-J's pairs of neighbors.
#[rustfmt::skip]
const GPTJ: Family = Family { layouts: BART, forbidden_keys: FIXED_ROTATION, defaults: &[("rotary_dim", 64.0)],
    ..rotary(RotaryRow { interleaved: true, rotary_dim: true, ..ROTARY }) };

#[rustfmt::skip]
const GEMMA3: Family = Family { causal: Causal::UnlessBidirectional,
    window: windows(WindowLayers::AllButLastOf { key: Some("sliding_window_pattern"), default: 6 }),
    positions: LayerPositions::Rotary(GEMMA_ROTARY), scale: Scale::QueryPreAttnScalar,
    qk_norm: Some((NormKind::RmsOffset, NormOver::Head)),
    defaults: &[("sliding_window", 4096.0), ("query_pre_attn_scalar", 256.0)], ..LLAMA };

#[rustfmt::skip]
const GEMMA2: Family = Family { model_types: &["gemma2", "vaultgemma"], window: ALTERNATING,
    scale: Scale::QueryPreAttnScalar, mechanisms: &[Mechanism::Softcap("attn_logit_softcapping")],
    defaults: &[("sliding_window", 4096.0), ("query_pre_attn_scalar", 256.0), ("attn_logit_softcapping", 50.0)],
    ..LLAMA };

#[rustfmt::skip]
const COHERE2: Family = Family { model_types: &["cohere2"], window: PATTERN, defaults: &[("sliding_window", 4096.0)],
    ..rotary(RotaryRow { layers: RotaryLayers::Windowed, interleaved: true, ..ROTARY }) };

#[rustfmt::skip]
pub(crate) const DECODERS: &[Family] = &[
    Family { model_types: &["llama", "arcee", "gemma", "seed_oss", "aria_text", "jais2", "internlm3", "iquestcoder",
            "deepseek_ocr2_text", "idefics", "pocket_tts"], ..LLAMA },
    Family { model_types: &["diffllama"], mechanisms: &[Mechanism::Differential], defaults: &[("rms_norm_eps", 1e-5)],
        ..LLAMA },
    Family { model_types: &["mistral", "voxtral_realtime_text"], window: EVERYWHERE,
        defaults: &[("sliding_window", 4096.0)], ..LLAMA },
    Family { model_types: &["qwen2"], window: UPPER, defaults: QWEN2_DEFAULTS, ..LLAMA },
    Family { model_types: &["qwen3"], window: UPPER, defaults: QWEN2_DEFAULTS, ..QWEN3 },
    // The text of a model with images, which is causal whatever its section states.
    Family { model_types: &["gemma3", "shieldgemma2"], causal: Causal::Always, note: Some(IMAGES), ..GEMMA3 },
    Family { model_types: &["gemma3_text"], ..GEMMA3 },
    // Its encoder is a Gemma 3 that sees both ways.
    Family { model_types: &["t5gemma2_text"], causal: Causal::Never,
        window: Window { sides: Sides::Around, ..GEMMA3.window }, ..GEMMA3 },
    // Its decoder has one softmax over the encoder's tokens, which are not rotated, and its own, which come after them.
    Family { model_types: &["t5gemma2_decoder"], causal: Causal::Never, window: BASE.window,
        ignored_keys: &["sliding_window", "rope_local_base_freq", "use_bidirectional_attention"],
        positions: LayerPositions::Given(RotaryStyle::HalfSplit),
        requires: &[Required::new(CallInput::CosSin), Required::new(CallInput::Mask)],
        note: Some("keys and values are made of the tokens of the encoder, which are rotated by angles of 0, followed \
            by those of the decoder, which are the queries"), ..GEMMA3 },
    // A Llama that sees both ways.
    Family { model_types: &["eurobert"], causal: Causal::Never, ..LLAMA },
    // Tokens of image and prompt see one another.
    Family { model_types: &["paligemma"], causal: Causal::Never, requires: MASK,
        ignored_keys: &["use_bidirectional_attention"],
        required_values: &[RequiredValue::new("model_type", "gemma", "another model of the text")], ..LLAMA },
    Family { model_types: &["csm", "csm_depth_decoder_model", "evolla"], positions: theta(500_000.0), ..LLAMA },
    Family { model_types: &["paddleocr_vl_text"], positions: mrope(500_000.0, Mrope::Blocks), ..LLAMA },
    Family { model_types: &["cosmos3_edge_text"], layouts: &["candle-attention", "cosmos"],
        positions: mrope(100_000_000.0, Mrope::Alternating), ..LLAMA },
    // The mask and the bias are those of the spans and segments of a text.
    Family { model_types: &["cpmant"], layouts: &["cpm-ant"], causal: Causal::Never,
        requires: &[Required::new(CallInput::ScoreBias { scaled: false }), Required::new(CallInput::Mask)], ..DECODER },
    // The other layers are recurrent.
    Family { model_types: &["recurrent_gemma"], window: Window { key: "attention_window_size", ..EVERYWHERE },
        positions: share(0.5), defaults: &[("attention_window_size", 2048.0)], ..LLAMA },
    // A drafter, whose keys are made of hidden states of another model and its own. The mask has the window.
    Family { model_types: &["muse_glimmer_assistant"], ignored_keys: &["sliding_window"], causal: Causal::Never,
        positions: theta(500_000.0), requires: MASK, defaults: &[("rms_norm_eps", 1e-5)], note: Some(LATENTS),
        ..QWEN3 },
    Family { model_types: &["exaone"], layouts: &["bart", "candle-attention"], positions: theta(500_000.0), ..LLAMA },
    Family { model_types: &["emu3_text_model"], positions: theta(1_000_000.0), ..LLAMA },
    Family { model_types: &["olmo"], mechanisms: &[Mechanism::ClipQkv], ..LLAMA },
    Family { model_types: &["granite", "granitemoe", "granitemoeshared", "granite4_vision_text"], ..GRANITE },
    Family { model_types: &["hyperclovax"], defaults: &[], ..GRANITE },
    Family { model_types: &["granite_docling_text"], defaults: &[("attention_multiplier", 0.015625)], ..GRANITE },
    Family { model_types: &["granitemoehybrid"],
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::IfStated("rope"), ..ROTARY }), ..GRANITE },
    Family { model_types: &["granite_swa", "granitemoe_swa"],
        window: windows(WindowLayers::AllButFirstOf { key: None, default: 4 }),
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::OwnTheta, ..ROTARY }),
        defaults: &[("sliding_window", 128.0), ("attention_multiplier", 1.0)], ..GRANITE },
    Family { model_types: &["starcoder2"], window: EVERYWHERE, ..LLAMA },
    Family { model_types: &["mixtral", "minimax", "phimoe"], window: EVERYWHERE, positions: theta(1_000_000.0),
        ..LLAMA },
    // All layers, unless `layer_types` lists others.
    Family { model_types: &["ministral"], window: windows(WindowLayers::FromLayerNumber { switch: false }),
        defaults: &[("sliding_window", 4096.0), ("max_window_layers", 0.0)],
        forbidden_keys: &[("max_window_layers", "windows of some layers, which `layer_types` states")], ..LLAMA },
    Family { model_types: &["higgs_audio_v2"],
        positions: LayerPositions::Rotary(RotaryRow { required_in_config: true, ..ROTARY }), ..LLAMA },
    // Norms are in its cross-attention alone.
    Family { model_types: &["mllama_text_model"], positions: theta(500_000.0), qk_norm: RMS,
        defaults: &[("rms_norm_eps", 1e-5)], ..LLAMA },
    Family { model_types: &["cwm"], window: windows(WindowLayers::AllButFirstOf { key: None, default: 4 }),
        positions: LayerPositions::Rotary(RotaryRow { theta: 1_000_000.0, required_in_config: true, ..ROTARY }),
        defaults: &[("sliding_window", 8192.0)], ..LLAMA },
    Family { model_types: &["qwen2_moe"], window: windows(WindowLayers::SecondBelowLayerNumber),
        defaults: QWEN2_DEFAULTS, ..LLAMA },
    Family { model_types: &["qwen2_vl_text", "qwen2_5_vl_text"], window: UPPER,
        positions: mrope(1_000_000.0, Mrope::Blocks),
        defaults: &[("sliding_window", 4096.0), ("max_window_layers", 80.0)], ..LLAMA },
    Family { model_types: &["qwen2_5_omni_text", "qwen2_5_omni_talker"], window: UPPER,
        positions: mrope(1_000_000.0, Mrope::Blocks),
        defaults: &[("sliding_window", 32_768.0), ("max_window_layers", 28.0)], ..LLAMA },
    Family { model_types: &["qwen3_moe"], window: windows(WindowLayers::All { switch: true }),
        defaults: &[("sliding_window", 4096.0)], ..QWEN3 },
    Family { model_types: &["qwen3_omni_moe_talker_code_predictor"],
        forbidden_keys: &[("sliding_window", "windows, with which the model of transformers fails")], ..QWEN3 },
    Family { model_types: &["qwen3_omni_moe_talker_text"], positions: mrope(10_000.0, Mrope::Alternating), ..QWEN3 },
    Family { model_types: &["qwen3_omni_moe_text"], positions: mrope(1_000_000.0, Mrope::Alternating), ..QWEN3 },
    Family { model_types: &["qwen3_vl_text", "qwen3_vl_moe_text"], layouts: &["candle-attention", "cosmos"],
        positions: mrope(500_000.0, Mrope::Alternating), ..QWEN3 },
    Family { model_types: &["dots1"], window: windows(WindowLayers::FromLayerNumber { switch: false }),
        defaults: &[("sliding_window", 4096.0), ("max_window_layers", 62.0)], ..QWEN3 },
    Family { model_types: &["apertus", "apertus1p5_text"],
        positions: LayerPositions::Rotary(RotaryRow { theta: 12_000_000.0, required_in_config: true, ..ROTARY }),
        defaults: &[("rms_norm_eps", 1e-5)], ..QWEN3 },
    Family { model_types: &["hy_v3"], positions: theta(11_158_840.0), defaults: &[("rms_norm_eps", 1e-5)], ..QWEN3 },
    Family { model_types: &["exaone4", "exaone_moe"], window: PATTERN,
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::WindowedIfAny, ..ROTARY }),
        defaults: &[("sliding_window", 4096.0), ("rms_norm_eps", 1e-5)], ..QWEN3 },
    LFM2,
    Family { model_types: &["lfm2_bidirectional"], causal: Causal::Never, ..LFM2 },
    // As pplx-embed's own code has it.
    Family { model_types: &["bidirectional_pplx_qwen3"], causal: Causal::Never,
        ignored_keys: &["use_bidirectional_attention"], window: UPPER, defaults: QWEN2_DEFAULTS, ..QWEN3 },
    Family { model_types: &["minimax_m3_vl_text"],
        mechanisms: &[Mechanism::Indexer(MaxKeys::Blocks("index_topk_blocks", "index_block_size"))],
        // transformers reads the share of a head that is rotated, not `rotary_dim` beside it.
        ignored_keys: &["rotary_dim"],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), theta: 5_000_000.0, ..ROTARY }),
        qk_norm: Some((NormKind::RmsOffset, NormOver::Head)), ..LLAMA },
    KOLIBRI,
    Family { model_types: &["flint"], window: windows(WindowLayers::Listed), required_keys: &["layer_types"],
        ..KOLIBRI },
    Family { model_types: &["glm4_moe"], positions: share(0.5), defaults: &[("rms_norm_eps", 1e-5)], ..QWEN3 },
    Family { model_types: &["sarvam_moe"],
        // The weights show it.
        ignored_keys: &["use_qk_norm"], layouts: &["sarvam", "candle-attention"],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), theta: 8_000_000.0, ..ROTARY }), ..QWEN3 },
    // Its other layers are linear attention.
    Family { model_types: &["lara_mini"], window: windows(WindowLayers::Listed), required_keys: &["layer_types"],
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::Windowed, ..ROTARY }),
        defaults: &[("sliding_window", 512.0)], unsupported_parts: DELTA, ..QWEN3 },
    Family { model_types: &["mellum"], window: windows(WindowLayers::Listed),
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), theta: 500_000.0, window_theta: Some(10_000.0),
            ..ROTARY }),
        defaults: &[("sliding_window", 1024.0)], ..QWEN3 },
    GEMMA2,
    // T5Gemma's.
    Family { model_types: &["t5_gemma_module"], causal: Causal::Decoder, ..GEMMA2 },
    // `clip_qkv` of OLMoE, which limits queries and keys after their norms, is refused.
    Family { model_types: &["olmo2", "olmoe"], ..OLMO2 },
    Family { model_types: &["flex_olmo"], positions: theta(500_000.0), defaults: &[], ..OLMO2 },
    Family { model_types: &["olmo_hybrid"],
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::IfTheta, ..ROTARY }), defaults: &[],
        ..OLMO2 },
    Family { model_types: &["olmo3"], window: windows(WindowLayers::AllButLastOf { key: None, default: 4 }),
        positions: LayerPositions::Rotary(RotaryRow { theta: 500_000.0, window_theta: Some(500_000.0),
            scales_windowed: false, ..ROTARY }),
        defaults: &[("sliding_window", 4096.0), ("rms_norm_eps", 1e-5)], ..OLMO2 },
    Family { model_types: &["minimax_m2"],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), rotary_dim: true, theta: 5_000_000.0,
            ..ROTARY }),
        defaults: &[], ..OLMO2 },
    Family { model_types: &["phi"], layouts: &["phi"], ..PHI },
    Family { model_types: &["persimmon"], layouts: NEOX, ..PHI },
    Family { model_types: &["nemotron", "bamba"], positions: share(0.5), ..LLAMA },
    Family { model_types: &["phi3", "phi4_multimodal"], layouts: &["phi3"], window: EVERYWHERE, positions: share(1.0),
        ..LLAMA },
    Family { model_types: &["stablelm"], own_keys: GPT_NEOX_KEYS, positions: share(0.25), ..PHI },
    Family { model_types: &["gpt_neox"], layouts: NEOX, own_keys: GPT_NEOX_KEYS, positions: share(0.25), ..PHI },
    Family { model_types: &["glm_image_text"], positions: share(1.0), ..LLAMA },
    Family { model_types: &["gpt_neox_japanese"], layouts: &["neox", "neox-japanese"], own_keys: GPT_NEOX_KEYS,
        positions: share(1.0), ..LLAMA },
    Family { model_types: &["solar_open"],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), theta: 1_000_000.0, ..ROTARY }), ..LLAMA },
    Family { model_types: &["cohere"], qk_norm: BASE.qk_norm, defaults: &[("layer_norm_eps", 1e-5)],
        ..rotary(RotaryRow { interleaved: true, theta: 500_000.0, ..ROTARY }) },
    COHERE2,
    // Its first layers are dense. They have a pattern of windows of their own, and are rotated if none has a window.
    Family { model_types: &["cohere2_moe"], own_keys: &["first_k_dense_replace"],
        forbidden_keys: &[("rope_scaling", "a scaled rotation, which the config class of transformers does not read")],
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::WindowedOrDense, interleaved: true,
            ..ROTARY }), ..COHERE2 },
    Family { model_types: &["glm4v_moe_text"],
        ..rotary(RotaryRow { share: Some(0.5), mrope: Some(Mrope::Blocks), ..ROTARY }) },
    Family { model_types: &["glm4v_text", "glm_ocr_text"],
        ..rotary(RotaryRow { interleaved: true, share: Some(1.0), mrope: Some(Mrope::Blocks), ..ROTARY }) },
    Family { model_types: &["glm", "glm4"], ..rotary(RotaryRow { interleaved: true, share: Some(0.5), ..ROTARY }) },
    Family { model_types: &["cohere_compass_text"], required_keys: &["layer_types"],
        window: windows(WindowLayers::Listed),
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::IfKindStated,
            mrope: Some(Mrope::Alternating), ..ROTARY_PER_KIND }),
        defaults: &[("sliding_window", 4096.0)], ..LLAMA },
    // Tokens that it generates see the prompt and a window.
    Family { model_types: &["unlimited_ocr_text"], ignored_keys: &["sliding_window"],
        forbidden_keys: &[("is_causal=false", "a mask of windows on both sides")],
        note: Some("the mask is that of a prompt: in the model, a token that it generates sees the prompt and a \
            window"), ..LLAMA },
    Family { model_types: &["chameleon"], qk_norm: BASE.qk_norm, steps: &[StepRow::NormEps(1e-5)], ..LLAMA },
    Family { model_types: &["dbrx"], layouts: &["mpt"], mechanisms: &[Mechanism::ClipQkv], ..LLAMA },
    Family { model_types: &["molmo2_text"], layouts: &["molmo"], own_keys: &["rope_scaling_layers"], ..QWEN3 },
    Family { model_types: &["helium"], ..rotary(RotaryRow { interleaved: true, theta: 100_000.0, ..ROTARY }) },
    Family { model_types: &["ernie4_5", "ernie4_5_moe", "ernie4_5_vl_moe_text"],
        ..rotary(RotaryRow { interleaved: true, theta: 500_000.0, ..ROTARY }) },
    Family { model_types: &["smollm3"], window: windows(WindowLayers::NotRotated),
        defaults: &[("no_rope_layer_interval", 4.0)],
        ..rotary(RotaryRow { layers: RotaryLayers::NoRopeLayers, theta: 2_000_000.0, ..ROTARY }) },
    Family { model_types: &["falcon_h1"], scale: Scale::KeyMultiplier, defaults: &[("key_multiplier", 1.0)], ..LLAMA },
    Family { model_types: &["gpt_oss"], window: ALTERNATING, defaults: &[("sliding_window", 128.0)],
        ..rotary(RotaryRow { theta: 150_000.0, required_in_config: true, ..ROTARY }) },
    Family { model_types: &["modernbert-decoder"], layouts: &["modernbert-decoder"],
        // Half of `local_attention`, if a file leaves it out.
        own_keys: &["sliding_window"], window: MODERNBERT_WINDOW, defaults: &[("local_attention", 128.0)],
        ..rotary(RotaryRow { theta: 160_000.0, window_theta: Some(10_000.0), ..ROTARY }) },
    Family { model_types: &["gptj"], ..GPTJ },
    Family { model_types: &["codegen"], layouts: &["codegen"], ..GPTJ },
    Family { model_types: &["falcon"], layouts: NEOX,
        ..rotary(RotaryRow { layers: RotaryLayers::UnlessAlibi, ..ROTARY }) },
    Family { model_types: &["gpt2", "decision_transformer"], layouts: GPT2, scale: Scale::Gpt2, ..DECODER },
    Family { model_types: &["gpt_bigcode"], layouts: &["gpt-bigcode"], scale: Scale::Gpt2,
        forbidden_keys: &[("scale_attn_by_inverse_layer_idx", "a factor on the scores that this model does not have")],
        ..DECODER },
    Family { model_types: &["imagegpt"], layouts: GPT2, causal: Causal::Fixed, scale: Scale::Gpt2, ..DECODER },
    Family { model_types: &["gpt_neo"], required_keys: &["attention_layers"], layouts: BART, causal: Causal::Fixed,
        window: Window { layers: WindowLayers::ListedLocal, key: "window_size", sides: Sides::Each }, scale: Scale::One,
        defaults: &[("window_size", 256.0)], ..DECODER },
    Family { model_types: &["bloom"], layouts: NEOX, positions: LayerPositions::Alibi, ..DECODER },
    Family { model_types: &["mpt"], layouts: &["mpt"], positions: LayerPositions::MptAlibi, scale: Scale::Mpt,
        mechanisms: &[Mechanism::ClipQkv], ..DECODER },
    Family { model_types: &["opt", "biogpt", "xglm"], layouts: BART, ..DECODER },
    Family { model_types: &["ctrl"], layouts: &["ctrl"], ..DECODER },
    Family { model_types: &["jamba", "nemotron_h"], ..DECODER },
    Family { model_types: &["zamba"], scale: Scale::HalfHeadDim, ..DECODER },
    // Low-rank adapters of each use of a shared layer are refused, because they are tensors of the layer.
    Family { model_types: &["zamba2"], scale: Scale::HalfHeadDim,
        ..rotary(RotaryRow { layers: RotaryLayers::IfSet("use_mem_rope"), ..ROTARY }) },
    Family { model_types: &["openai-gpt"], layouts: GPT2, causal: Causal::Fixed, ..DECODER },
];

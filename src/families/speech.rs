//! Families of speech and sound: encoders of audio features, and those of Whisper's kind inside larger models.

use crate::config::CallInput;
use crate::families::decoders::LLAMA;
use crate::families::family::{
    BART, BASE, Causal, Family, HeadsKey, LayerPositions, MASK, Mechanism, OWN, QueryFactor, ROTARY, Required,
    RotaryLayers, RotaryRow, Scale, Sides, StepRow, Window, WindowLayers, share,
};

/// Every token sees every other; positions are added to the input.
const PLAIN: Family = Family { layouts: BART, qk_norm: None, ..BASE };

const CONFORMER: &[&str] = &["conformer"];

/// A token sees itself and those before it within a window.
#[rustfmt::skip]
const STREAM: Family = Family { layouts: OWN, causal: Causal::Always,
    window: Window { layers: WindowLayers::All { switch: false }, ..BASE.window },
    positions: LayerPositions::Rotary(ROTARY), ..PLAIN };

/// The factor on keys of Gemma 4's audio: `softplus(1) / ln 2`.
const KEY_FACTOR: f64 = 1.894_636_123_972_011_5;

#[rustfmt::skip]
pub(crate) const SPEECH: &[Family] = &[
    // Positions come from a convolution of the input, or are added to it as in Whisper's encoder. CLVP's encoder of
    // sounds has the section of the decoder after it.
    Family { model_types: &["wav2vec2", "hubert", "unispeech", "unispeech-sat", "sew", "data2vec-audio",
            "omniasr_audio", "omniasr_ctc", "voxtral_encoder", "qwen2_audio_encoder", "audioflamingo3_encoder", "clvp",
            "moss_transcribe_diarize_audio"], ..PLAIN },
    // Tokens see those of their own block of the audio, by a mask of the call.
    Family { model_types: &["qwen2_5_omni_audio_encoder", "qwen3_omni_moe_audio_encoder", "qwen3_asr_encoder"],
        requires: MASK, ..PLAIN },
    Family { model_types: &["fun_asr_nano_encoder"], layouts: OWN,
        mechanisms: &[Mechanism::ValueConvolution("fsmn_kernel_size")], defaults: &[("fsmn_kernel_size", 11.0)],
        ..PLAIN },
    Family { model_types: &["fun_asr_nano_adaptor"], layouts: OWN, ..PLAIN },
    Family { model_types: &["wavlm"], positions: LayerPositions::GatedBias, ..PLAIN },
    Family { model_types: &["vits"], positions: LayerPositions::RelativeKeyValue, defaults: &[("window_size", 4.0)],
        ..PLAIN },
    // Conformers.
    Family { model_types: &["parakeet_encoder"], layouts: &["candle-attention", "conformer"],
        positions: LayerPositions::RelativeSinusoids, ..PLAIN },
    // A token sees its chunk and some before it, by a mask of the call.
    Family { model_types: &["nemotron_asr_streaming_encoder"], layouts: OWN, ignored_keys: &["sliding_window"],
        positions: LayerPositions::RelativeSinusoids, requires: MASK, ..PLAIN },
    // Windows, in the model only in a call with a padding mask.
    Family { model_types: &["moonshine_streaming_encoder"], layouts: OWN, requires: MASK, ..PLAIN },
    Family { model_types: &["fastspeech2_conformer", "fastspeech2_conformer_encoder", "fastspeech2_conformer_decoder"],
        layouts: CONFORMER, positions: LayerPositions::RelativeSinusoids, ..PLAIN },
    // A window of tokens before each other one.
    Family { model_types: &["gemma3n_audio"], layouts: &["gemma3n-audio"], causal: Causal::Fixed,
        window: Window { key: "conf_attention_context_left", ..STREAM.window },
        positions: LayerPositions::LocalSinusoids { right: "conf_attention_context_right", chunk: None },
        scale: Scale::One, mechanisms: &[Mechanism::Softcap("conf_attention_logit_cap")],
        steps: &[StepRow::QueryFactor(QueryFactor::Softplus)],
        defaults: &[("conf_num_attention_heads", 8.0), ("conf_attention_context_left", 13.0),
            ("conf_attention_logit_cap", 50.0)], ..PLAIN },
    Family { model_types: &["gemma4_audio"],
        forbidden_keys: &[("is_causal=false", "a window on both sides, which its blocks do not have")],
        layouts: &["gemma4-audio"], causal: Causal::Always,
        window: Window { key: "attention_context_left", sides: Sides::OneMore, ..STREAM.window },
        positions: LayerPositions::LocalSinusoids { right: "attention_context_right",
            chunk: Some("attention_chunk_size") },
        scale: Scale::One, mechanisms: &[Mechanism::Softcap("attention_logit_cap")],
        steps: &[StepRow::QueryFactor(QueryFactor::Softplus), StepRow::KeyFactor(KEY_FACTOR)],
        defaults: &[("attention_context_left", 13.0), ("attention_chunk_size", 12.0), ("attention_logit_cap", 50.0),
            ("use_clipped_linears", 1.0)], ..PLAIN },
    Family { model_types: &["wav2vec2-conformer"], layouts: CONFORMER, positions: LayerPositions::Conformer("relative"),
        ..PLAIN },
    Family { model_types: &["wav2vec2-bert"], layouts: CONFORMER, positions: LayerPositions::Conformer("relative_key"),
        ..PLAIN },
    Family { model_types: &["granite_speech_encoder", "granite_speech_plus_encoder"], layouts: &["granite-speech"],
        positions: LayerPositions::RelativeKeyBlocks("max_pos_emb"),
        defaults: &[("context_size", 200.0), ("max_pos_emb", 512.0), ("num_heads", 8.0)],
        note: Some("the input is what the model's `pre_norm` makes of it, in blocks of `context_size` tokens"),
        ..PLAIN },
    Family { model_types: &["granite_speech5_encoder"], layouts: OWN,
        positions: LayerPositions::RelativeKeyBlocks("max_position_embeddings"),
        defaults: &[("context_size", 128.0), ("max_position_embeddings", 512.0)],
        note: Some("the input comes in blocks of `context_size` tokens"), ..PLAIN },
    // One table of biases for all layers, and the mask, which is added as a number.
    Family { model_types: &["phi4_multimodal_audio"], layouts: OWN,
        requires: &[Required::new(CallInput::ScoreBias { scaled: false })], ..PLAIN },
    Family { model_types: &["glmasr_encoder"], layouts: OWN, positions: share(0.5), ..PLAIN },
    Family { model_types: &["dots3_note_audio_encoder"], positions: share(0.5), ..PLAIN },
    Family { model_types: &["moonshine"], layouts: OWN, causal: Causal::Decoder,
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, share: Some(0.9), ..ROTARY }), ..PLAIN },
    Family { model_types: &["nemotron3_5_transcribe_asr_audio", "nemotron3_5_transcribe_word_timestamp"],
        layouts: &["candle-attention", "nemotron-speech"],
        // Half of each head is rotated if a file states nothing, all of it if the set has no share.
        required_keys: &["rope_parameters"], positions: share(1.0), qk_norm: BASE.qk_norm,
        steps: &[StepRow::NormEps(1e-5)], ..PLAIN },
    Family { model_types: &["lasr_encoder"], layouts: OWN, positions: LayerPositions::Rotary(ROTARY), ..PLAIN },
    // Which does not scale its scores.
    Family { model_types: &["dia_encoder"], layouts: OWN, positions: LayerPositions::Rotary(ROTARY), scale: Scale::One,
        ..PLAIN },
    Family { model_types: &["dia_decoder"],
        heads: &[HeadsKey::part(&["cross_attention"], "cross_num_attention_heads", "hidden_size")], layouts: OWN,
        causal: Causal::Always, positions: LayerPositions::Rotary(ROTARY), scale: Scale::One, ..PLAIN },
    Family { model_types: &["fine_acoustics"], layouts: &["bark"], ..PLAIN },
    Family { model_types: &["moonshine_streaming"], layouts: OWN, causal: Causal::Always,
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, share: Some(1.0), required_in_config: true,
            ..ROTARY }), ..PLAIN },
    Family { model_types: &["voxtral_realtime_encoder"], defaults: &[("sliding_window", 750.0)], ..STREAM },
    Family { model_types: &["mimi", "mimi_encoder", "mimi_decoder", "pocket_tts_audio_tokenizer",
            "pocket_tts_audio_tokenizer_encoder", "pocket_tts_audio_tokenizer_decoder"],
        defaults: &[("sliding_window", 250.0)], ..STREAM },
    Family { model_types: &["nemotron3_diarization_audio"], layouts: &["candle-attention", "nemotron-speech"],
        positions: LayerPositions::Rotary(ROTARY), ..BASE },
    // Decoders of speech and music; the encoder is another family.
    Family { model_types: &["canary_decoder", "cohere_asr"], layouts: &["candle-attention", "cohere-asr"],
        causal: Causal::Always, ..BASE },
    Family { model_types: &["pp_formulanet_text", "musicgen_decoder", "musicgen_melody_decoder", "clvp_decoder"],
        layouts: BART, causal: Causal::Always, ..BASE },
    // Tokens see those of some blocks before and after their own.
    Family { model_types: &["qwen2_5_omni_dit"], layouts: &["qwen2.5-omni-dit"],
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, heads: Some(1), ..ROTARY }), requires: MASK,
        ..PLAIN },
    Family { model_types: &["neucodec", "xcodec2"], layouts: OWN,
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::None, ..ROTARY }), ..PLAIN },
    // Decoders of tokens of sound.
    Family { model_types: &["semantic", "coarse_acoustics"], layouts: &["bark"], causal: Causal::Fixed, ..PLAIN },
    Family { model_types: &["gradium_phonon_tts"], layouts: &["gradium"],
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, ..ROTARY }), ..LLAMA },
    // transformers masks without a window, which its cache alone has.
    Family { model_types: &["kyutai_speech_to_text"], layouts: &["inner-linear"], ignored_keys: &["sliding_window"],
        note: Some("the layer has no window: in the model, the cache keeps the keys of the last `sliding_window` \
            tokens"), ..LLAMA },
];

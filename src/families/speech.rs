//! Families of speech and sound: encoders of audio features, and those of Whisper's kind inside larger models.

use crate::config::CallInput;
use crate::families::family::{
    BART, BASE, Causal, Family, LayerPositions, OWN, ROTARY, Required, RotaryRow, Window, WindowLayers,
};

/// Every token sees every other; positions are added to the input.
const PLAIN: Family = Family { layouts: BART, qk_norm: None, ..BASE };

/// A token sees itself and those before it within a window.
const STREAM: Family = Family {
    layouts: OWN,
    causal: Causal::Always,
    window: Window { layers: WindowLayers::All { switch: false }, ..BASE.window },
    positions: LayerPositions::Rotary(ROTARY),
    ..PLAIN
};

pub(crate) const SPEECH: &[Family] = &[
    // Positions come from a convolution of the input.
    Family { model_types: &["wav2vec2", "hubert", "unispeech", "unispeech-sat", "sew", "data2vec-audio"], ..PLAIN },
    // Whisper's encoder.
    Family {
        model_types: &[
            "voxtral_encoder",
            "qwen2_audio_encoder",
            "audioflamingo3_encoder",
            "moss_transcribe_diarize_audio",
        ],
        ..PLAIN
    },
    // One table of biases for all layers, and the mask, which is added as a number.
    Family {
        model_types: &["phi4_multimodal_audio"],
        layouts: OWN,
        requires: &[Required::new(CallInput::ScoreBias { scaled: false })],
        ..PLAIN
    },
    Family {
        model_types: &["glmasr_encoder"],
        layouts: OWN,
        positions: LayerPositions::Rotary(RotaryRow { share: Some(0.5), ..ROTARY }),
        ..PLAIN
    },
    Family {
        model_types: &["moonshine"],
        layouts: OWN,
        causal: Causal::Decoder,
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, share: Some(0.9), ..ROTARY }),
        ..PLAIN
    },
    Family { model_types: &["voxtral_realtime_encoder"], defaults: &[("sliding_window", 750.0)], ..STREAM },
    Family { model_types: &["mimi"], defaults: &[("sliding_window", 250.0)], ..STREAM },
    Family {
        model_types: &["nemotron3_diarization_audio"],
        layouts: OWN,
        positions: LayerPositions::Rotary(ROTARY),
        ..BASE
    },
    // Decoders of speech and music; the encoder is another family.
    Family { model_types: &["canary_decoder", "cohere_asr"], layouts: OWN, causal: Causal::Always, ..BASE },
    Family {
        model_types: &["musicgen_decoder", "musicgen_melody_decoder", "clvp_decoder"],
        layouts: BART,
        causal: Causal::Always,
        ..BASE
    },
];

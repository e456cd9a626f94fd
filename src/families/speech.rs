//! Families of speech and sound: encoders of audio features, and those of Whisper's kind inside larger models.

use crate::families::family::{BASE, Family, LayerPositions, ROTARY, RotaryRow};

pub(crate) const SPEECH: &[Family] = &[
    // Positions come from a convolution of the input.
    Family { model_types: &["wav2vec2", "hubert", "unispeech", "unispeech-sat", "sew", "data2vec-audio"], ..BASE },
    // Whisper's encoder.
    Family {
        model_types: &[
            "voxtral_encoder",
            "qwen2_audio_encoder",
            "audioflamingo3_encoder",
            "moss_transcribe_diarize_audio",
        ],
        ..BASE
    },
    Family {
        model_types: &["glmasr_encoder"],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(0.5), ..ROTARY }),
        ..BASE
    },
];

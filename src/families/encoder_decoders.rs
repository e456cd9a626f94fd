//! Families of an encoder and a decoder: causal in the decoder's self-attention, no mask of their own elsewhere.

use crate::families::family::{BASE, Causal, Family, LayerPositions, Scale};

pub(crate) const ENCODER_DECODERS: &[Family] = &[
    Family {
        model_types: &["t5", "mt5", "umt5", "switch_transformers"],
        causal: Causal::Decoder,
        positions: LayerPositions::T5Bias,
        scale: Scale::One,
        ..BASE
    },
    Family { model_types: &["longt5"], unsupported: Some("local attention with relative positions"), ..BASE },
    Family {
        model_types: &[
            "bart",
            "mbart",
            "marian",
            "pegasus",
            "blenderbot",
            "blenderbot-small",
            "m2m_100",
            "whisper",
            "speech_to_text",
        ],
        causal: Causal::Decoder,
        ..BASE
    },
];

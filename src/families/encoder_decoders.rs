//! Families of an encoder and a decoder: causal in the decoder's self-attention, no mask of their own elsewhere.

use crate::config::CallInput;
use crate::families::decoders::{EVERYWHERE, LLAMA};
use crate::families::encoders::FULL_ATTENTION;
use crate::families::family::{
    BART, BASE, Causal, Family, HeadsKey, LayerPositions, Mechanism, ROTARY, Required, RequiredValue, RotaryRow, Scale,
    Sides, Window, WindowLayers,
};

const T5: Family = Family { layouts: &["t5"], positions: LayerPositions::T5Bias, scale: Scale::One, ..DECODER };
/// Causal in the decoder.
const DECODER: Family = Family { layouts: BART, causal: Causal::Decoder, ..BASE };

/// The note of attention between bytes and patches.
const PATCHES: &str = "in cross-attention, `q_norm` and `k_norm` are norms of the inputs, which a call gives as they are \
    after them; the mask shows each patch its bytes, of which a patch behind the text has none, and in the decoder each \
    byte its patch; in a whole model the decoder has the window of the encoder, which `decoder_config` does not state";

/// The encoder of speech is a Conformer.
#[rustfmt::skip]
const SEAMLESS: Family = Family { model_types: &["seamless_m4t"], layouts: &["bart", "conformer"],
    positions: LayerPositions::Conformer("relative"),
    heads: &[HeadsKey::new(&["t2u_model", "decoder"], "t2u_decoder_attention_heads"),
        HeadsKey::new(&["t2u_model", "encoder"], "t2u_encoder_attention_heads"),
        HeadsKey::new(&["speech_encoder"], "speech_encoder_attention_heads")],
    defaults: &[("speech_encoder_attention_heads", 16.0), ("t2u_encoder_attention_heads", 16.0),
        ("t2u_decoder_attention_heads", 16.0)], ..DECODER };

#[rustfmt::skip]
pub(crate) const ENCODER_DECODERS: &[Family] = &[
    Family { model_types: &["pix2struct_text_model"], layouts: &["pix2struct"], causal: Causal::Always,
        forbidden_keys: &[("is_decoder=false", "tokens that see those after them")], ..T5 },
    // Each layer of UMT5 has a table of its own.
    Family { model_types: &["t5", "mt5", "umt5", "switch_transformers", "pop2piano"], ..T5 },
    Family { model_types: &["longt5"],
        window: Window { layers: WindowLayers::Below("LocalSelfAttention"), key: "local_radius", sides: Sides::Each },
        defaults: &[("local_radius", 127.0)],
        unsupported_parts: &[("TransientGlobalSelfAttention", "a window, and averages of blocks of the sequence")],
        ..T5 },
    Family { model_types: &["udop"], requires: &[Required::below("encoder", CallInput::ScoreBias { scaled: false })],
        ..T5 },
    Family { model_types: &["bart", "mbart", "marian", "pegasus", "blenderbot", "blenderbot-small", "m2m_100",
            "nllb-moe", "plbart", "trocr", "whisper", "florence2_language", "speech_to_text",
            "time_series_transformer"], ..DECODER },
    Family { model_types: &["mvp"],
        forbidden_keys: &[("use_prompt", "keys and values of prompts before those of the text")], ..DECODER },
    Family { model_types: &["fsmt"], causal: Causal::FixedDecoder, ..DECODER },
    Family { model_types: &["led"], layouts: &["bart", "led"],
        window: Window { layers: WindowLayers::Below("encoder"), key: "attention_window", sides: Sides::Both },
        defaults: &[("attention_window", 1024.0)], mechanisms: &[Mechanism::GlobalTokens], ..DECODER },
    Family { model_types: &["bigbird_pegasus"], layouts: &["bart", "bigbird-pegasus"],
        required_values: &[RequiredValue { below: Some("encoder"), ..FULL_ATTENTION }], ..DECODER },
    // Tokens see those of their block and the global ones, which see all.
    Family { model_types: &["pegasus_x"], requires: &[Required::below("encoder", CallInput::Mask)],
        note: Some("in the encoder, a sequence is its global tokens followed by the others"), ..DECODER },
    Family { model_types: &["speecht5"],
        positions: LayerPositions::SharedRelativeKeys("wrapped_encoder", "encoder_max_relative_position"),
        defaults: &[("encoder_max_relative_position", 160.0)], ..DECODER },
    SEAMLESS,
    Family { model_types: &["seamless_m4t_v2"], positions: LayerPositions::Conformer("relative_key"),
        unsupported_parts: &[("t2u_model", "no check against transformers")],
        // A token sees its chunk of `speech_encoder_chunk_size` tokens and those before.
        requires: &[Required::below("encoder", CallInput::Mask)], ..SEAMLESS },
    // Decoders of bytes and of patches of bytes.
    Family { model_types: &["blt_global_transformer", "blt_local_encoder", "blt_local_decoder"],
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, theta: 500_000.0, ..ROTARY }), ..BLT },
    Family { model_types: &["blt_patcher"], ..BLT },
];

#[rustfmt::skip]
const BLT: Family = Family { forbidden_keys: &[("is_causal=false", "a mask that the whole model replaces")],
    window: EVERYWHERE, positions: LayerPositions::Rotary(RotaryRow { interleaved: true, ..ROTARY }),
    layouts: &["candle-attention", "blt-cross"], requires: &[Required::below("cross_attn_layers", CallInput::Mask)],
    note: Some(PATCHES), ..LLAMA };

//! Decoder families: causal self-attention.

use crate::config::{NormKind, NormOver};
use crate::families::family::{
    BASE, Causal, Family, LayerPositions, ROTARY, RotaryLayers, RotaryRow, Scale, Window, WindowLayers,
};

/// A decoder with positions of its own kind.
const DECODER: Family = Family { causal: Causal::Always, ..BASE };
/// A decoder with Llama's rotary positions.
const LLAMA: Family = Family { positions: LayerPositions::Rotary(ROTARY), ..DECODER };

const fn rotary(row: RotaryRow) -> LayerPositions {
    LayerPositions::Rotary(row)
}

const fn windows(layers: WindowLayers) -> Window {
    Window { layers, ..BASE.window }
}

/// Every second layer, beginning with the first.
const ALTERNATING: Window = windows(WindowLayers::AllButLastOf { key: None, default: 2 });

const GEMMA_KEYS: &[&str] = &["attn_logit_softcapping", "query_pre_attn_scalar"];

pub(crate) const DECODERS: &[Family] = &[
    Family { model_types: &["llama", "gemma"], ..LLAMA },
    Family { model_types: &["olmo"], reads: &["clip_qkv"], ..LLAMA },
    Family { model_types: &["granite"], reads: &["attention_multiplier"], ..LLAMA },
    Family { model_types: &["mistral", "mixtral", "starcoder2"], window: windows(WindowLayers::All), ..LLAMA },
    Family { model_types: &["qwen2", "qwen2_moe"], window: windows(WindowLayers::FromLayerNumber), ..LLAMA },
    Family {
        model_types: &["qwen3", "qwen3_moe"],
        window: windows(WindowLayers::FromLayerNumber),
        qk_norm: (NormKind::Rms, NormOver::Head),
        ..LLAMA
    },
    Family { model_types: &["gemma2"], reads: GEMMA_KEYS, window: ALTERNATING, ..LLAMA },
    Family {
        model_types: &["gemma3", "gemma3_text"],
        reads: GEMMA_KEYS,
        window: windows(WindowLayers::AllButLastOf { key: Some("sliding_window_pattern"), default: 6 }),
        positions: rotary(RotaryRow { scales_windowed: false, ..ROTARY }),
        qk_norm: (NormKind::RmsOffset, NormOver::Head),
        ..LLAMA
    },
    Family { model_types: &["olmo2"], qk_norm: (NormKind::Rms, NormOver::AllHeads), ..LLAMA },
    Family {
        model_types: &["olmo3"],
        window: windows(WindowLayers::AllButLastOf { key: None, default: 4 }),
        positions: rotary(RotaryRow { scales_windowed: false, ..ROTARY }),
        qk_norm: (NormKind::Rms, NormOver::AllHeads),
        ..LLAMA
    },
    Family {
        model_types: &["phi", "persimmon"],
        reads: &["qk_layernorm"],
        positions: rotary(RotaryRow { share: Some(0.5), ..ROTARY }),
        ..LLAMA
    },
    Family {
        model_types: &["phi3"],
        window: windows(WindowLayers::All),
        positions: rotary(RotaryRow { share: Some(1.0), ..ROTARY }),
        ..LLAMA
    },
    Family {
        model_types: &["stablelm", "gpt_neox"],
        reads: &["qk_layernorm"],
        positions: rotary(RotaryRow { share: Some(0.25), ..ROTARY }),
        ..LLAMA
    },
    Family {
        model_types: &["cohere"],
        reads: &["use_qk_norm"],
        positions: rotary(RotaryRow { interleaved: true, theta: 500_000.0, ..ROTARY }),
        ..LLAMA
    },
    Family {
        model_types: &["cohere2"],
        window: windows(WindowLayers::AllButLastOf { key: Some("sliding_window_pattern"), default: 4 }),
        positions: rotary(RotaryRow { layers: RotaryLayers::Windowed, interleaved: true, ..ROTARY }),
        ..LLAMA
    },
    Family {
        model_types: &["gpt_oss"],
        window: ALTERNATING,
        positions: rotary(RotaryRow { theta: 150_000.0, ..ROTARY }),
        ..LLAMA
    },
    Family { model_types: &["gptj", "codegen"], positions: rotary(RotaryRow { interleaved: true, ..ROTARY }), ..LLAMA },
    Family {
        model_types: &["falcon"],
        positions: rotary(RotaryRow { layers: RotaryLayers::UnlessAlibi, ..ROTARY }),
        ..LLAMA
    },
    Family { model_types: &["gpt2", "gpt_bigcode"], scale: Scale::Gpt2, ..DECODER },
    Family {
        model_types: &["gpt_neo"],
        window: Window { layers: WindowLayers::ListedLocal, key: "window_size", default: None },
        scale: Scale::One,
        ..DECODER
    },
    Family { model_types: &["bloom"], positions: LayerPositions::Alibi, ..DECODER },
    Family { model_types: &["mpt"], positions: LayerPositions::MptAlibi, ..DECODER },
    Family { model_types: &["opt"], ..DECODER },
];

//! Decoders with a gate or a norm between the heads and the output projection.

use crate::config::{GateActivation, NormKind, NormOver};
use crate::families::decoders::{LLAMA, QWEN3, windows};
use crate::families::family::{
    BART, BASE, Causal, ContextNormRow, Family, GateRow, LayerPositions, Mrope, OWN, ROTARY, RotaryLayers, RotaryRow,
    Scale, WindowLayers,
};

const SIGMOID: Option<GateRow> = Some(GateRow { activation: GateActivation::Sigmoid, switch: None });
const SOFTPLUS: Option<GateRow> = Some(GateRow { activation: GateActivation::Softplus, switch: None });

/// Layers of another kind between those of attention, by the last component of their prefix.
const DELTA: &[(&str, &str)] =
    &[("linear_attn", "linear attention by the gated delta rule: a recurrent state in place of keys and values")];

/// Qwen3-Next, whose query projection holds the gate and which rotates a quarter of each head.
const QWEN3_NEXT: Family = Family {
    layouts: &["gated-query"],
    gate: SIGMOID,
    qk_norm: Some((NormKind::RmsOffset, NormOver::Head)),
    positions: LayerPositions::Rotary(RotaryRow { share: Some(0.25), ..ROTARY }),
    unsupported_parts: DELTA,
    ..LLAMA
};

pub(crate) const GATED: &[Family] = &[
    Family { model_types: &["qwen3_next"], ..QWEN3_NEXT },
    Family {
        model_types: &["qwen3_5_text", "qwen3_5_moe_text"],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(0.25), mrope: Some(Mrope::Alternating), ..ROTARY }),
        ..QWEN3_NEXT
    },
    Family {
        model_types: &["afmoe"],
        gate: SIGMOID,
        window: windows(WindowLayers::AllButLastOf { key: Some("global_attn_every_n_layers"), default: 4 }),
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::Windowed, ..ROTARY }),
        defaults: &[("sliding_window", 1024.0), ("rms_norm_eps", 1e-5)],
        ..QWEN3
    },
    Family {
        model_types: &["hrm_text"],
        gate: SIGMOID,
        note: Some("causal: with `token_type_ids`, tokens of the model's prompt see one another"),
        ..LLAMA
    },
    // Which layers have a window, heads of their own and which rotation is stated for each layer or each kind of layer.
    Family {
        model_types: &["laguna"],
        layouts: &["g-proj"],
        reads: &["gating"],
        gate: SOFTPLUS,
        window: windows(WindowLayers::Listed),
        positions: LayerPositions::Rotary(RotaryRow {
            share: Some(1.0),
            theta: 500_000.0,
            window_theta: Some(10_000.0),
            required_in_config: true,
            ..ROTARY
        }),
        defaults: &[("sliding_window", 512.0)],
        ..QWEN3
    },
    Family {
        model_types: &["bitnet"],
        layouts: OWN,
        context_norm: Some(ContextNormRow { kind: NormKind::Rms, over: NormOver::AllHeads, weighted: true }),
        positions: LayerPositions::Rotary(RotaryRow { theta: 500_000.0, ..ROTARY }),
        defaults: &[("rms_norm_eps", 1e-5)],
        refuses: &[("quantization_config", "rounding of weights and activations")],
        ..LLAMA
    },
    Family {
        model_types: &["kosmos_2_text_model"],
        layouts: BART,
        causal: Causal::Always,
        context_norm: Some(ContextNormRow { kind: NormKind::Layer, over: NormOver::AllHeads, weighted: true }),
        defaults: &[("layer_norm_eps", 1e-5)],
        qk_norm: None,
        ..BASE
    },
];

//! Decoders with a gate or a norm between the heads and the output projection.

use crate::attention::mechanisms::GateActivation;
use crate::config::{NormKind, NormOver};
use crate::families::decoders::{DELTA, LLAMA, QWEN3, windows};
use crate::families::family::{
    BART, BASE, Causal, Family, HeadSizes, LayerPositions, MaxKeys, Mechanism, Mrope, QueryFactor, ROTARY,
    ROTARY_PER_KIND, RotaryLayers, RotaryRow, Scale, StepRow, WindowLayers, share, theta,
};

/// A gate of each head, or of each element.
pub(super) const SIGMOID_GATE: Mechanism = Mechanism::Gate { activation: GateActivation::Sigmoid, switch: None };
const SOFTPLUS_GATE: Mechanism = Mechanism::Gate { activation: GateActivation::Softplus, switch: None };

/// Qwen3-Next, whose query projection holds the gate and which rotates a quarter of each head.
#[rustfmt::skip]
const QWEN3_NEXT: Family = Family { layouts: &["gated-query"], mechanisms: &[SIGMOID_GATE],
    qk_norm: Some((NormKind::RmsOffset, NormOver::Head)), positions: share(0.25), unsupported_parts: DELTA, ..LLAMA };

/// Muse, whose norms of queries and keys have no weight.
#[rustfmt::skip]
const MUSE: Family = Family { required_keys: &["layer_types", "layer_rope_theta"], mechanisms: &[SIGMOID_GATE],
    steps: &[StepRow::WeightlessNorms, StepRow::QueryFactor(QueryFactor::Key("qk_scale_factor"))],
    window: windows(WindowLayers::Listed),
    positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::NonZeroTheta, ..ROTARY }),
    defaults: &[("qk_scale_factor", 3.87), ("sliding_window", 2048.0), ("rms_norm_eps", 1e-5)], ..LLAMA };

#[rustfmt::skip]
pub(crate) const GATED: &[Family] = &[
    Family { model_types: &["qwen3_next"], ..QWEN3_NEXT },
    Family { model_types: &["qwen3_5_text", "qwen3_5_moe_text"],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(0.25), mrope: Some(Mrope::Alternating), ..ROTARY }),
        ..QWEN3_NEXT },
    // Its indexer chooses blocks of tokens of those before the last whole one.
    Family { model_types: &["qwen4_exp_text"],
        mechanisms: &[SIGMOID_GATE,
            Mechanism::Indexer(MaxKeys::WholeBlocks("indexer_budget", "indexer_compress_ratio"))],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), mrope: Some(Mrope::Alternating), ..ROTARY }),
        ..QWEN3_NEXT },
    Family { model_types: &["afmoe"], mechanisms: &[SIGMOID_GATE],
        window: windows(WindowLayers::AllButLastOf { key: Some("global_attn_every_n_layers"), default: 4 }),
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::Windowed, ..ROTARY }),
        defaults: &[("sliding_window", 1024.0), ("rms_norm_eps", 1e-5)], ..QWEN3 },
    Family { model_types: &["hrm_text"], layouts: &["hrm"], mechanisms: &[SIGMOID_GATE],
        note: Some("causal: with `token_type_ids`, tokens of the model's prompt see one another"), ..LLAMA },
    // Which layers have a window, heads of their own and which rotation is stated for each layer or each kind of layer.
    Family { model_types: &["laguna"], layouts: &["g-proj"], ignored_keys: &["gating"], mechanisms: &[SOFTPLUS_GATE],
        window: windows(WindowLayers::Listed),
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), theta: 500_000.0, ..ROTARY_PER_KIND }),
        defaults: &[("sliding_window", 512.0)], ..QWEN3 },
    Family { model_types: &["lfm3"], layouts: &["g-proj", "candle-attention"], own_keys: &["rope_type=proportional"],
        required_keys: &["layer_types"],
        mechanisms: &[Mechanism::Gate { activation: GateActivation::Sigmoid,
            switch: Some(("use_attention_gate", true)) }],
        window: windows(WindowLayers::Listed),
        positions: LayerPositions::Rotary(RotaryRow { theta: 1_000_000.0, ..ROTARY_PER_KIND }),
        defaults: &[("sliding_window", 256.0), ("norm_eps", 1e-5)], ..QWEN3 },
    // A gate per head alone: the model of a configuration with one per element fails.
    Family { model_types: &["step3p5"],
        forbidden_keys: &[("attention_other_setting", "heads of some layers in the spelling of its own code"),
            ("partial_rotary_factors", "a rotated share of each layer in the spelling of its own code")],
        layouts: &["g-proj"], ignored_keys: &["gating"], head_sizes: HeadSizes::PerLayer, mechanisms: &[SIGMOID_GATE],
        qk_norm: Some((NormKind::RmsOffset, NormOver::Head)), scale: Scale::QueryPreAttnScalar,
        window: windows(WindowLayers::Listed),
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), ..ROTARY_PER_KIND }),
        defaults: &[("rms_norm_eps", 1e-5)], ..LLAMA },
    Family { model_types: &["beam"], layouts: &["beam"], required_keys: &["layer_types"], mechanisms: &[SIGMOID_GATE],
        window: windows(WindowLayers::Listed),
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::Windowed, ..ROTARY_PER_KIND }),
        steps: &[StepRow::QueryFactor(QueryFactor::Beam)], defaults: &[("sliding_window", 512.0)], ..QWEN3 },
    Family { model_types: &["muse_glimmer_text"], ..MUSE },
    Family { model_types: &["muse_spark_text"],
        forbidden_keys: &[("rope_theta", "a base that counts in `rope_parameters` alone"),
            ("rope_scaling", "a rotation that counts as `rope_parameters` alone")],
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::NonZeroTheta, required_in_config: true,
            ..ROTARY }),
        mechanisms: &[Mechanism::ContextNorm { kind: NormKind::Rms, over: NormOver::Head, weighted: false },
            SIGMOID_GATE],
        defaults: &[("qk_scale_factor", 5.473_006_486_387_5), ("sliding_window", 2048.0), ("rms_norm_eps", 1e-5)],
        ..MUSE },
    Family { model_types: &["bitnet"],
        mechanisms: &[Mechanism::ContextNorm { kind: NormKind::Rms, over: NormOver::AllHeads, weighted: true }],
        positions: theta(500_000.0), defaults: &[("rms_norm_eps", 1e-5)],
        forbidden_keys: &[("quantization_config", "rounding of weights and activations")], ..LLAMA },
    Family { model_types: &["kosmos_2_text_model"], layouts: BART, causal: Causal::Fixed,
        mechanisms: &[Mechanism::ContextNorm { kind: NormKind::Layer, over: NormOver::AllHeads, weighted: true }],
        defaults: &[("layer_norm_eps", 1e-5)], qk_norm: None, ..BASE },
];

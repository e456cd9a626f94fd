//! Decoders that do more between projection and scores than a norm before a rotation: norms after it or without
//! weights, factors by position, keys that are values or belong to another layer.

use crate::config::CallInput;
use crate::families::decoders::{DECODER, EVERYWHERE, QWEN3, rotary, windows};
use crate::families::family::{
    Causal, Family, GEMMA_ROTARY, HeadSizes, IMAGES, LayerPositions, Mechanism, OWN, QueryFactor, ROTARY,
    ROTARY_PER_KIND, Required, RotaryLayers, RotaryRow, Scale, StepRow, Window, WindowLayers,
};

/// Gemma 3n and later: norms of values without weights, no factor on the scores, layers that share keys and values.
#[rustfmt::skip]
const GEMMA3N: Family = Family { layouts: &["candle-attention", "shared-keys"],
    // Which its files state and its model does not use.
    ignored_keys: &["query_pre_attn_scalar"], window: windows(WindowLayers::AllButLastOf { key: None, default: 5 }),
    positions: LayerPositions::Rotary(GEMMA_ROTARY), scale: Scale::One, steps: &[StepRow::ValueNorm],
    mechanisms: &[Mechanism::SharedKeys],
    defaults: &[("sliding_window", 512.0), ("num_kv_shared_layers", 15.0), ("num_hidden_layers", 35.0),
        ("num_key_value_heads", 2.0)], ..QWEN3 };
const GEMMA4_DEFAULTS: &[(&str, f64)] =
    &[("sliding_window", 512.0), ("num_hidden_layers", 30.0), ("global_head_dim", 512.0), ("num_key_value_heads", 4.0)];
#[rustfmt::skip]
const UNIFIED_DEFAULTS: &[(&str, f64)] = &[
    ("sliding_window", 1024.0), ("num_hidden_layers", 30.0), ("global_head_dim", 512.0), ("num_key_value_heads", 4.0),
];
#[rustfmt::skip]
const GEMMA4: Family = Family { layouts: &["candle-attention", "keys-as-values", "shared-keys"],
    own_keys: &["rope_type=proportional"], ignored_keys: &[], causal: Causal::UnlessAllBidirectional,
    window: windows(WindowLayers::AllButLastOf6AndLast),
    positions: LayerPositions::Rotary(RotaryRow { theta: 1_000_000.0, ..ROTARY_PER_KIND }),
    mechanisms: &[Mechanism::KeysAsValues(Some("attention_k_eq_v")), Mechanism::SharedKeys],
    head_sizes: HeadSizes::Global { switch: Some("attention_k_eq_v") }, defaults: GEMMA4_DEFAULTS, note: Some(IMAGES),
    ..GEMMA3N };
#[rustfmt::skip]
const ASSISTANT: Family = Family {
    // The model makes its own masks, and no layer of it has keys to share.
    ignored_keys: &["use_bidirectional_attention", "num_kv_shared_layers", "attention_k_eq_v"], causal: Causal::Never,
    mechanisms: &[Mechanism::KeysOfOtherModel], requires: &[Required::new(CallInput::Positions)],
    note: Some("keys and values are those of the last layer of its kind in the model that it drafts for"), ..GEMMA4 };
/// HunYuan: norms after the rotation, whose base its files multiply by a power of `alpha`.
#[rustfmt::skip]
const HUNYUAN: Family = Family { layouts: &["hunyuan"], own_keys: &["alpha"], steps: &[StepRow::NormsAfterRotation],
    defaults: &[("rms_norm_eps", 1e-5)], ..QWEN3 };

#[rustfmt::skip]
pub(crate) const STEPPED: &[Family] = &[
    Family { model_types: &["gemma3n_text"], ..GEMMA3N },
    Family { model_types: &["gemma4_text"], ..GEMMA4 },
    Family { model_types: &["gemma4_unified_text"], defaults: UNIFIED_DEFAULTS, ..GEMMA4 },
    // Models that draft for a Gemma 4, one token at a time: windows reach one token further back.
    Family { model_types: &["gemma4_assistant"], ..ASSISTANT },
    Family { model_types: &["gemma4_unified_assistant"], defaults: UNIFIED_DEFAULTS, ..ASSISTANT },
    // Encoder and decoder are one model, whose layers the file has once.
    Family { model_types: &["diffusion_gemma_text"], layouts: &["candle-attention", "keys-as-values"],
        mechanisms: &[Mechanism::KeysAsValues(None)], head_sizes: HeadSizes::Global { switch: None },
        note: Some("the mask is the encoder's: the decoder's tokens, after those in its cache, see one another, too"),
        ..GEMMA4 },
    // An encoder, whose window is a radius.
    Family { model_types: &["embedding_gemma2_text"], layouts: OWN, own_keys: &["sliding_window_pattern"],
        forbidden_keys: &[("rope_scaling", "a rotation without bases, with which the model of transformers fails")],
        causal: Causal::Never, mechanisms: &[], head_sizes: HeadSizes::Global { switch: None },
        positions: LayerPositions::Rotary(RotaryRow { theta: 1_000_000.0, window_theta: Some(10_000.0), ..ROTARY }),
        defaults: &[("sliding_window", 512.0), ("num_hidden_layers", 24.0), ("global_head_dim", 512.0),
            ("num_global_key_value_heads", 1.0)],
        note: None, ..GEMMA4 },
    Family { model_types: &["hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text"], ..HUNYUAN },
    Family { model_types: &["nanochat"], steps: &[StepRow::NormsAfterRotation, StepRow::WeightlessNorms],
        ..rotary(RotaryRow { reversed: true, ..ROTARY }) },
    Family { model_types: &["llama4_text"],
        window: Window { key: "attention_chunk_size", ..windows(WindowLayers::Chunks) },
        steps: &[StepRow::NormsAfterRotation, StepRow::WeightlessNormsIfRotated,
            StepRow::QueryFactor(QueryFactor::Llama4)],
        defaults: &[("rms_norm_eps", 1e-5), ("no_rope_layer_interval", 4.0), ("attention_chunk_size", 8192.0),
            ("attn_scale", 0.1), ("floor_scale", 8192.0)],
        ..rotary(RotaryRow { layers: RotaryLayers::NoRopeLayers, interleaved: true, theta: 500_000.0, ..ROTARY }) },
    Family { model_types: &["ministral3"], window: EVERYWHERE, steps: &[StepRow::QueryFactor(QueryFactor::RopeBeta)],
        ..rotary(RotaryRow { required_in_config: true, ..ROTARY }) },
    Family { model_types: &["mimo_v2_flash"], layouts: &["candle-attention", "mimo"],
        own_keys: &["sliding_window_size"], window: windows(WindowLayers::AllButFirstAndLastOf6),
        steps: &[StepRow::ValueFactor("attention_value_scale")], head_sizes: HeadSizes::WindowsDoubleKeys,
        defaults: &[("sliding_window", 129.0), ("attention_value_scale", 0.707)],
        ..rotary(RotaryRow { share: Some(0.334), theta: 5_000_000.0, window_theta: Some(10_000.0), ..ROTARY }) },
    // Patches of a series in time, which see those before them.
    Family { model_types: &["timesfm"], causal: Causal::Fixed, scale: Scale::One,
        steps: &[StepRow::QueryFactor(QueryFactor::Softplus)], ..DECODER },
    Family { model_types: &["timesfm2_5"], scale: Scale::One,
        steps: &[StepRow::NormsAfterRotation, StepRow::QueryFactor(QueryFactor::Softplus)], ..QWEN3 },
];

//! Encoder families: BERT and the models that changed a part of its attention.

use crate::config::{CallInput, NormKind, NormOver};
use crate::families::family::{
    BASE, Causal, FIXED_ROTATION, Family, HeadsKey, IMAGES, LayerPositions, Mechanism, OWN, ROTARY, Required,
    RequiredValue, RotaryLayers, RotaryRow, Scale, Sides, StepRow, Window, WindowLayers, theta,
};

/// ALiBi is Jina-BERT's, and the norms of queries and keys are those of Jina's model for code.
#[rustfmt::skip]
const BERT: Family = Family { model_types: &["bert"], own_keys: &["position_embedding_type=alibi"],
    causal: Causal::IfDecoder, qk_norm: Some((NormKind::Layer, NormOver::AllHeads)), ..BASE };

const GTE: Family = Family { model_types: &["gte"], layouts: &["phi3"], positions: theta(160_000.0), ..BASE };

#[rustfmt::skip]
const ESM: Family = Family {
    positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::IfStated("rotary"), ..ROTARY }), ..BASE };

const DEBERTA: Family = Family { model_types: &["deberta"], layouts: &["deberta"], scale: Scale::Disentangled, ..BASE };

/// BigBird as it attends to all tokens.
pub(super) const FULL_ATTENTION: RequiredValue =
    RequiredValue::new("attention_type", "original_full", "block-sparse attention");

/// ModernBERT's windows, whose key counts both sides.
pub(super) const MODERNBERT_WINDOW: Window = Window {
    layers: WindowLayers::AllButFirstOf { key: Some("global_attn_every_n_layers"), default: 3 },
    key: "local_attention",
    sides: Sides::Both,
};

/// BERT's layer, causal if `is_decoder` is set.
const BERT_LAYER: Family = Family { causal: Causal::IfDecoder, ..BASE };

/// LayoutLM v2: biases of the distances of tokens and of their boxes on the page.
#[rustfmt::skip]
const LAYOUTLM_V2: Family = Family {
    requires: &[Required { keys: &["has_relative_attention_bias", "has_spatial_attention_bias"],
        ..Required::new(CallInput::ScoreBias { scaled: false }) }], ..BASE };

/// The note of XLNet.
const XLNET: &str = "segments count where a call gives token types; what the model keeps (`mems`) comes before the \
    tokens as keys and values, of type 0; the stream of tokens to predict (`target_mapping`) is not run";

#[rustfmt::skip]
pub(crate) const ENCODERS: &[Family] = &[
    BERT,
    // The second is that of the module one further down.
    Family { model_types: &["mpnet"], layouts: &["mpnet", "t5"], positions: LayerPositions::MpnetBias, ..BASE },
    Family { model_types: &["distilbert"], layouts: &["distilbert"], ..BASE },
    Family { model_types: &["xlm", "flaubert"], layouts: &["distilbert"], causal: Causal::IfSet("causal"), ..BASE },
    Family { model_types: &["albert", "tvp"], layouts: &["albert"], ..BASE },
    Family { model_types: &["convbert"], own_keys: &["conv_kernel_size", "head_ratio"],
        heads: &[HeadsKey { divisor: 2, ..HeadsKey::new(&[], "num_attention_heads") }],
        defaults: &[("conv_kernel_size", 9.0), ("head_ratio", 2.0)],
        mechanisms: &[Mechanism::SpanConvolution("conv_kernel_size")], ..BASE },
    Family { model_types: &["squeezebert"], layouts: &["squeezebert"], ..BASE },
    Family { model_types: &["modernbert"], layouts: &["modernbert"], window: MODERNBERT_WINDOW,
        defaults: &[("local_attention", 128.0)],
        positions: LayerPositions::Rotary(RotaryRow { theta: 160_000.0, window_theta: Some(10_000.0), ..ROTARY }),
        ..BASE },
    Family { model_types: &["nomic_bert"], layouts: &["mpt"],
        own_keys: &["rotary_scaling_factor", "rotary_emb_base", "rotary_emb_fraction", "rotary_emb_interleaved"],
        forbidden_keys: &[("partial_rotary_factor", "a share of each head, which its model does not read")],
        positions: LayerPositions::Rotary(RotaryRow { share: Some(1.0), theta: 1_000.0, ..ROTARY }), ..BASE },
    Family { model_types: &["jina_embeddings_v3"], layouts: &["mpt"], own_keys: &["rotary_emb_base"],
        positions: theta(20_000.0), ..BASE },
    GTE,
    // With the configuration of GTE's own code.
    Family { model_types: &["new"], own_keys: &["mixed_b"], positions: LayerPositions::Rotary(ROTARY),
        required_values: &[RequiredValue::new("position_embedding_type", "rope", "absolute positions"),
            RequiredValue::new("layer_norm_type", "layer_norm", "another kind of norm")], ..GTE },
    Family { model_types: &["esm"], causal: Causal::IfDecoder, ..ESM },
    // The name for the encoder of proteins in Evolla, whose section states none.
    Family { model_types: &["evolla_protein_encoder"], required_keys: &["position_embedding_type"], ..ESM },
    // EuroBERT with windows, whose key states one side of them.
    Family { model_types: &["ultrabert"], layouts: OWN,
        window: Window { layers: WindowLayers::AllButLastOf { key: None, default: 3 }, ..BASE.window },
        own_keys: &["attention_windows"], defaults: &[("sliding_window", 128.0)],
        positions: LayerPositions::Rotary(RotaryRow { theta: 2_560_000.0, window_theta: Some(10_000.0), ..ROTARY }),
        qk_norm: None, ..BASE },
    // GPT-OSS that sees both ways, within a window.
    Family { model_types: &["openai_privacy_filter"], layouts: OWN,
        window: Window { layers: WindowLayers::All { switch: false }, ..BASE.window },
        defaults: &[("sliding_window", 128.0)],
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, theta: 150_000.0, required_in_config: true,
            ..ROTARY }),
        qk_norm: None, ..BASE },
    Family { model_types: &["esmc"], layouts: OWN, positions: LayerPositions::Rotary(ROTARY),
        qk_norm: Some((NormKind::Layer, NormOver::AllHeads)), steps: &[StepRow::NormEps(1e-5)], ..BASE },
    Family { positions: LayerPositions::Disentangled { v2: false, silent: false }, ..DEBERTA },
    // Also its third version.
    Family { model_types: &["deberta-v2"], layouts: &["deberta-v2"],
        positions: LayerPositions::Disentangled { v2: true, silent: false }, ..DEBERTA },
    // Of sounds.
    Family { model_types: &["sew-d"], layouts: &["deberta-v2"],
        positions: LayerPositions::Disentangled { v2: true, silent: true },
        defaults: &[("position_buckets", 256.0), ("layer_norm_eps", 1e-7)], ..DEBERTA },
    Family { model_types: &["roberta", "xlm-roberta", "camembert", "electra", "bert-generation", "data2vec-text",
            "ernie", "megatron-bert", "rembert", "roberta-prelayernorm", "roc_bert", "xlm-roberta-xl", "xmod"],
        ..BERT_LAYER },
    // These see both ways whatever `is_decoder` states.
    Family { model_types: &["dpr", "layoutlm", "markuplm", "splinter", "tapas", "visual_bert", "mobilebert",
            "superglue", "luke", "ibert"], ..BASE },
    // Characters see those of their own chunk, by a mask of the call.
    Family { model_types: &["canine"],
        requires: &[Required::below("initial_char_encoder", CallInput::Mask),
            Required::below("final_char_encoder", CallInput::Mask)], ..BASE },
    Family { model_types: &["lxmert"], layouts: &["bert", "lxmert"], ..BASE },
    // Biases of the distances of tokens and of their boxes on the page.
    Family { model_types: &["layoutlmv3"],
        requires: &[Required { keys: &["has_relative_attention_bias"],
            ..Required::new(CallInput::ScoreBias { scaled: true }) }], ..BASE },
    Family { model_types: &["layoutlmv2"], layouts: &["layoutlmv2", "bert"], ..LAYOUTLM_V2 },
    Family { model_types: &["layoutxlm"], layouts: &["bert", "layoutlmv2"], ..LAYOUTLM_V2 },
    Family { model_types: &["longformer"],
        note: Some("no token is global unless a call says so: transformers makes the first one global in classifiers"),
        window: Window { layers: WindowLayers::All { switch: false }, key: "attention_window", sides: Sides::Both },
        defaults: &[("attention_window", 512.0)], mechanisms: &[Mechanism::GlobalTokens], ..BASE },
    Family { model_types: &["xlnet"], layouts: &["xlnet"], positions: LayerPositions::SegmentSinusoids,
        note: Some(XLNET), ..BASE },
    // CLVP's, of texts and of speech. Values are rotated, too.
    Family { model_types: &["clvp_encoder"], forbidden_keys: FIXED_ROTATION, layouts: &["bart"],
        positions: LayerPositions::Rotary(RotaryRow { layers: RotaryLayers::IfSet("use_rotary_embedding"),
            least_of_projection: Some(32), ..ROTARY }),
        steps: &[StepRow::ValueRotation(None)], defaults: &[("use_rotary_embedding", 1.0), ("projection_dim", 768.0)],
        ..BASE },
    Family { model_types: &["git"], causal: Causal::Always, note: Some(IMAGES), ..BASE },
    Family { model_types: &["big_bird"], required_values: &[FULL_ATTENTION], ..BERT_LAYER },
    Family { model_types: &["roformer"], forbidden_keys: FIXED_ROTATION,
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, ..ROTARY }),
        steps: &[StepRow::ValueRotation(Some("rotary_value"))], ..BERT_LAYER },
];

//! `Family`: one row per published model family, for an attention layer and for a whole model.

use crate::config::{NormKind, NormOver};
use crate::families::block::Model;

/// A published model family. Every column has its usual value in [`BASE`], so that a row states only what differs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    /// The values of `model_type` in `config.json`. Several, if the families differ in nothing that attention uses.
    pub model_types: &'static [&'static str],
    /// A key and its value that `config.json` must have in addition: models that share a `model_type` (Jina-BERT).
    pub stated: Option<(&'static str, &'static str)>,
    /// A tensor that a whole model must hold in addition: models that share a configuration.
    pub held: Option<&'static str>,
    /// Keys that change attention and that the family reads beyond those of its other columns. Every other key of
    /// [`keys`](crate::families::keys) is an error if it is set.
    pub reads: &'static [&'static str],
    /// Which layers have causal self-attention.
    pub causal: Causal,
    /// Which layers have a sliding window, and how wide.
    pub window: Window,
    /// How attention is made aware of positions.
    pub positions: LayerPositions,
    /// The factor on the scores.
    pub scale: Scale,
    /// Formula and extent of the norms of queries and keys, if the checkpoint holds them.
    pub qk_norm: (NormKind, NormOver),
    /// Whether sizes and numbers of heads in `config.json` are lists with an entry per stage (Swin).
    pub stages: bool,
    /// Why this version cannot run the family as its own model does.
    pub unsupported: Option<&'static str>,
    /// The whole model, if this version runs it.
    #[cfg_attr(not(feature = "encoder"), allow(dead_code, reason = "only the encoder runs whole models"))]
    pub model: Option<Model>,
}

/// The usual value of each column.
pub(crate) const BASE: Family = Family {
    model_types: &[],
    stated: None,
    held: None,
    reads: &[],
    causal: Causal::Never,
    window: Window { layers: WindowLayers::Listed, key: "sliding_window", default: None },
    positions: LayerPositions::FromWeights,
    scale: Scale::HeadDim,
    qk_norm: (NormKind::Layer, NormOver::Head),
    stages: false,
    unsupported: None,
    model: None,
};

/// Which layers see no later token in self-attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Causal {
    /// None (encoders).
    Never,
    /// All (decoders).
    Always,
    /// Those whose prefix contains `decoder`, in models of an encoder and a decoder.
    Decoder,
    /// Those of the text tower, in models of a text and a vision tower whose configuration states `eos_token_id`.
    TextTower,
}

/// Sliding windows: which layers have one unless `layer_types` lists them, and how wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Which layers.
    pub layers: WindowLayers,
    /// The key for the width. In bidirectional layers that is the width of both sides together.
    pub key: &'static str,
    /// The width if the key is absent; `None`: no window.
    pub default: Option<usize>,
}

/// Which layers have a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowLayers {
    /// Those that `layer_types` lists as sliding.
    Listed,
    /// Those that `attention_layers` lists as local (GPT-Neo).
    ListedLocal,
    /// All.
    All,
    /// All but the last of each group of layers. The key states the size of a group.
    AllButLastOf { key: Option<&'static str>, default: usize },
    /// All but the first of each group of layers.
    AllButFirstOf { key: Option<&'static str>, default: usize },
    /// Those from number `max_window_layers` on, if `use_sliding_window` is set (Qwen).
    FromLayerNumber,
}

/// How attention is made aware of positions. Embeddings added to the input of the model are not part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LayerPositions {
    /// By what checkpoint and configuration hold: a table of biases of patches, or the keys of timm's EVA.
    FromWeights,
    /// Rotation of queries and keys.
    Rotary(RotaryRow),
    /// Rotation by row and column of patches (DINOv3).
    DinoRotary,
    /// ALiBi (BLOOM).
    Alibi,
    /// ALiBi as the nested `attn_config` has it (MPT).
    MptAlibi,
    /// T5's buckets as the configuration has them, in both directions outside the decoder.
    T5Bias,
    /// T5's buckets as MPNet fixes them; its configuration's number only sizes the table.
    MpnetBias,
    /// Embeddings of distances (DeBERTa). `v2`: with buckets, shared projections and norms.
    Disentangled { v2: bool },
}

/// Rotary positions of a family: defaults of what the configuration may state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RotaryRow {
    /// Which layers are rotated.
    pub layers: RotaryLayers,
    /// Pairs of neighbors instead of pairs that are half a head apart.
    pub interleaved: bool,
    /// The share of a head that is rotated if the configuration is silent; `None`: all, whatever it states.
    pub share: Option<f64>,
    /// The base of the wavelengths if the configuration is silent.
    pub theta: f64,
    /// Whether context-extension scaling also applies to layers with a sliding window.
    pub scales_windowed: bool,
}

/// Which layers rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RotaryLayers {
    /// All.
    All,
    /// Those with a sliding window (Cohere 2).
    Windowed,
    /// All, if `position_embedding_type` is `rotary` (ESM).
    IfStated,
    /// All, unless `alibi` is set: then ALiBi in Falcon's rounding.
    UnlessAlibi,
}

/// Rotary positions as Llama has them.
pub(crate) const ROTARY: RotaryRow =
    RotaryRow { layers: RotaryLayers::All, interleaved: false, share: None, theta: 10_000.0, scales_windowed: true };

/// The factor on the scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// `head_dim^-0.5` unless the configuration states another.
    HeadDim,
    /// None (T5, GPT-Neo).
    One,
    /// Divided by the number of terms (DeBERTa).
    Disentangled,
    /// As the keys `scale_attn_weights` and `scale_attn_by_inverse_layer_idx` have it (GPT-2).
    Gpt2,
}

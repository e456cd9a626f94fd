//! How families make attention aware of positions.

use crate::position::{GridFrequencies, RotaryStyle};

/// How attention is made aware of positions. Embeddings added to the input of the model are not part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LayerPositions {
    /// By what checkpoint and configuration hold: a table of biases of patches, or the keys of timm's EVA.
    FromWeights,
    /// Rotation of queries and keys.
    Rotary(RotaryRow),
    /// A rotation that each call gives: MLCD learns the angles of its class token outside its layers.
    Given(RotaryStyle),
    /// Rotation by frame, row and column of patches (V-JEPA 2).
    Video,
    /// Rotation by row and column of patches (DINOv3).
    DinoRotary,
    /// Rotation by row and column of patches, without tokens before them.
    PatchRotary(PatchRotaryRow),
    /// ALiBi (BLOOM).
    Alibi,
    /// ALiBi as the nested `attn_config` has it (MPT).
    MptAlibi,
    /// T5's buckets as the configuration has them, in both directions outside the decoder.
    T5Bias,
    /// T5's buckets as MPNet fixes them; its configuration's number only sizes the table.
    MpnetBias,
    /// Embeddings of distances (DeBERTa). `v2`: with buckets, shared projections and norms. `silent`: which a file that
    /// does not state them has, all (SEW-D) or none.
    Disentangled { v2: bool, silent: bool },
    /// Biases of offsets inside windows, computed by a network (Swin v2). `shrinks`: whether each stage has half as
    /// many rows and columns as the one before.
    ComputedBias { shrinks: bool },
    /// Projected sinusoids of distances (Parakeet).
    RelativeSinusoids,
    /// Projected sinusoids of distances, and segments (XLNet).
    SegmentSinusoids,
    /// Projected sinusoids of distances as the Universal Speech Model has them: the key for tokens after a query in its
    /// window, which has none, and the key for the size of the chunks, if distances are counted from half of what a
    /// chunk sees.
    LocalSinusoids { right: &'static str, chunk: Option<&'static str> },
    /// In layers of Conformers but those of an adapter, as the key `position_embeddings_type` says; its default.
    Conformer(&'static str),
    /// Embeddings of distances within blocks of tokens, the key for the most distances; `context_size` is that of a
    /// block (Granite Speech).
    RelativeKeyBlocks(&'static str),
    /// Embeddings of distances in the layers below this component, that all of them share: of as many before a query as
    /// the key states, less one, and as many after it (SpeechT5).
    SharedRelativeKeys(&'static str, &'static str),
    /// Embeddings of rows and columns between patches, if the checkpoint holds them (SAM).
    RelativeKey2d,
    /// Embeddings of distances within `window_size` tokens, of keys and values (VITS).
    RelativeKeyValue,
    /// Gated biases of buckets (WavLM).
    GatedBias,
    /// Rotation by a base of their own where there are keys of blocks, and scaled there alone (DeepSeek V4).
    MainOrCompress,
}

impl LayerPositions {
    /// Whether tensors of a layer show its positions, so that a layer without them is an error.
    pub(crate) fn are_in_weights(&self) -> bool {
        !matches!(
            self,
            Self::Rotary(_)
                | Self::Given(_)
                | Self::Video
                | Self::DinoRotary
                | Self::PatchRotary(_)
                | Self::Alibi
                | Self::MptAlibi
                | Self::MainOrCompress
        )
    }
}

/// Rotary positions of a family: defaults of what the configuration may state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RotaryRow {
    /// Which layers are rotated.
    pub layers: RotaryLayers,
    /// Pairs of neighbors instead of pairs that are half a head apart.
    pub interleaved: bool,
    /// Whether angles are negative (nanochat).
    pub reversed: bool,
    /// How many heads are rotated; `None`: all.
    pub heads: Option<usize>,
    /// The share of a head that is rotated if the configuration is silent; `None`: all, whatever it states.
    pub share: Option<f64>,
    /// Whether the key `rotary_dim` states how many elements of a head are rotated (GPT-J).
    pub rotary_dim: bool,
    /// The least elements of a head that are rotated, if `projection_dim` states how many: half of it for all heads
    /// (CLVP).
    pub least_of_projection: Option<usize>,
    /// The base of the wavelengths if the configuration is silent.
    pub theta: f64,
    /// The base for layers with a sliding window, if it differs.
    pub window_theta: Option<f64>,
    /// Whether context-extension scaling also applies to layers with a sliding window.
    pub scales_windowed: bool,
    /// How the pairs of a head belong to the axes of M-RoPE, if `mrope_section` is stated. Without explicit positions
    /// the axes are equal, and the rotation is the usual one.
    pub mrope: Option<Mrope>,
    /// Whether the configuration must state the rotation: a silent file's has a scaling, a share or a base of its own.
    pub required_in_config: bool,
}

/// How the pairs of a head belong to the axes of M-RoPE: time, row and column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mrope {
    /// One block of pairs after the other (Qwen2-VL).
    Blocks,
    /// In turn (Qwen3-VL).
    Alternating,
}

/// Which layers rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RotaryLayers {
    /// All.
    All,
    /// Those with a sliding window (Cohere 2).
    Windowed,
    /// Those with a sliding window, and dense layers if none of the first dense ones has a window (Cohere 2 MoE).
    WindowedOrDense,
    /// Those with a sliding window; all, if the model has no windows (EXAONE 4).
    WindowedIfAny,
    /// Those that `no_rope_layers` marks with 1. If it is absent, all but the last of each group of
    /// `no_rope_layer_interval` layers (SmolLM3).
    NoRopeLayers,
    /// All, each with its own base in `layer_rope_theta`; not those whose base is 0 (Granite with windows).
    OwnTheta,
    /// All but those whose entry in `layer_rope_theta` is 0 (Muse): the base of the others is `rope_theta`.
    NonZeroTheta,
    /// All, if `position_embedding_type` has this value (ESM).
    IfStated(&'static str),
    /// None: queries and keys of a head are turned by one angle, whatever their places, which changes no score
    /// (X-Codec 2).
    None,
    /// All, if this key is true (Zamba 2), as it is where the row has a default (CLVP).
    IfSet(&'static str),
    /// All, if the configuration states a base (OLMo Hybrid).
    IfTheta,
    /// Those of a kind, with a window or without, for which the configuration states a rotation (Cohere Compass).
    IfKindStated,
    /// All, unless `alibi` is set: then ALiBi in Falcon's rounding.
    UnlessAlibi,
}

/// Rotary positions as Llama has them.
#[rustfmt::skip]
pub(crate) const ROTARY: RotaryRow = RotaryRow { layers: RotaryLayers::All, interleaved: false, reversed: false,
    heads: None, share: None, rotary_dim: false, least_of_projection: None, theta: 10_000.0, window_theta: None,
    scales_windowed: true, mrope: None, required_in_config: false };

/// Rotary positions that configurations state for each kind of layer, with another base for windows.
pub(crate) const ROTARY_PER_KIND: RotaryRow =
    RotaryRow { window_theta: Some(10_000.0), required_in_config: true, ..ROTARY };

/// Rotary positions of Gemma 3, on which a configuration may be silent: context-extension scaling is not for windows.
pub(crate) const GEMMA_ROTARY: RotaryRow =
    RotaryRow { theta: 1_000_000.0, window_theta: Some(10_000.0), scales_windowed: false, ..ROTARY };

/// Llama's rotary positions with another base.
pub(crate) const fn theta(theta: f64) -> LayerPositions {
    LayerPositions::Rotary(RotaryRow { theta, ..ROTARY })
}

/// Llama's rotary positions on a share of each head, if the configuration states no other.
pub(crate) const fn share(share: f64) -> LayerPositions {
    LayerPositions::Rotary(RotaryRow { share: Some(share), ..ROTARY })
}

/// Llama's rotary positions with M-RoPE.
pub(crate) const fn mrope(theta: f64, order: Mrope) -> LayerPositions {
    LayerPositions::Rotary(RotaryRow { theta, mrope: Some(order), ..ROTARY })
}

/// Rotation by row and column of patches, as far as families differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatchRotaryRow {
    /// How rows and columns share the wavelengths.
    pub frequencies: GridFrequencies,
    /// The key for the side of the blocks in which patches come, and its default; `None`: patches come row by row.
    pub block: Option<(&'static str, usize)>,
    /// Which elements form a pair.
    pub style: RotaryStyle,
    /// Whether the first half of the angles belongs to columns.
    pub columns_first: bool,
    /// Whether each half of a head is rotated by itself.
    pub halves: bool,
    /// The number of the first row and column.
    pub first: usize,
    /// Tokens before the patches, which are not rotated.
    pub prefix_tokens: usize,
    /// Tokens after the patches.
    pub suffix_tokens: usize,
    /// Windows of patches.
    pub windows: PatchWindows,
}

/// Rotation by row and column of patches that come row by row, in half-split pairs.
#[rustfmt::skip]
pub(crate) const PATCH_ROTARY: PatchRotaryRow = PatchRotaryRow { frequencies: GridFrequencies::Same, block: None,
    style: RotaryStyle::HalfSplit, columns_first: false, halves: false, first: 0, prefix_tokens: 0, suffix_tokens: 0,
    windows: PatchWindows::None };

/// How patches that are rotated by row and column come in windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchWindows {
    /// There are none.
    None,
    /// Patches come window by window, each `window_size` pixels wide, and see their own window but in the layers that
    /// `fullatt_block_indexes` lists (Qwen2.5-VL).
    Ordered,
    /// Windows of `window_size` patches a side are rows of the batch, but in the layers that `global_attn_indexes`
    /// lists, where rows and columns are scaled as if the image were one window (SAM 3).
    Rows,
}

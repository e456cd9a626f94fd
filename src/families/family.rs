//! `Family`: one row per published model family, for its attention layers.

use crate::attention::mechanisms::GateActivation;
use crate::config::{CallInput, NormKind, NormOver};
pub(crate) use crate::families::positions::{
    GEMMA_ROTARY, LayerPositions, Mrope, PATCH_ROTARY, PatchRotaryRow, PatchWindows, ROTARY, ROTARY_PER_KIND,
    RotaryLayers, RotaryRow, mrope, share, theta,
};

/// A published model family. Every column has its usual value in [`BASE`], so that a row states only what differs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    /// All `model_type`s that share this row.
    pub model_types: &'static [&'static str],
    /// The layouts of its layers, by their names: the usual one, then others that are published. A layer in another
    /// layout is not of this family.
    pub layouts: &'static [&'static str],
    /// Keys that are read for families that list them alone, and values of shared keys, as `key=value`. They mean
    /// nothing to the others, or something else.
    pub own_keys: &'static [&'static str],
    /// Keys of [`keys`](crate::families::keys) that files of the family state and its model does not use.
    pub ignored_keys: &'static [&'static str],
    /// Required keys: transformers computes their defaults, we do not.
    pub required_keys: &'static [&'static str],
    /// Keys that must be absent, null or false, each with what it sets; as `key=false`, that must not be false.
    pub forbidden_keys: &'static [(&'static str, &'static str)],
    /// Keys that must have one value.
    pub required_values: &'static [RequiredValue],
    /// Values of numeric keys that `config.json` may leave out, as the config class of the family has them. A key that
    /// is `null` has no value.
    pub defaults: &'static [(&'static str, f64)],
    /// Keys for the number of heads in parts of the model, before those that all families have.
    pub heads: &'static [HeadsKey],
    /// How numbers and sizes of heads differ between layers.
    pub head_sizes: HeadSizes,
    /// Which layers have causal self-attention.
    pub causal: Causal,
    /// Which layers have a sliding window, and how wide.
    pub window: Window,
    /// How attention is made aware of positions.
    pub positions: LayerPositions,
    /// The factor on the scores.
    pub scale: Scale,
    /// Formula and extent of the norms of queries and keys, if the checkpoint holds them. `None`: it must not.
    pub qk_norm: Option<(NormKind, NormOver)>,
    /// Steps between projection and scores beside those norms and the rotation, in their order.
    pub steps: &'static [StepRow],
    /// Mechanisms: what layers do beyond projecting, scoring, softmax, summing values and projecting back.
    pub mechanisms: &'static [Mechanism],
    /// Inputs that each call has to give, in which layers.
    pub requires: &'static [Required],
    /// Parts of the model that this version cannot run as they run there: components of prefixes, each with the reason.
    pub unsupported_parts: &'static [(&'static str, &'static str)],
    /// A note on what a call has to say, for [`ModelAttention`](crate::checkpoint::ModelAttention).
    pub note: Option<&'static str>,
}

/// A key that must have one value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequiredValue {
    pub key: &'static str,
    pub value: &'static str,
    /// The effect of another value.
    pub otherwise: &'static str,
    /// A component of the layers' prefixes; `None`: all layers.
    pub below: Option<&'static str>,
}

impl RequiredValue {
    /// In all layers.
    pub(crate) const fn new(key: &'static str, value: &'static str, otherwise: &'static str) -> Self {
        Self { key, value, otherwise, below: None }
    }
}

/// The keys for the sizes of a part of a model that has no section of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadsKey {
    /// Components of the prefixes of the part's layers, all of which they have.
    pub below: &'static [&'static str],
    /// The key for the number of heads.
    pub key: &'static str,
    /// A divisor of the stated number: the part's layers have a share of the heads.
    pub divisor: usize,
    /// The key for the width of a part whose sizes are not those of the section; an empty one if none states it.
    pub width: Option<&'static str>,
}

impl HeadsKey {
    /// A part with heads of its own, and the other sizes of the section.
    pub(crate) const fn new(below: &'static [&'static str], key: &'static str) -> Self {
        Self { below, key, divisor: 1, width: None }
    }

    /// A part with sizes of its own.
    pub(crate) const fn part(below: &'static [&'static str], key: &'static str, width: &'static str) -> Self {
        Self { width: Some(width), ..Self::new(below, key) }
    }
}

/// An input that each call of some layers has to give.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Required {
    pub input: CallInput,
    /// A component of the layers' prefixes; `None`: all layers.
    pub below: Option<&'static str>,
    /// The first of these layers.
    pub from_layer: usize,
    /// Keys of which one has to be true, as they are if the configuration is silent. Empty: whatever it states.
    pub keys: &'static [&'static str],
}

impl Required {
    /// In all layers.
    pub(crate) const fn new(input: CallInput) -> Self {
        Self { input, below: None, from_layer: 0, keys: &[] }
    }

    /// In layers below this component of the prefix.
    pub(crate) const fn below(component: &'static str, input: CallInput) -> Self {
        Self { below: Some(component), ..Self::new(input) }
    }
}

/// The keys of rotations, in families whose model rotates in one way whatever they state.
pub(crate) const FIXED_ROTATION: &[(&str, &str)] = &[
    ("rope_theta", "a base that its model does not read"),
    ("rope_parameters", "a rotation that its model does not read"),
    ("rope_scaling", "a rotation that its model does not read"),
];

/// The layouts of BERT and of the encoders made from it.
pub(crate) const BERT: &[&str] = &["bert", "flax-bert"];
/// The layout of BART, and of towers and speech encoders made from its code.
pub(crate) const BART: &[&str] = &["bart"];
/// The layout of Llama, which is also this crate's own.
pub(crate) const OWN: &[&str] = &["candle-attention"];

/// RMS norms of each head of queries and keys.
pub(crate) const RMS: Option<(NormKind, NormOver)> = Some((NormKind::Rms, NormOver::Head));

/// The mask is one that each call has to give.
pub(crate) const MASK: &[Required] = &[Required::new(CallInput::Mask)];

/// The note of text models with images inside.
pub(crate) const IMAGES: &str = "the mask is that of text: in the model, the tokens of an image also see one another";

/// The note of a model that masks the patches of its last layers.
pub(crate) const PREDICTED: &str = "the mask is that of a trained model: while it trains, queries see the patches of \
    their predicted segments";

/// The note of latents that see a context and themselves.
pub(crate) const LATENTS: &str =
    "keys and values are made of the context followed by the latents, which are the queries";

/// The usual value of each column.
#[rustfmt::skip]
pub(crate) const BASE: Family = Family { model_types: &[], layouts: BERT, own_keys: &[], ignored_keys: &[],
    required_keys: &[], forbidden_keys: &[], required_values: &[], defaults: &[], heads: &[],
    head_sizes: HeadSizes::Same, causal: Causal::Never,
    window: Window { layers: WindowLayers::None, key: "sliding_window", sides: Sides::Each },
    positions: LayerPositions::FromWeights, scale: Scale::HeadDim, qk_norm: Some((NormKind::Layer, NormOver::Head)),
    steps: &[], mechanisms: &[], requires: &[], unsupported_parts: &[], note: None };

/// Which layers see no later token in self-attention. In all but [`Fixed`](Self::Fixed), the key `is_causal` set to
/// `false` makes them see both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Causal {
    /// None (encoders).
    Never,
    /// All (decoders).
    Always,
    /// All, whatever `is_causal` states: the model has a causal mask of its own (GPT-Neo).
    Fixed,
    /// Those whose prefix contains `decoder`, whatever `is_causal` states: the model has a causal mask of its own
    /// (FSMT).
    FixedDecoder,
    /// All, unless `use_bidirectional_attention` is set (EmbeddingGemma is a Gemma 3 that sees both ways).
    UnlessBidirectional,
    /// All, unless `use_bidirectional_attention` is `all`; `vision` is for tokens of images, which a call says (Gemma
    /// 4).
    UnlessAllBidirectional,
    /// All, if `is_decoder` is set (BERT as a decoder).
    IfDecoder,
    /// All, if this key is true, whatever `is_causal` states (XLM).
    IfSet(&'static str),
    /// Those whose prefix contains `decoder`, in models of an encoder and a decoder; of one saved alone, if
    /// `is_decoder` is set.
    Decoder,
    /// Those below this component of the prefix (the language model of BLIP).
    Below(&'static str),
    /// Those of the text tower, in models of a text and a vision tower.
    TextTower,
}

/// Sliding windows: which layers have one, and how wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// Which layers.
    pub layers: WindowLayers,
    /// The key for the width: how many tokens a token sees, itself included; in bidirectional layers, as `sides` says.
    pub key: &'static str,
    /// How the key counts tokens in bidirectional layers.
    pub sides: Sides,
}

/// The tokens that the width of a bidirectional window counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sides {
    /// The tokens on each side.
    Each,
    /// Those of both sides together, half of them on each (ModernBERT).
    Both,
    /// All tokens of the window, the token itself included; of an even number, one more comes after it than before it
    /// (T5Gemma 2).
    Around,
    /// One token more than there are on the left, the token itself included (audio of Gemma 4).
    OneMore,
}

/// Which layers have a sliding window. Variants that mention `layer_types` read it before their own rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowLayers {
    /// None; the keys for windows mean nothing to the family.
    None,
    /// None. Those that `layer_types` lists as chunked, or without it those that are rotated, attend inside chunks,
    /// whose size the key states (Llama 4).
    Chunks,
    /// All, if the key for the width has a value. `switch`: the key `use_sliding_window` must be set too (Qwen 3 MoE).
    /// `layer_types` does not count.
    All { switch: bool },
    /// Those below this component of the prefix (LongT5, LED).
    Below(&'static str),
    /// Those that `layer_types` lists as sliding.
    Listed,
    /// Those that `attention_layers` lists as local (GPT-Neo).
    ListedLocal,
    /// All but the last of each group of layers, or as `layer_types` says. The key states the size of a group.
    AllButLastOf { key: Option<&'static str>, default: usize },
    /// All but the last of each group of 6 layers and the last of all, or as `layer_types` says, of which the last
    /// entry does not count (Gemma 4).
    AllButLastOf6AndLast,
    /// All but the first layer and the last of each group of 6, or as `layer_types` says (MiMo-V2-Flash).
    AllButFirstAndLastOf6,
    /// All but the first of each group of layers, or as `layer_types` says. The key states the size of a group.
    AllButFirstOf { key: Option<&'static str>, default: usize },
    /// Those from number `max_window_layers` on, or as `layer_types` says. `switch`: the key `use_sliding_window` must
    /// be set (Qwen).
    FromLayerNumber { switch: bool },
    /// Every second layer below number `max_window_layers`, if `use_sliding_window` is set, or as `layer_types` says
    /// (Qwen 2 MoE).
    SecondBelowLayerNumber,
    /// Those that are not rotated, if `use_sliding_window` is set, or as `layer_types` says (SmolLM3).
    NotRotated,
}

/// A step between projection and scores, beside norms of queries and keys that have weights, and the rotation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StepRow {
    /// Norms of queries and keys come after the rotation.
    NormsAfterRotation,
    /// The number that norms add to the variance, whatever `config.json` states.
    NormEps(f64),
    /// RMS norms of queries and keys without weights.
    WeightlessNorms,
    /// RMS norms of queries and keys without weights in layers that are rotated, unless `use_qk_norm` is false (Llama
    /// 4).
    WeightlessNormsIfRotated,
    /// An RMS norm of queries without weights (DeepSeek V4).
    WeightlessQueryNorm,
    /// A factor on queries.
    QueryFactor(QueryFactor),
    /// A factor on keys.
    KeyFactor(f64),
    /// An RMS norm of values without weights.
    ValueNorm,
    /// The rotation of values, too (CLVP), if this key, where there is one, is true (RoFormer).
    ValueRotation(Option<&'static str>),
    /// A factor on values, the value of this key.
    ValueFactor(&'static str),
}

/// Something that a layer does beyond projecting, scoring, softmax, summing values and projecting back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mechanism {
    /// Keys and values made of one latent per token. It comes before mechanisms that follow from the sizes of heads.
    Latent(LatentRow),
    /// A cap on the scores, by this key.
    Softcap(&'static str),
    /// A limit on queries, keys and values, by the key `clip_qkv`.
    ClipQkv,
    /// A convolution of the values over as many neighbors as this key states (Fun-ASR).
    ValueConvolution(&'static str),
    /// A convolution beside the heads, over as many neighbors as this key states (ConvBERT).
    SpanConvolution(&'static str),
    /// Attention between channels, in layers with this component in their prefixes (DaViT).
    BetweenChannels(&'static str),
    /// Pooled queries in the first blocks of stages, by `blocks_per_stage`, `num_query_pool_stages` and `query_stride`
    /// (SAM 2).
    PooledQueries,
    /// Differences of pairs of heads, with a factor that depends on the number of the layer (DiffLlama).
    Differential,
    /// Tokens of layers with a window that see, and are seen by, all others (Longformer).
    GlobalTokens,
    /// A gate of the context. Its weight shows whether it is per head or per element.
    Gate {
        activation: GateActivation,
        /// The key that is false or absent if layers have none, with its default.
        switch: Option<(&'static str, bool)>,
    },
    /// A norm of the context.
    ContextNorm {
        kind: NormKind,
        over: NormOver,
        /// Whether it has a weight, which the checkpoint must hold.
        weighted: bool,
    },
    /// An indexer, which chooses all keys up to a number.
    Indexer(MaxKeys),
    /// Keys that are the values, too, in layers without a window, if this key, where there is one, is true (Gemma 4).
    KeysAsValues(Option<&'static str>),
    /// Keys and values of the last layer of its kind before them, in as many last layers as `num_kv_shared_layers`
    /// states (Gemma 3n).
    SharedKeys,
    /// Keys and values of another model, for which this one drafts (Gemma 4's assistants).
    KeysOfOtherModel,
}

/// Latent attention of a family; its sizes are those of the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LatentRow {
    /// The number that norms of latents add to the mean square; `None`: the key `rms_norm_eps`.
    pub eps: Option<f64>,
    /// Whether normalized latents are multiplied by `(hidden_size / rank)^0.5` (LongCat).
    pub scaled: bool,
    /// Whether an indexer chooses the keys, at most as many as the key `index_topk` states (DeepSeek-V3.2).
    pub indexed: bool,
    /// Whether `partial_rotary_factor` states the rotated share of a whole query head (Mistral 4).
    pub states_share: bool,
}

/// Up to how many keys an indexer chooses all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaxKeys {
    /// The product of these two keys: a number of blocks, and the size of a block.
    Blocks(&'static str, &'static str),
    /// The value of the first key, and the tokens after the last whole block, whose size is the second key.
    WholeBlocks(&'static str, &'static str),
    /// As many blocks of tokens as the key states, of the size that the weights show, and the tokens after them.
    Compressed(&'static str),
}

/// A factor on queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryFactor {
    /// The value of this key (`qk_scale_factor` in Muse Glimmer).
    Key(&'static str),
    /// A learned one for each element of a head, times `log2(e) / sqrt(head_dim)` (TimesFM 2.5).
    Softplus,
    /// A learned one for each head, of which the file has the logarithm, up to 100 (Swin v2).
    Exp,
    /// By position, with `llama_4_scaling_beta` and the original length of the rotary parameters (Ministral 3).
    RopeBeta,
    /// By position, with `attn_scale` and `floor_scale`, in layers that are not rotated, if `attn_temperature_tuning`
    /// is set (Llama 4).
    Llama4,
    /// `(1 + (position + 1) / 2048)^0.1` in layers that are not rotated (Beam).
    Beam,
}

/// How numbers and sizes of heads differ between layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadSizes {
    /// Not at all.
    Same,
    /// Lists have an entry per stage (Swin).
    PerStage,
    /// Lists have an entry per stage, whose blocks are layers that `blocks_per_stage` counts (SAM 2).
    PerBlockOfStage,
    /// Layers without a window have `global_head_dim` and `num_global_key_value_heads`, unless `per_layer_config`
    /// states the sizes of each layer. `switch`: the key that must be set for other key-value heads (Gemma 4).
    Global { switch: Option<&'static str> },
    /// As `per_layer_config` states them (Step-3.5).
    PerLayer,
    /// Layers with a window have twice as many key-value heads (MiMo-V2-Flash).
    WindowsDoubleKeys,
}

impl HeadSizes {
    /// Whether the sizes of a layer are those of its stage, which the section does not state alone.
    pub(crate) fn is_per_stage(self) -> bool {
        matches!(self, Self::PerStage | Self::PerBlockOfStage)
    }
}

/// The factor on the scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// `head_dim^-0.5`.
    HeadDim,
    /// None (T5, GPT-Neo).
    One,
    /// `head_dim^-1`, of queries and keys with a mean square of 1: their cosine (Swin v2).
    Cosine,
    /// The number of heads to the power of -0.5 (Evolla's adapters).
    Heads,
    /// `(head_dim / 2)^-0.5` (Zamba, whose layers take twice the hidden size).
    HalfHeadDim,
    /// `query_pre_attn_scalar^-0.5` (Gemma 2).
    QueryPreAttnScalar,
    /// The key `attention_multiplier`, or `head_dim^-0.5` if it has no value (Granite).
    AttentionMultiplier,
    /// `head_dim^-0.5` times the key `key_multiplier` (Falcon-H1 multiplies its keys by it).
    KeyMultiplier,
    /// The key `softmax_scale` of the nested `attn_config`, or `head_dim^-0.5` (MPT).
    Mpt,
    /// Divided by the number of terms (DeBERTa).
    Disentangled,
    /// `head_dim^-0.5` times the square of the factor that `mscale_all_dim` of the rotation states (DeepSeek).
    Mscale,
    /// As the keys `scale_attn_weights` and `scale_attn_by_inverse_layer_idx` have it (GPT-2).
    Gpt2,
}

//! `Family`: one row per published model family, for its attention layers.

use crate::attention::GateActivation;
use crate::config::{CallInput, NormKind, NormOver};
pub(crate) use crate::families::positions::{
    GEMMA_ROTARY, LayerPositions, Mrope, OF_KINDS, PATCH_ROTARY, PatchRotaryRow, PatchWindows, ROTARY, RotaryLayers,
    RotaryRow,
};

/// A published model family. Every column has its usual value in [`BASE`], so that a row states only what differs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    /// The values of `model_type` in `config.json`. Several, if the families differ in nothing that attention uses.
    pub model_types: &'static [&'static str],
    /// The layouts of its layers, by their names: the usual one, then others that are published. A layer in another
    /// layout is not of this family.
    pub layouts: &'static [&'static str],
    /// Keys and values that the code reads only for families that list them: they mean nothing to the others, or
    /// something else.
    pub reads: &'static [&'static str],
    /// Keys of [`keys`](crate::families::keys) that files of the family state and its model does not use.
    pub ignores: &'static [&'static str],
    /// Values of the key `position_embedding_type`, beyond those that `positions` explains.
    pub position_values: &'static [&'static str],
    /// Which layers have causal self-attention.
    pub causal: Causal,
    /// Which layers have a sliding window, and how wide.
    pub window: Window,
    /// How attention is made aware of positions.
    pub positions: LayerPositions,
    /// The factor on the scores.
    pub scale: Scale,
    /// The key for the cap on the scores.
    pub softcap: Option<&'static str>,
    /// Whether the key `clip_qkv` limits queries, keys and values.
    pub clip_qkv: bool,
    /// Formula and extent of the norms of queries and keys, if the checkpoint holds them. `None`: it must not.
    pub qk_norm: Option<(NormKind, NormOver)>,
    /// The gate of the context, which layers have, or do not have if its key says so.
    pub gate: Option<GateRow>,
    /// How many keys there may be in layers with an indexer; `None`: they must not have one.
    pub max_keys: Option<MaxKeys>,
    /// The norm of the context, which layers have.
    pub context_norm: Option<ContextNormRow>,
    /// What norms of queries and keys add to the variance, whatever `config.json` states; `None`: what it states.
    pub qk_norm_eps: Option<f64>,
    /// What happens between projection and scores beside those norms and the rotation.
    pub steps: StepsRow,
    /// Whether the last layers, as many as the key `num_kv_shared_layers` states, have the keys and values of the last
    /// layer of their kind before them.
    pub shares_keys: bool,
    /// Whether all layers have the keys and values of another model, for which this one drafts (Gemma 4's assistants).
    pub drafts: bool,
    /// The key that, if it is set, makes the keys of layers without a window their values; an empty one is always set.
    pub keys_as_values: Option<&'static str>,
    /// How the sizes of heads differ between layers.
    pub head_sizes: HeadSizes,
    /// The key for the size of the chunks inside which layers attend that `layer_types` lists as chunked, or, without
    /// it, those that are rotated.
    pub chunks: Option<&'static str>,
    /// Values of numeric keys that `config.json` may leave out, as the config class of the family has them. A key that
    /// is `null` has no value.
    pub defaults: &'static [(&'static str, f64)],
    /// The component of the prefixes of layers with attention between channels.
    pub between_channels: Option<&'static str>,
    /// Whether the first blocks of stages pool their queries, as `blocks_per_stage`, `num_query_pool_stages` and
    /// `query_stride` say (SAM 2).
    pub pools_queries: bool,
    /// Whether pairs of heads are subtracted, with a factor that depends on the number of the layer (DiffLlama).
    pub differential: bool,
    /// Whether tokens of layers with a window may be global (Longformer).
    pub global_tokens: bool,
    /// What the family does with latents, if its keys and values are made of them.
    pub latent: Option<LatentRow>,
    /// Whether sizes and numbers of heads in `config.json` are lists with an entry per stage (Swin).
    pub stages: bool,
    /// Keys that the configuration must state, because the config class computes what files leave out.
    pub states: &'static [&'static str],
    /// Keys that the configuration must not set, each with what it sets.
    pub refuses: &'static [(&'static str, &'static str)],
    /// Keys that the configuration must state with these values, each with what another value sets.
    pub needs: &'static [(&'static str, &'static str, &'static str)],
    /// The component of the prefixes of the layers that need them; `None`: all.
    pub needs_below: Option<&'static str>,
    /// Parts of the model that this version cannot run as they run there: components of prefixes, each with the reason.
    pub unsupported_parts: &'static [(&'static str, &'static str)],
    /// Components of the prefixes of layers that have a share of the stated heads, each with what divides it.
    pub shares_of_heads: &'static [(&'static str, usize)],
    /// Whether the section of the model's text is of this row, whatever family it states, because the whole model masks
    /// its text in its own way (Gemma 3, PaliGemma).
    pub masks_text: bool,
    /// What each call has to give, in which layers.
    pub requires: &'static [Required],
    /// What a layer cannot know and a call has to say, for [`ModelAttention`](crate::checkpoint::ModelAttention).
    pub note: Option<&'static str>,
    /// Why this version cannot run the family as its own model does.
    pub unsupported: Option<&'static str>,
}

/// What each call of some layers has to give.
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

/// The layouts of BERT and of the encoders made from it.
pub(crate) const BERT: &[&str] = &["bert", "flax-bert"];
/// The layout of BART, and of towers and speech encoders made from its code.
pub(crate) const BART: &[&str] = &["bart"];
/// The layout of Llama, which is also this crate's own.
pub(crate) const OWN: &[&str] = &["candle-attention"];

/// The note of text models with images inside.
pub(crate) const IMAGES: &str = "the mask is that of text: in the model, the tokens of an image also see one another";

/// The note of a model that masks the patches of its last layers.
pub(crate) const PREDICTED: &str = "the mask is that of a trained model: while it trains, queries see the patches of \
    their predicted segments";

/// The note of latents that see a context and themselves.
pub(crate) const LATENTS: &str =
    "keys and values are made of the context followed by the latents, which are the queries";

/// The usual value of each column.
pub(crate) const BASE: Family = Family {
    model_types: &[],
    layouts: BERT,
    reads: &[],
    ignores: &[],
    position_values: &[],
    causal: Causal::Never,
    window: Window { layers: WindowLayers::None, key: "sliding_window", sides: Sides::Each },
    positions: LayerPositions::FromWeights,
    scale: Scale::HeadDim,
    softcap: None,
    clip_qkv: false,
    qk_norm: Some((NormKind::Layer, NormOver::Head)),
    gate: None,
    max_keys: None,
    context_norm: None,
    qk_norm_eps: None,
    steps: StepsRow {
        norm_after_rotation: false,
        weightless_norm: WeightlessNorm::None,
        query_factor: QueryFactor::None,
        value_norm: false,
        value_rotation: None,
        key_factor: None,
        value_factor: None,
    },
    shares_keys: false,
    drafts: false,
    keys_as_values: None,
    head_sizes: HeadSizes::Same,
    chunks: None,
    defaults: &[],
    between_channels: None,
    pools_queries: false,
    differential: false,
    global_tokens: false,
    latent: None,
    stages: false,
    states: &[],
    refuses: &[],
    needs: &[],
    needs_below: None,
    unsupported_parts: &[],
    shares_of_heads: &[],
    masks_text: false,
    requires: &[],
    note: None,
    unsupported: None,
};

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
    /// Those whose prefix contains `decoder`, in models of an encoder and a decoder.
    Decoder,
    /// Those below this component of the prefix (the language model of BLIP).
    Below(&'static str),
    /// Those of the text tower, in models of a text and a vision tower whose configuration states `eos_token_id`.
    TextTower,
}

/// A gate between the heads and the output projection. Its weight shows what it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateRow {
    /// What makes a gate of the projection.
    pub activation: GateActivation,
    /// The key that is false or absent if layers have none, with its default.
    pub switch: Option<(&'static str, bool)>,
}

/// Up to how many keys an indexer chooses all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaxKeys {
    /// As many as these two keys have together: a number of blocks, and the size of a block.
    Blocks(&'static str, &'static str),
    /// As the first key has it, and the tokens after the last whole block, whose size is the second key.
    WholeBlocks(&'static str, &'static str),
    /// As many blocks of tokens as the key states, of the size that the weights show, and the tokens after them.
    Compressed(&'static str),
}

/// A norm between the heads and the output projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextNormRow {
    pub kind: NormKind,
    pub over: NormOver,
    /// Whether it has a weight, which the checkpoint must hold.
    pub weighted: bool,
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

/// What the width of a bidirectional window counts.
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

/// Latent attention of a family; its sizes are those of the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LatentRow {
    /// What the norms of latents add to the mean square; `None`: the key `rms_norm_eps`.
    pub eps: Option<f64>,
    /// Whether normalized latents are multiplied by `(hidden_size / rank)^0.5` (LongCat).
    pub scaled: bool,
    /// Whether an indexer chooses the keys, at most as many as the key `index_topk` states (DeepSeek-V3.2).
    pub indexed: bool,
    /// Whether `partial_rotary_factor` states the rotated share of a whole query head (Mistral 4).
    pub states_share: bool,
}

/// What a family does between projection and scores, beside norms of queries and keys that have weights, and rotation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepsRow {
    /// Whether norms of queries and keys come after the rotation.
    pub norm_after_rotation: bool,
    /// RMS norms of queries and keys without weights.
    pub weightless_norm: WeightlessNorm,
    /// The last factor on queries.
    pub query_factor: QueryFactor,
    /// Whether values have an RMS norm without weights.
    pub value_norm: bool,
    /// The key that, if it is true, makes values be rotated, too; an empty one always is.
    pub value_rotation: Option<&'static str>,
    /// A factor on keys.
    pub key_factor: Option<f64>,
    /// The key for a factor on values.
    pub value_factor: Option<&'static str>,
}

/// Which layers have RMS norms of queries and keys without weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightlessNorm {
    /// None.
    None,
    /// All.
    Always,
    /// Those of queries alone (DeepSeek V4).
    Queries,
    /// Those that are rotated, unless `use_qk_norm` is false (Llama 4).
    IfRotated,
}

/// A factor on queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryFactor {
    /// None.
    None,
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

/// How the sizes of heads differ between layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadSizes {
    /// Not at all.
    Same,
    /// Layers without a window have `global_head_dim` and `num_global_key_value_heads`, unless `per_layer_config`
    /// states the sizes of each layer. `switch`: the key that must be set for other key-value heads (Gemma 4).
    Global { switch: Option<&'static str> },
    /// As `per_layer_config` states them (Step-3.5).
    PerLayer,
    /// Layers with a window have twice as many key-value heads (MiMo-V2-Flash).
    WindowsDoubleKeys,
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

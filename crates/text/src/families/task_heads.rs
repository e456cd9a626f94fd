//! Task heads of whole models: tensor names and activations, as transformers' `For…` classes have them.

use candle_nn::Activation;

/// The activation of a task head.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HeadActivation {
    /// Always this one.
    Fixed(Activation),
    /// `tanh`, which `candle_nn::Activation` lacks.
    Tanh,
    /// That of the blocks, `hidden_act`.
    Hidden,
    /// That of a config key, by default GELU.
    Stated(&'static str),
}

/// The layers of a head before its last projection: `norm(activation(dense(x)))`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadLayers {
    pub dense: &'static str,
    /// Whether `dense` is the model's own pooler, with the model's prefix before its name.
    pub pooler: bool,
    /// Whether the bias of `dense` may be absent.
    pub optional_bias: bool,
    pub activation: HeadActivation,
    pub norm: Option<&'static str>,
}

impl HeadLayers {
    pub const fn new(dense: &'static str, activation: HeadActivation, norm: Option<&'static str>) -> Self {
        Self { dense, pooler: false, optional_bias: false, activation, norm }
    }
}

/// A head for sequence classification, `last(first(x))`, where `x` is the first token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassifierHead {
    pub first: HeadLayers,
    pub last: &'static str,
    /// The config key that may select the mean of all tokens instead of the first.
    pub pooling_key: Option<&'static str>,
    /// Whether `x` is the last token that does not pad, and the head is the product with the weight of `last`
    /// (decoders).
    pub last_token: bool,
}

/// A head for token classification, `last(x)`, or `last(first(x))` where there is a `first` (ModernBERT).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenClassifierHead {
    pub first: Option<HeadLayers>,
    pub last: &'static str,
}

impl TokenClassifierHead {
    pub const BERT: Self = Self { first: None, last: "classifier" };
}

/// A head for masked language modeling, `E first(x) + b`, where `E` is the table of word embeddings or the decoder's
/// own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MaskedLmHead {
    /// Where its bias may be absent, that of the decoder may be, too, if `decoder_bias` is false.
    pub first: HeadLayers,
    pub decoder: &'static str,
    /// The bias of the decoder, if its name is not `decoder` plus `.bias`.
    pub bias: &'static str,
}

impl ClassifierHead {
    pub const BERT: Self = Self {
        first: HeadLayers { pooler: true, ..HeadLayers::new("pooler.dense", HeadActivation::Tanh, None) },
        last: "classifier",
        pooling_key: None,
        last_token: false,
    };
    pub const ROBERTA: Self = Self {
        first: HeadLayers::new("classifier.dense", HeadActivation::Tanh, None),
        last: "classifier.out_proj",
        ..Self::BERT
    };
    pub const DECODER: Self =
        Self { first: HeadLayers { pooler: false, ..Self::BERT.first }, last: "score", last_token: true, ..Self::BERT };
}

impl MaskedLmHead {
    pub const BERT: Self = Self {
        first: HeadLayers::new(
            "cls.predictions.transform.dense",
            HeadActivation::Hidden,
            Some("cls.predictions.transform.LayerNorm"),
        ),
        decoder: "cls.predictions.decoder",
        bias: "cls.predictions.bias",
    };
    pub const ROBERTA: Self = Self {
        first: HeadLayers::new("lm_head.dense", HeadActivation::Fixed(Activation::Gelu), Some("lm_head.layer_norm")),
        decoder: "lm_head.decoder",
        bias: "lm_head.bias",
    };
}

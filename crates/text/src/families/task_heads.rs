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

/// A head for sequence classification, `last(norm(activation(first(x))))`, where `x` is the first token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassifierHead {
    /// Whether `first` is the model's own pooler, with the model's prefix before its name.
    pub pooler: bool,
    pub first: &'static str,
    /// Whether the bias of `first` may be absent.
    pub optional_bias: bool,
    pub activation: HeadActivation,
    pub norm: Option<&'static str>,
    pub last: &'static str,
    /// The config key that may select the mean of all tokens instead of the first.
    pub pooling_key: Option<&'static str>,
    /// Whether `x` is the last token that does not pad, and the head is the product with the weight of `last`
    /// (decoders).
    pub last_token: bool,
}

/// A head for token classification, `last(x)`, or `last(norm(activation(first(x))))` where there is a `first`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenClassifierHead {
    pub first: Option<TokenClassifierFirst>,
    pub last: &'static str,
}

/// The layers of a head for token classification before its last projection (ModernBERT).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenClassifierFirst {
    /// Its bias may be absent.
    pub dense: &'static str,
    pub activation: HeadActivation,
    pub norm: &'static str,
}

impl TokenClassifierHead {
    pub const BERT: Self = Self { first: None, last: "classifier" };
}

/// A head for masked language modeling, `E norm(activation(first(x))) + b`, where `E` is the table of word embeddings
/// or the decoder's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MaskedLmHead {
    pub first: &'static str,
    pub activation: HeadActivation,
    pub norm: &'static str,
    pub decoder: &'static str,
    /// The bias of the decoder, if its name is not `decoder` plus `.bias`.
    pub bias: &'static str,
    /// Whether biases may be absent: that of `first`, and that of the decoder if `decoder_bias` is false.
    pub optional_bias: bool,
}

impl ClassifierHead {
    pub const BERT: Self = Self {
        pooler: true,
        first: "pooler.dense",
        optional_bias: false,
        activation: HeadActivation::Tanh,
        norm: None,
        last: "classifier",
        pooling_key: None,
        last_token: false,
    };
    pub const ROBERTA: Self =
        Self { pooler: false, first: "classifier.dense", last: "classifier.out_proj", ..Self::BERT };
    pub const DECODER: Self = Self { pooler: false, last: "score", last_token: true, ..Self::BERT };
}

impl MaskedLmHead {
    pub const BERT: Self = Self {
        first: "cls.predictions.transform.dense",
        activation: HeadActivation::Hidden,
        norm: "cls.predictions.transform.LayerNorm",
        decoder: "cls.predictions.decoder",
        bias: "cls.predictions.bias",
        optional_bias: false,
    };
    pub const ROBERTA: Self = Self {
        first: "lm_head.dense",
        activation: HeadActivation::Fixed(Activation::Gelu),
        norm: "lm_head.layer_norm",
        decoder: "lm_head.decoder",
        bias: "lm_head.bias",
        ..Self::BERT
    };
}

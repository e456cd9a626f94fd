use crate::error::{Error, Result};
use crate::macros::setters;
use crate::position::{LayerSizes, Position};

/// How a query is compared with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scoring {
    /// `q · k · scale`, with `scale = head_dim^-0.5` unless set ([Vaswani 2017](https://arxiv.org/abs/1706.03762)).
    #[default]
    ScaledDotProduct,
    /// `w · tanh(q + k) · scale`, with one vector `w` of `head_dim` numbers a head and `scale = 1` unless set
    /// ([Bahdanau 2015](https://arxiv.org/abs/1409.0473)).
    Additive,
}

/// How a norm of queries or keys is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) · weight` ([Zhang 2019](https://arxiv.org/abs/1910.07467)).
    Rms,
    /// As `Rms`, times `1 + weight` (Gemma).
    RmsOffset,
    /// `(x - mean) / sqrt(var + eps) · weight + bias` ([Ba 2016](https://arxiv.org/abs/1607.06450)).
    Layer,
}

/// Which numbers a norm of queries or keys takes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormOver {
    /// Those of one head.
    Head,
    /// Those of all heads of a token (OLMo 2).
    AllHeads,
}

/// A norm of queries and one of keys, between projection and positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    /// The formula.
    pub kind: NormKind,
    /// Over what.
    pub over: NormOver,
    /// Added to the mean square or variance.
    pub eps: f64,
}

/// Which projections of a fresh layer have a bias. A loaded layer has those that its checkpoint holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectionBias {
    /// Bias of the query projection.
    pub q: bool,
    /// Bias of the key projection.
    pub k: bool,
    /// Bias of the value projection.
    pub v: bool,
    /// Bias of the output projection.
    pub o: bool,
}

impl ProjectionBias {
    /// Every projection has a bias.
    pub const ALL: Self = Self { q: true, k: true, v: true, o: true };
    /// No projection has a bias.
    pub const NONE: Self = Self { q: false, k: false, v: false, o: false };
}

/// The numbers of an attention layer, named as Hugging Face configurations name them.
///
/// Only `hidden_size` and `num_attention_heads` are needed; `None` means the default said beside each field.
/// [`validate`](Self::validate) runs wherever a layer is made.
///
/// ```
/// use candle_attention::AttentionConfig;
/// let config = AttentionConfig::new(384, 12).with_num_key_value_heads(4).with_dropout(0.1);
/// assert_eq!((config.head_dim(), config.num_key_value_heads()), (32, 4));
/// let error = AttentionConfig::new(384, 7).validate().unwrap_err();
/// assert!(error.to_string().contains("num_attention_heads = 7"));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AttentionConfig {
    /// Width of the model: the default for all four sizes below.
    pub hidden_size: usize,
    /// Number of query heads; 0 where all have been pruned, which needs `head_dim`.
    pub num_attention_heads: usize,
    /// Number of key and value heads, a divisor of `num_attention_heads`; default `num_attention_heads`.
    pub num_key_value_heads: Option<usize>,
    /// Numbers a head for queries and keys; default `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// Numbers a head for values; default `head_dim`.
    pub value_head_dim: Option<usize>,
    /// Width of the query input; default `hidden_size`.
    pub query_size: Option<usize>,
    /// Width of the key input (`kdim` in PyTorch); default `hidden_size`.
    pub key_size: Option<usize>,
    /// Width of the value input (`vdim` in PyTorch); default `hidden_size`.
    pub value_size: Option<usize>,
    /// Width of the output; default `hidden_size`.
    pub output_size: Option<usize>,
    /// Which projections of a fresh layer have a bias; default all.
    pub bias: ProjectionBias,
    /// Factor on the scores; default as said at [`Scoring`] and [`Disentangled`](crate::position::Disentangled).
    pub scale: Option<f64>,
    /// How a query is compared with a key; default scaled dot product.
    pub scoring: Scoring,
    /// How the layer knows positions; default not at all.
    pub position: Position,
    /// Scores become `softcap · tanh(score / softcap)` (`attn_logit_softcapping` in Gemma 2); default no.
    pub softcap: Option<f64>,
    /// Queries, keys and values are limited to `-clip_qkv ..= clip_qkv` (MPT, OLMo); default no.
    pub clip_qkv: Option<f64>,
    /// Norms of queries and keys; default none.
    pub qk_norm: Option<QkNorm>,
    /// Share of attention weights dropped when training, in `[0, 1)`; default 0.
    pub dropout: f64,
    /// A fresh layer learns one more key and value, seen by every query (`add_bias_kv` in PyTorch); default false.
    pub add_bias_kv: bool,
    /// One more key and value of zeros, seen by every query (`add_zero_attn` in PyTorch); default false.
    pub add_zero_attn: bool,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $field:ident, $default:expr;)*) => {$(
        $(#[$doc])*
        pub fn $field(&self) -> usize {
            let default: fn(&Self) -> usize = $default;
            self.$field.unwrap_or_else(|| default(self))
        }
    )*};
}

impl AttentionConfig {
    /// A layer of width `hidden_size` with `num_attention_heads` heads, everything else at its default.
    pub fn new(hidden_size: usize, num_attention_heads: usize) -> Self {
        Self {
            hidden_size,
            num_attention_heads,
            num_key_value_heads: None,
            head_dim: None,
            value_head_dim: None,
            query_size: None,
            key_size: None,
            value_size: None,
            output_size: None,
            bias: ProjectionBias::ALL,
            scale: None,
            scoring: Scoring::default(),
            position: Position::None,
            softcap: None,
            clip_qkv: None,
            qk_norm: None,
            dropout: 0.0,
            add_bias_kv: false,
            add_zero_attn: false,
        }
    }

    setters! {
        /// Sets the number of key and value heads.
        with_num_key_value_heads, num_key_value_heads: usize = Some(num_key_value_heads);
        /// Sets the numbers a head for queries and keys.
        with_head_dim, head_dim: usize = Some(head_dim);
        /// Sets the numbers a head for values.
        with_value_head_dim, value_head_dim: usize = Some(value_head_dim);
        /// Sets the width of the query input.
        with_query_size, query_size: usize = Some(query_size);
        /// Sets the width of the key input.
        with_key_size, key_size: usize = Some(key_size);
        /// Sets the width of the value input.
        with_value_size, value_size: usize = Some(value_size);
        /// Sets the width of the output.
        with_output_size, output_size: usize = Some(output_size);
        /// Sets which projections of a fresh layer have a bias.
        with_bias, bias: ProjectionBias = bias;
        /// Sets the factor on the scores.
        with_scale, scale: f64 = Some(scale);
        /// Sets how a query is compared with a key.
        with_scoring, scoring: Scoring = scoring;
        /// Sets how the layer knows positions.
        with_position, position: Position = position;
        /// Sets the cap on the scores.
        with_softcap, softcap: f64 = Some(softcap);
        /// Sets the limit of queries, keys and values.
        with_clip_qkv, clip_qkv: f64 = Some(clip_qkv);
        /// Sets the norms of queries and keys.
        with_qk_norm, qk_norm: QkNorm = Some(qk_norm);
        /// Sets the share of attention weights dropped when training.
        with_dropout, dropout: f64 = dropout;
        /// Sets whether a fresh layer learns one more key and value.
        with_add_bias_kv, add_bias_kv: bool = add_bias_kv;
        /// Sets whether one more key and value of zeros is seen.
        with_add_zero_attn, add_zero_attn: bool = add_zero_attn;
    }

    getters! {
        /// Number of key and value heads.
        num_key_value_heads, |c| c.num_attention_heads;
        /// Numbers a head for queries and keys.
        head_dim, |c| c.hidden_size.checked_div(c.num_attention_heads).unwrap_or(0);
        /// Numbers a head for values.
        value_head_dim, |c| c.head_dim();
        /// Width of the query input.
        query_size, |c| c.hidden_size;
        /// Width of the key input.
        key_size, |c| c.hidden_size;
        /// Width of the value input.
        value_size, |c| c.hidden_size;
        /// Width of the output.
        output_size, |c| c.hidden_size;
    }

    /// The factor on the scores.
    pub fn scale(&self) -> f64 {
        self.scale.unwrap_or_else(|| match self.scoring {
            Scoring::Additive => 1.0,
            Scoring::ScaledDotProduct => {
                let head_dim = self.head_dim();
                self.position.scheme().default_scale(head_dim).unwrap_or_else(|| (head_dim as f64).powf(-0.5))
            }
        })
    }

    /// The sizes that a position scheme needs.
    pub(crate) fn sizes(&self) -> LayerSizes {
        LayerSizes {
            hidden_size: self.hidden_size,
            query_size: self.query_size(),
            key_size: self.key_size(),
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads(),
            head_dim: self.head_dim(),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Config`] with the field, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("hidden_size", Some(self.hidden_size)),
            ("num_attention_heads", Some(self.num_attention_heads)),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("value_head_dim", self.value_head_dim),
            ("query_size", self.query_size),
            ("key_size", self.key_size),
            ("value_size", self.value_size),
            ("output_size", self.output_size),
        ];
        for (field, size) in sizes {
            // A tensor of this many rows and columns could not be addressed; it also keeps the products below exact.
            match size {
                // All of them pruned: the size of none tells nothing, so that it has to be said.
                Some(0) if field.ends_with("heads") && self.num_attention_heads == 0 && self.head_dim.is_some() => {}
                Some(0) => return Err(Error::config(field, 0, "at least 1")),
                Some(n) if n > MAX_SIZE => return Err(Error::config(field, n, format!("at most {MAX_SIZE}"))),
                _ => {}
            }
        }
        let heads = self.num_attention_heads;
        if self.head_dim.is_none() && !self.hidden_size.is_multiple_of(heads) {
            let allowed = format!("a divisor of hidden_size = {}, or head_dim set", self.hidden_size);
            return Err(Error::config("num_attention_heads", heads, allowed));
        }
        if !heads.is_multiple_of(self.num_key_value_heads()) || (heads == 0) != (self.num_key_value_heads() == 0) {
            let allowed = format!("a divisor of num_attention_heads = {heads}");
            return Err(Error::config("num_key_value_heads", self.num_key_value_heads(), allowed));
        }
        if let Some(scale) = self.scale.filter(|scale| !(*scale as f32).is_finite()) {
            return Err(Error::config("scale", scale, "a finite number"));
        }
        let positive = [("softcap", self.softcap), ("clip_qkv", self.clip_qkv)];
        for (field, value) in positive {
            if let Some(value) = value.filter(|value| !((*value as f32).is_finite() && *value as f32 > 0.0)) {
                return Err(Error::config(field, value, "a positive number"));
            }
        }
        self.position.scheme().validate(&self.sizes())?;
        if let Some(norm) = self.qk_norm.filter(|norm| !((norm.eps as f32).is_finite() && norm.eps >= 0.0)) {
            return Err(Error::config("qk_norm eps", norm.eps, "a finite number from 0"));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::config("dropout", self.dropout, "a number in [0, 1)"));
        }
        Ok(())
    }
}

/// Upper bound of every size and count in a configuration.
const MAX_SIZE: usize = 1 << 24;

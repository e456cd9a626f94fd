//! `AttentionConfig`: the validated configuration of an attention layer.

mod call_input;
mod combinations;
mod latent;
mod mechanism;
mod steps;

pub use call_input::CallInput;
pub use latent::LatentAttention;
pub(crate) use mechanism::{MechanismConfig, MechanismConfigs};
pub use steps::{Factor, HeadNorm, Step, Steps};

use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ops::{expected_dropout, expected_factor, expected_limit};
use crate::position::{LayerSizes, Position};
use crate::setters;

/// The scoring function between a query and a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scoring {
    /// `q · k · scale`, with `scale = head_dim^-0.5` unless set ([Vaswani 2017](https://arxiv.org/abs/1706.03762)).
    #[default]
    ScaledDotProduct,
    /// `w · tanh(q + k) · scale`, with a learned vector `w` of `head_dim` elements per head and `scale = 1` unless set
    /// ([Bahdanau 2015](https://arxiv.org/abs/1409.0473)).
    Additive,
}

/// The formula of a norm of queries, keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormKind {
    /// RMS norm: `x / sqrt(mean(x²) + eps) · weight` ([Zhang 2019](https://arxiv.org/abs/1910.07467)).
    Rms,
    /// RMS norm with the factor `1 + weight` (Gemma).
    RmsOffset,
    /// Layer norm: `(x - mean) / sqrt(var + eps) · weight + bias` ([Ba 2016](https://arxiv.org/abs/1607.06450)).
    Layer,
}

impl NormKind {
    /// Whether it is an RMS norm, and what is added to its weight.
    pub(crate) fn rms_and_offset(self) -> (bool, f32) {
        (self != Self::Layer, if self == Self::RmsOffset { 1.0 } else { 0.0 })
    }
}

/// The elements over which a norm of queries, keys or values takes its mean and variance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormOver {
    /// The `head_dim` elements of one head.
    Head,
    /// All heads of a token together (OLMo 2).
    AllHeads,
}

/// Where a layer has its keys and values from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyValueSource {
    /// A projection of its own for each.
    #[default]
    Projections,
    /// One projection for both (`attention_k_eq_v` in Gemma 4): values are the keys as they are projected, before any
    /// step, and have steps of their own.
    KeysAsValues,
    /// Another layer (`num_kv_shared_layers` in Gemma 3n), or another model (Gemma 4's assistants): the layer projects
    /// queries alone, and each call gives it the [`KeyValues`](crate::KeyValues) of the other one.
    Shared {
        /// The number of the other layer in its model, if it is known: for people and error messages.
        layer: Option<usize>,
    },
}

/// Which projections of a new layer have a bias: [`ALL`](Self::ALL), [`NONE`](Self::NONE), or one of them with a
/// difference, such as `ProjectionBias::ALL.with_k(false)`. A loaded layer has the biases that its checkpoint contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProjectionBias {
    /// Whether the query projection has a bias.
    pub q: bool,
    /// Whether the key projection has a bias.
    pub k: bool,
    /// Whether the value projection has a bias.
    pub v: bool,
    /// Whether the output projection has a bias.
    pub o: bool,
}

impl ProjectionBias {
    /// Every projection has a bias.
    pub const ALL: Self = Self { q: true, k: true, v: true, o: true };
    /// No projection has a bias.
    pub const NONE: Self = Self { q: false, k: false, v: false, o: false };

    setters! {
        /// Sets whether the query projection has a bias.
        with_q, q: bool = q;
        /// Sets whether the key projection has a bias.
        with_k, k: bool = k;
        /// Sets whether the value projection has a bias.
        with_v, v: bool = v;
        /// Sets whether the output projection has a bias.
        with_o, o: bool = o;
    }
}

/// The configuration of an attention layer, with the names of Hugging Face's `config.json`.
///
/// Only `hidden_size` and `num_attention_heads` are required. `None` selects the default that each field documents, and
/// the `resolved_…` methods return the value after defaults. Every constructor of a layer calls
/// [`validate`](Self::validate).
///
/// ```
/// use candle_attention::AttentionConfig;
/// let config = AttentionConfig::new(384, 12).with_num_key_value_heads(4).with_dropout(0.1);
/// assert_eq!((config.resolved_head_dim(), config.resolved_num_key_value_heads()), (32, 4));
/// let error = AttentionConfig::new(384, 7).validate().unwrap_err();
/// assert!(error.to_string().contains("num_attention_heads = 7"));
/// ```
///
/// Two configurations are equal if they describe the same layer: a size or a scale that is stated equals one that is
/// left to its default if the values are the same.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttentionConfig {
    /// Size of the model's hidden states: the default of `query_size`, `key_size`, `value_size` and `output_size`.
    pub hidden_size: usize,
    /// Number of query heads; 0 if all have been pruned, in which case `head_dim` has to be set.
    pub num_attention_heads: usize,
    /// Number of key-value heads, a divisor of `num_attention_heads`; default `num_attention_heads`.
    pub num_key_value_heads: Option<usize>,
    /// Size of each query and key head; default `hidden_size / num_attention_heads`. All heads together have at most
    /// 2^24 elements.
    pub head_dim: Option<usize>,
    /// Size of each value head; default `head_dim`.
    pub value_head_dim: Option<usize>,
    /// Size of the query input; default `hidden_size`.
    pub query_size: Option<usize>,
    /// Size of the key input (`kdim` in PyTorch); default `hidden_size`.
    pub key_size: Option<usize>,
    /// Size of the value input (`vdim` in PyTorch); default `hidden_size`.
    pub value_size: Option<usize>,
    /// Size of the output; default `hidden_size`.
    pub output_size: Option<usize>,
    /// Which projections have a bias. In a new layer: default all. Of a loaded layer it says which biases its
    /// checkpoint holds.
    pub bias: ProjectionBias,
    /// Factor on the scores, of magnitude up to 1e15; default `head_dim^-0.5` for dot products, except with
    /// [`Disentangled`](crate::position::Disentangled) positions, and 1 for additive scoring.
    pub scale: Option<f64>,
    /// The scoring function; default scaled dot product.
    pub scoring: Scoring,
    /// The position scheme; default none.
    pub position: Position,
    /// The mask of every call of the layer, besides the one that the call gives: full, causal, a window, chunks or a
    /// function ([`from_fn`](AttentionMask::from_fn)); default full. With it `forward` of a decoder's layer needs no
    /// argument. It holds for cross-attention calls too, where the last query is aligned with the last key: a layer
    /// that is used for both leaves it to the calls. A copy can have
    /// [another one](crate::MultiHeadAttention::with_mask).
    pub mask: AttentionMask,
    /// Scores become `softcap · tanh(score / softcap)` (`attn_logit_softcapping` in Gemma 2), with a softcap from 1e-15
    /// to 1e15; default no. Products of queries with distances are a part of the score (Gemma 3n's audio); biases are
    /// added to what is capped.
    pub softcap: Option<f64>,
    /// Norms, rotation and factors between projection and scores; default a rotation, if the position scheme has one.
    pub steps: Steps,
    /// Where keys and values come from; default projections of their own.
    pub key_value_source: KeyValueSource,
    /// Keys and values made of one latent vector per token; default no. The sizes of heads follow from it.
    pub latent: Option<LatentAttention>,
    /// Dropout probability of attention weights in training, in `[0, 1)`; default 0.
    pub dropout: f64,
    /// The inputs that each call has to give beyond its tokens; default none. Without them, a call is an error.
    pub requires: Vec<CallInput>,
    /// The model type that requires them, for that error; known of a layer that is loaded with its `config.json`.
    pub model_type: Option<&'static str>,
    /// The mechanisms beyond projecting, scoring, softmax, summing values and projecting back; by default none.
    pub(crate) mechanisms: MechanismConfigs,
}

impl PartialEq for AttentionConfig {
    fn eq(&self, other: &Self) -> bool {
        self.resolved() == other.resolved()
    }
}

impl AttentionConfig {
    /// Everything that makes the layer what it is, after defaults.
    fn resolved(&self) -> impl PartialEq {
        // Every field, so that a new one is not forgotten.
        let Self {
            hidden_size,
            num_attention_heads,
            num_key_value_heads: _,
            head_dim: _,
            value_head_dim: _,
            query_size: _,
            key_size: _,
            value_size: _,
            output_size: _,
            bias,
            scale: _,
            scoring,
            position,
            mask,
            softcap,
            steps: _,
            key_value_source,
            latent,
            dropout,
            requires,
            model_type: _,
            mechanisms,
        } = self;
        let heads = [*num_attention_heads, self.resolved_num_key_value_heads()];
        let head_dims = [self.resolved_head_dim(), self.resolved_value_head_dim()];
        let inputs = [self.resolved_query_size(), self.resolved_key_size(), self.resolved_value_size()];
        let sizes = (*hidden_size, heads, head_dims, inputs, self.resolved_output_size());
        let scores = (self.resolved_scale(), scoring, position, mask, softcap, dropout);
        (sizes, scores, bias, self.steps_taken(), key_value_source, latent, requires, mechanisms)
    }

    /// The steps without rotations that the position scheme does not have.
    pub(crate) fn steps_taken(&self) -> Steps {
        let mut steps = self.steps.clone();
        // Latent attention checks for one.
        if !self.position.scheme().traits().rotates && self.latent.is_none() {
            [&mut steps.queries, &mut steps.keys, &mut steps.values]
                .into_iter()
                .for_each(|side| side.retain(|step| *step != Step::Rotate));
        }
        steps
    }
}

macro_rules! getters {
    ($($(#[$doc:meta])* $getter:ident, $field:ident, $default:expr;)*) => {$(
        $(#[$doc])*
        pub fn $getter(&self) -> usize {
            let default: fn(&Self) -> usize = $default;
            self.$field.unwrap_or_else(|| default(self))
        }
    )*};
}

impl AttentionConfig {
    /// A configuration with `num_attention_heads` heads and hidden size `hidden_size`, everything else at its default.
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
            mask: AttentionMask::full(),
            softcap: None,
            steps: Steps::default(),
            key_value_source: KeyValueSource::default(),
            latent: None,
            dropout: 0.0,
            requires: Vec::new(),
            model_type: None,
            mechanisms: MechanismConfigs::default(),
        }
    }

    setters! {
        /// Sets the number of key-value heads.
        with_num_key_value_heads, num_key_value_heads: usize = Some(num_key_value_heads);
        /// Sets the size of each query and key head.
        with_head_dim, head_dim: usize = Some(head_dim);
        /// Sets the size of each value head.
        with_value_head_dim, value_head_dim: usize = Some(value_head_dim);
        /// Sets the size of the query input.
        with_query_size, query_size: usize = Some(query_size);
        /// Sets the size of the key input.
        with_key_size, key_size: usize = Some(key_size);
        /// Sets the size of the value input.
        with_value_size, value_size: usize = Some(value_size);
        /// Sets the size of the output.
        with_output_size, output_size: usize = Some(output_size);
        /// Sets which projections of a new layer have a bias.
        with_bias, bias: ProjectionBias = bias;
        /// Sets the factor on the scores.
        with_scale, scale: f64 = Some(scale);
        /// Sets the scoring function.
        with_scoring, scoring: Scoring = scoring;
        /// Sets the position scheme.
        with_position, position: impl Into<Position> = position.into();
        /// Sets the mask of every call: full, causal, a window, chunks or functions.
        #[doc(alias = "with_causal", alias = "is_causal")]
        with_mask, mask: AttentionMask = mask;
        /// Sets the cap on the scores.
        with_softcap, softcap: f64 = Some(softcap);
        /// Sets the steps between projection and scores.
        with_steps, steps: Steps = steps;
        /// Sets where keys and values come from.
        with_key_value_source, key_value_source: KeyValueSource = key_value_source;
        /// Sets the sizes of latent attention.
        with_latent, latent: LatentAttention = Some(latent);
        /// Sets the dropout probability of attention weights in training.
        with_dropout, dropout: f64 = dropout;
        /// Sets the inputs that each call has to give beyond its tokens.
        with_requires, requires: &[CallInput] = requires.to_vec();
    }

    /// Sets a norm of queries and one of keys with the same formula, before the rotation (Qwen 3): short for
    /// [`with_steps`](Self::with_steps).
    #[must_use]
    pub fn with_qk_norm(mut self, norm: HeadNorm) -> Self {
        self.steps.queries = vec![Step::Norm(norm), Step::Rotate];
        self.steps.keys.clone_from(&self.steps.queries);
        self
    }

    getters! {
        /// Number of key-value heads, after defaults.
        resolved_num_key_value_heads, num_key_value_heads, |c| {
            c.latent.map_or(c.num_attention_heads, |latent| latent.key_value_heads(c))
        };
        /// Size of each query and key head, after defaults.
        resolved_head_dim, head_dim, |c| match &c.latent {
            Some(latent) => latent.head_dim(),
            None => c.hidden_size.checked_div(c.num_attention_heads).unwrap_or(0),
        };
        /// Size of each value head, after defaults.
        resolved_value_head_dim, value_head_dim, |c| {
            c.latent.map_or_else(|| c.resolved_head_dim(), |latent| latent.v_head_dim)
        };
        /// Size of the query input, after defaults.
        resolved_query_size, query_size, |c| c.hidden_size;
        /// Size of the key input, after defaults.
        resolved_key_size, key_size, |c| c.hidden_size;
        /// Size of the value input, after defaults.
        resolved_value_size, value_size, |c| match c.latent {
            Some(_) => c.resolved_key_size(),
            None => c.hidden_size,
        };
        /// Size of the output, after defaults.
        resolved_output_size, output_size, |c| c.hidden_size;
    }

    /// The factor on the scores, after defaults.
    pub fn resolved_scale(&self) -> f64 {
        self.scale.unwrap_or_else(|| match self.scoring {
            Scoring::Additive => 1.0,
            Scoring::ScaledDotProduct => {
                let head_dim = self.resolved_head_dim();
                self.position.scheme().default_scale(head_dim).unwrap_or_else(|| (head_dim as f64).powf(-0.5))
            }
        })
    }

    /// Elements of the input of the output projection.
    pub(crate) fn context_size(&self) -> usize {
        let heads = self.num_attention_heads * self.resolved_value_head_dim();
        self.mechanisms.iter().find_map(|part| part.context_size(self)).unwrap_or(heads)
    }

    /// Whether attention runs on other queries, keys and values than are projected: between channels, of pooled
    /// queries, or of pairs of heads.
    pub(crate) fn reshapes(&self) -> bool {
        self.mechanisms.iter().any(MechanismConfig::reshapes)
    }

    /// Whether the input of the queries is projected to something else, too.
    pub(crate) fn projects_more(&self) -> bool {
        self.mechanisms.iter().any(MechanismConfig::projects_more)
    }

    /// Whether there are keys beside those of the tokens.
    pub(crate) fn extends_keys(&self) -> bool {
        self.mechanisms.iter().any(MechanismConfig::extends_keys)
    }

    /// Elements that a cache holds per token for mechanisms.
    pub(crate) fn cached_size(&self) -> usize {
        self.mechanisms.iter().map(|part| part.cached_size(self)).sum()
    }

    /// Whether queries, keys or values have any step but the rotation.
    pub(crate) fn has_steps(&self) -> bool {
        let Steps { queries, keys, values } = &self.steps;
        [queries, keys, values].into_iter().flatten().any(|step| !matches!(step, Step::Rotate))
    }

    /// The sizes that a position scheme needs.
    pub(crate) fn sizes(&self) -> LayerSizes {
        LayerSizes {
            hidden_size: self.hidden_size,
            query_size: self.resolved_query_size(),
            key_size: self.resolved_key_size(),
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.resolved_num_key_value_heads(),
            // Of a latent layer the rotated elements are a head of their own.
            head_dim: self.latent.map_or_else(|| self.resolved_head_dim(), |latent| latent.qk_rope_head_dim),
            value_head_dim: self.resolved_value_head_dim(),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Config`] with the first invalid field, its value and the allowed values.
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
            // No tensor of this size could be addressed; the limit also keeps the products below exact.
            match size {
                // If all heads are pruned, their size does not follow from their number and has to be set.
                Some(0) if field.ends_with("heads") && self.num_attention_heads == 0 && self.head_dim.is_some() => {}
                Some(0) => return Err(Error::config(field, 0, "at least 1")),
                Some(n) if n > MAX_SIZE => return Err(Error::config(field, n, format!("at most {MAX_SIZE}"))),
                _ => {}
            }
        }
        let heads = self.num_attention_heads;
        if let Some(latent) = &self.latent {
            latent.validate(self)?;
        } else if self.head_dim.is_none() && !self.hidden_size.is_multiple_of(heads) {
            let allowed = format!("a divisor of hidden_size = {}, or head_dim set", self.hidden_size);
            return Err(Error::config("num_attention_heads", heads, allowed));
        }
        if !heads.is_multiple_of(self.resolved_num_key_value_heads())
            || (heads == 0) != (self.resolved_num_key_value_heads() == 0)
        {
            let allowed = format!("a divisor of num_attention_heads = {heads}");
            return Err(Error::config("num_key_value_heads", self.resolved_num_key_value_heads(), allowed));
        }
        let numbers = [
            ("scale", self.scale, self.scale.and_then(expected_factor)),
            ("softcap", self.softcap, self.softcap.and_then(expected_limit)),
            ("dropout", Some(self.dropout), expected_dropout(self.dropout)),
        ];
        for (field, value, expected) in numbers {
            if let (Some(value), Some(expected)) = (value, expected) {
                return Err(Error::config(field, value, expected));
            }
        }
        self.position.scheme().validate(&self.sizes())?;
        if !self.mask.fits_any_length() {
            let allowed = "full, causal, a window, chunks or functions; a mask of other kinds belongs to a call";
            return Err(Error::config("mask", &self.mask, allowed));
        }
        let d = [self.resolved_head_dim(), self.resolved_value_head_dim()];
        for (field, d) in [("head_dim", d[0]), ("value_head_dim", d[1])] {
            if heads * d > MAX_SIZE {
                let allowed = format!("at most {MAX_SIZE} elements in all of the {heads} heads");
                return Err(Error::config(field, d, allowed));
            }
        }
        self.steps.validate(self.position.scheme().traits().rotates)?;
        if self.steps.rotate_values() && (d[0] != d[1] || self.latent.is_some()) {
            return Err(Error::config("value_head_dim", d[1], format!("{}: values are rotated as keys are", d[0])));
        }
        if let (Some(cap), Position::RelativeSinusoids(scheme)) = (self.softcap, &self.position)
            && !scheme.in_halves
        {
            return Err(Error::config("softcap", cap, "none beside relative sinusoids with vectors"));
        }
        self.mechanisms.iter().try_for_each(|part| part.validate(self))?;
        self.check_key_value_source()
    }
}

/// Upper bound of every size and count in a configuration, and of the elements in all heads of a token. It keeps every
/// product of two of them exact; the largest published models have 32,768 elements in all heads.
pub(crate) const MAX_SIZE: usize = 1 << 24;

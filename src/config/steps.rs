//! Steps between projection and scores: norms, the rotation and factors, for queries, keys and values.
//!
//! Families agree on the steps and differ in their order: Qwen 3 normalizes and then rotates, HunYuan rotates and then
//! normalizes, Gemma 4 normalizes values too. So a layer has a list of steps for each side instead of a flag for each
//! combination.

use crate::config::{MAX_SIZE, NormKind, NormOver};
use crate::ensure;
use crate::error::{Error, Result};
use crate::setters;

/// A norm of queries, keys or values.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct HeadNorm {
    /// The formula: RMS norm, RMS norm with offset, or layer norm.
    pub kind: NormKind,
    /// Whether each head is normalized by itself, or all heads of a token together.
    pub over: NormOver,
    /// Added to the mean square or the variance before the square root; finite, at least 0.
    pub eps: f64,
    /// Whether the norm has a learned weight; default true. Without one the result has a mean square of 1, whatever the
    /// formula ("L2 norm" in Llama 4, `with_scale=False` in Gemma 4).
    pub weighted: bool,
}

impl HeadNorm {
    /// RMS norm of each head with a learned weight, as in Qwen 3.
    pub fn rms(eps: f64) -> Self {
        Self::new(NormKind::Rms, NormOver::Head, eps)
    }

    /// A norm with a learned weight.
    pub fn new(kind: NormKind, over: NormOver, eps: f64) -> Self {
        Self { kind, over, eps, weighted: true }
    }

    setters! {
        /// Sets whether the norm has a learned weight.
        with_weighted, weighted: bool = weighted;
    }

    /// Checks the norm of `what`.
    pub(crate) fn validate(&self, what: impl FnOnce() -> String) -> Result<()> {
        if (self.eps as f32).is_finite() && self.eps >= 0.0 {
            Ok(())
        } else {
            Err(Error::value(what(), self.eps, "a finite number from 0"))
        }
    }
}

/// A factor on queries, keys or values.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Factor {
    /// One number for all elements (`attention_value_scale` in MiMo-V2-Flash).
    Constant(f64),
    /// `1 + beta · ln(1 + ⌊(position + offset) / length⌋)` for each token: scores of late queries become sharper
    /// ([Nakanishi 2025](https://arxiv.org/abs/2501.19399)). Ministral 3 has offset 0, Llama 4 offset 1.
    ///
    /// Positions are those of the rotation: from the call, from the end of a cache, or 0, 1, 2, ….
    LogPosition {
        /// The growth; finite.
        beta: f64,
        /// Tokens that share a factor: the length of training, at least 1.
        length: usize,
        /// Added to each position.
        offset: usize,
    },
    /// `(1 + (position + 1) / length)^exponent` for each token (Beam), of the same positions.
    PowerPosition {
        /// The growth; finite.
        exponent: f64,
        /// The length of training, at least 1.
        length: usize,
    },
    /// `exp(min(w, max))` with a learned `w` for each head, of queries alone (`logit_scale` in Swin v2).
    Exp {
        /// The largest exponent; finite.
        max: f64,
    },
    /// `softplus(w) · scale` with a learned `w` for each element of a head (`per_dim_scale` in TimesFM).
    Softplus {
        /// The factor on all elements, of magnitude up to 1e15.
        scale: f64,
    },
}

/// One step between projection and scores.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// A norm.
    Norm(HeadNorm),
    /// The rotation of the position scheme. A scheme that does not rotate does nothing here.
    Rotate,
    /// A factor.
    Factor(Factor),
}

/// The steps of each side, in order. The default is a rotation of queries and keys.
///
/// ```
/// use candle_attention::{AttentionConfig, Factor, HeadNorm, NormKind, NormOver, Step, Steps};
/// // HunYuan: the norm comes after the rotation. MiMo: a factor on the values.
/// let norm = Step::Norm(HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-5));
/// let steps = Steps::default()
///     .with_queries(vec![Step::Rotate, norm])
///     .with_keys(vec![Step::Rotate, norm])
///     .with_values(vec![Step::Factor(Factor::Constant(0.707))]);
/// AttentionConfig::new(64, 4).with_steps(steps).validate()?;
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Steps {
    /// Steps of the queries.
    pub queries: Vec<Step>,
    /// Steps of the keys.
    pub keys: Vec<Step>,
    /// Steps of the values, which few models rotate (CLVP).
    pub values: Vec<Step>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { queries: vec![Step::Rotate], keys: vec![Step::Rotate], values: Vec::new() }
    }
}

/// Names of the sides, in the order of their projections.
const SIDES: [&str; 3] = ["queries", "keys", "values"];

impl Steps {
    setters! {
        /// Sets the steps of the queries.
        with_queries, queries: Vec<Step> = queries;
        /// Sets the steps of the keys.
        with_keys, keys: Vec<Step> = keys;
        /// Sets the steps of the values.
        with_values, values: Vec<Step> = values;
    }

    /// Steps of queries, keys and values.
    pub(crate) fn sides(&self) -> [&[Step]; 3] {
        [&self.queries, &self.keys, &self.values]
    }

    /// The norms of a side (0: queries, 1: keys, 2: values), in order.
    pub(crate) fn norms(&self, side: usize) -> impl Iterator<Item = &HeadNorm> {
        self.sides()[side].iter().filter_map(|step| if let Step::Norm(norm) = step { Some(norm) } else { None })
    }

    /// The norm of a side that has a learned weight.
    pub(crate) fn weighted_norm(&self, side: usize) -> Option<&HeadNorm> {
        self.norms(side).find(|norm| norm.weighted)
    }

    /// Whether a side has a learned factor.
    pub(crate) fn has_learned_factor(&self, side: usize) -> bool {
        self.sides()[side].iter().any(|step| matches!(step, Step::Factor(Factor::Softplus { .. })))
    }

    /// Whether queries have a learned factor for each head.
    pub(crate) fn has_factor_of_heads(&self) -> bool {
        self.queries.iter().any(|step| matches!(step, Step::Factor(Factor::Exp { .. })))
    }

    /// Whether a factor follows the positions of the tokens.
    pub(crate) fn follow_positions(&self) -> bool {
        self.sides()
            .into_iter()
            .flatten()
            .any(|step| matches!(step, Step::Factor(Factor::LogPosition { .. } | Factor::PowerPosition { .. })))
    }

    /// Whether values are rotated, too.
    pub(crate) fn rotate_values(&self) -> bool {
        self.values.contains(&Step::Rotate)
    }

    /// Checks every step. `rotates`: whether the position scheme of the layer rotates.
    pub(super) fn validate(&self, rotates: bool) -> Result<()> {
        for (side, (steps, name)) in self.sides().into_iter().zip(SIDES).enumerate() {
            let field = |what: &str| format!("steps of {name}: {what}");
            for step in steps {
                step.validate(&field)?;
            }
            let rotations = steps.iter().filter(|step| **step == Step::Rotate).count();
            let allowed = if side == 2 { 0..=usize::from(rotates) } else { usize::from(rotates)..=1 };
            if !allowed.contains(&rotations) {
                let expected = match side {
                    2 => "none, or one where the position scheme rotates",
                    _ => "one where the position scheme rotates, never more",
                };
                return Err(Error::value(field("rotations"), rotations, expected));
            }
            let weighted = self.norms(side).filter(|norm| norm.weighted).count();
            ensure!(weighted <= 1, Error::value(field("norms with a weight"), weighted, "at most 1"));
            let learned = steps.iter().filter(|step| matches!(step, Step::Factor(Factor::Softplus { .. }))).count();
            ensure!(learned <= 1, Error::value(field("learned factors"), learned, "at most 1"));
            let head_factors = steps.iter().filter(|step| matches!(step, Step::Factor(Factor::Exp { .. }))).count();
            if head_factors > usize::from(side == 0) {
                return Err(Error::value(field("factors of heads"), head_factors, "at most 1, of queries"));
            }
        }
        Ok(())
    }
}

impl Step {
    fn validate(&self, field: &dyn Fn(&str) -> String) -> Result<()> {
        match *self {
            Self::Rotate => Ok(()),
            Self::Norm(norm) => norm.validate(|| field("eps")),
            Self::Factor(Factor::Constant(factor) | Factor::Softplus { scale: factor }) => {
                match crate::ops::expected_factor(factor) {
                    Some(expected) => Err(Error::value(field("factor"), factor, expected)),
                    None => Ok(()),
                }
            }
            Self::Factor(Factor::Exp { max }) if (max as f32).exp().is_finite() => Ok(()),
            Self::Factor(Factor::Exp { max }) => Err(Error::value(field("max"), max, "at most 88")),
            Self::Factor(Factor::PowerPosition { exponent, length }) => {
                ensure!((exponent as f32).is_finite(), Error::value(field("exponent"), exponent, "a finite number"));
                match length {
                    0 => Err(Error::value(field("length"), length, "at least 1")),
                    _ => Ok(()),
                }
            }
            Self::Factor(Factor::LogPosition { beta, length, offset }) => {
                ensure!((beta as f32).is_finite(), Error::value(field("beta"), beta, "a finite number"));
                ensure!(length != 0, Error::value(field("length"), length, "at least 1"));
                if offset > MAX_SIZE {
                    Err(Error::value(field("offset"), offset, format!("at most {MAX_SIZE}")))
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl Factor {
    /// The factor of a token at `position`; 1 for one that is learned.
    pub(crate) fn at(self, position: usize) -> f64 {
        match self {
            Self::Constant(factor) => factor,
            Self::LogPosition { beta, length, offset } => {
                1.0 + beta * (1.0 + (position.saturating_add(offset) / length) as f64).ln()
            }
            Self::PowerPosition { exponent, length } => (1.0 + (position as f64 + 1.0) / length as f64).powf(exponent),
            Self::Softplus { .. } | Self::Exp { .. } => 1.0,
        }
    }
}

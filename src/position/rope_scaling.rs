//! Context extension for rotary positions: how frequencies change for sequences longer than those of training.

use std::f64::consts::TAU;
use std::fmt;

use crate::ensure;
use crate::error::{Error, Result};

/// How the frequencies of [`Rotary`](crate::position::Rotary) change for sequences longer than those of training. All
/// lengths are in tokens.
///
/// With `Dynamic` and `LongRope` they depend on the length of the sequence: its number of tokens without padding, or
/// one more than its largest position if a call gives positions. Each sequence of a batch has a length of its own, so
/// that its result does not depend on the others; transformers takes the longest of the batch. With a
/// [`KvCache`](crate::KvCache) a call that changes the frequencies of tokens in the cache is
/// [`Error::CachedRotation`](crate::Error::CachedRotation).
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// Frequencies do not change.
    #[default]
    None,
    /// Positions divided by `factor` ([Chen 2023](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// The new maximum length divided by the original one.
        factor: f64,
    },
    /// NTK-aware scaling: a larger base for sequences longer than the original maximum, depending on their length.
    Dynamic {
        /// The new maximum length divided by the original one.
        factor: f64,
        /// The maximum length in training.
        original_max_position_embeddings: usize,
    },
    /// NTK-aware scaling whatever the length of the sequence: a larger base, and all frequencies divided a little more;
    /// or, with `mixed_b`, frequencies divided by factors that grow with their index ([Su
    /// 2023](https://kexue.fm/archives/9706)). GTE's own code has both.
    Ntk {
        /// The new maximum length divided by the original one; 1 or less changes nothing.
        factor: f64,
        /// The power of the index by which the logarithms of the factors grow.
        mixed_b: Option<f64>,
    },
    /// YaRN ([Peng 2023](https://arxiv.org/abs/2309.00071)): low frequencies are divided as in `Linear`, high ones
    /// stay, those between are interpolated.
    Yarn {
        /// The new maximum length divided by the original one.
        factor: f64,
        /// The maximum length in training.
        original_max_position_embeddings: usize,
        /// Rotations over the original length above which a frequency stays; 32 in the paper.
        beta_fast: f64,
        /// Rotations below which a frequency is divided; 1 in the paper.
        beta_slow: f64,
        /// Factor on queries and keys; `None` is `0.1 · ln(factor) + 1`.
        attention_factor: Option<f64>,
        /// Whether the interpolation begins and ends at whole frequency indices.
        truncate: bool,
    },
    /// LongRoPE ([Ding 2024](https://arxiv.org/abs/2402.13753)): each frequency is divided by a factor of its own, with
    /// one set of factors for short sequences and one for long ones.
    LongRope {
        /// Factors for sequences up to the original maximum, one per frequency.
        short_factor: Vec<f64>,
        /// Factors for longer sequences, one per frequency.
        long_factor: Vec<f64>,
        /// The maximum length in training.
        original_max_position_embeddings: usize,
        /// Factor on queries and keys.
        attention_factor: f64,
    },
    /// Gemma 4: the first pairs turn as usual, divided by a factor, the others not at all. Unlike a rotation of a part
    /// of the head, wavelengths and partners are those of the whole head.
    Proportional {
        /// How many pairs turn, at most half of the rotated elements.
        pairs: usize,
        /// The divisor of the frequencies.
        factor: f64,
    },
    /// Llama 3: long wavelengths are divided, short ones stay, those between are interpolated.
    Llama3 {
        /// The new maximum length divided by the original one.
        factor: f64,
        /// The maximum length in training.
        original_max_position_embeddings: usize,
        /// The original length divided by the longest interpolated wavelength.
        low_freq_factor: f64,
        /// The original length divided by the shortest interpolated wavelength.
        high_freq_factor: f64,
    },
}

impl fmt::Display for RotaryScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Linear { factor } => write!(f, "linear {factor}"),
            Self::Dynamic { factor, .. } => write!(f, "dynamic {factor}"),
            Self::Ntk { factor, .. } => write!(f, "ntk {factor}"),
            Self::Yarn { factor, .. } => write!(f, "yarn {factor}"),
            Self::LongRope { .. } => f.write_str("longrope"),
            Self::Proportional { pairs, .. } => write!(f, "proportional, {pairs} pairs"),
            Self::Llama3 { factor, .. } => write!(f, "llama3 {factor}"),
        }
    }
}

impl RotaryScaling {
    /// [`Llama3`](Self::Llama3) with the wavelengths of Llama 3.1 to 3.3: `low_freq_factor` 1, `high_freq_factor` 4.
    pub fn llama3(factor: f64, original_max_position_embeddings: usize) -> Self {
        Self::Llama3 { factor, original_max_position_embeddings, low_freq_factor: 1.0, high_freq_factor: 4.0 }
    }

    /// [`Yarn`](Self::Yarn) with the numbers of its paper.
    pub fn yarn(factor: f64, original_max_position_embeddings: usize) -> Self {
        let (beta_fast, beta_slow, attention_factor, truncate) = (32.0, 1.0, None, true);
        Self::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow, attention_factor, truncate }
    }

    /// Whether the frequencies depend on the length of the sequence.
    pub(crate) fn depends_on_length(&self) -> bool {
        matches!(self, Self::Dynamic { .. } | Self::LongRope { .. })
    }

    /// A number that two lengths share if and only if they have the same frequencies.
    pub(crate) fn class(&self, length: usize) -> usize {
        match *self {
            Self::Dynamic { original_max_position_embeddings: original, .. } => length.max(original),
            Self::LongRope { original_max_position_embeddings: original, .. } => usize::from(length > original),
            _ => 0,
        }
    }

    /// Checks the fields for `dim` rotated elements per head and base `theta`.
    pub(crate) fn validate(&self, theta: f64, dim: usize) -> Result<()> {
        let (factor, original) = match self {
            Self::None => return Ok(()),
            Self::LongRope { short_factor, long_factor, original_max_position_embeddings, .. } => {
                for (field, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                    if factors.len() != dim / 2 || !factors.iter().all(|f| f.is_finite() && *f > 0.0) {
                        let found = format!("{} numbers", factors.len());
                        return Err(Error::config(field, found, format!("{} positive ones", dim / 2)));
                    }
                }
                (1.0, *original_max_position_embeddings)
            }
            Self::Proportional { pairs, .. } if *pairs > dim / 2 => {
                let allowed = format!("at most {}, those of a head", dim / 2);
                return Err(Error::config("rope_scaling pairs", pairs, allowed));
            }
            Self::Linear { factor } | Self::Ntk { factor, .. } | Self::Proportional { factor, .. } => (*factor, 1),
            Self::Dynamic { factor, original_max_position_embeddings: original }
            | Self::Yarn { factor, original_max_position_embeddings: original, .. }
            | Self::Llama3 { factor, original_max_position_embeddings: original, .. } => (*factor, *original),
        };
        let attention = match self {
            Self::Yarn { attention_factor, .. } => attention_factor.unwrap_or(1.0),
            Self::LongRope { attention_factor, .. } => *attention_factor,
            _ => 1.0,
        };
        // As f32, in which elements are rotated.
        if !((attention as f32).is_finite() && attention as f32 > 0.0) {
            return Err(Error::config("rope_scaling attention_factor", attention, "a positive number"));
        }
        match self {
            // The interpolation takes logarithms to the base theta.
            Self::Yarn { .. } if theta <= 1.0 => {
                return Err(Error::config("rope_theta", theta, "more than 1 for yarn"));
            }
            Self::Yarn { beta_fast: high, beta_slow: low, .. } if !is_range(*low, *high) => {
                let allowed = format!("from 0 to {high}, beta_fast");
                return Err(Error::config("rope_scaling beta_slow", low, allowed));
            }
            Self::Llama3 { low_freq_factor: low, high_freq_factor: high, .. } if !is_range(*low, *high) => {
                let allowed = format!("from 0 to {high}, high_freq_factor");
                return Err(Error::config("rope_scaling low_freq_factor", low, allowed));
            }
            Self::Ntk { mixed_b: Some(power), .. } if !power.is_finite() => {
                return Err(Error::config("rope_scaling mixed_b", power, "a finite number"));
            }
            Self::Dynamic { .. } if dim < 4 => {
                return Err(Error::config("rotary dim", dim, "at least 4 for dynamic scaling"));
            }
            _ => {}
        }
        if !(factor.is_finite() && factor > 0.0) {
            return Err(Error::config("rope_scaling factor", factor, "a positive number"));
        }
        ensure!(original != 0, Error::config("original_max_position_embeddings", 0, "at least 1"));
        // Factors next to 0 are positive, but the frequencies divided by them overflow.
        let lengths = [original, original.saturating_add(1)];
        for length in &lengths[..if self.depends_on_length() { 2 } else { 1 }] {
            let (frequencies, _) = self.frequencies(theta, dim, *length);
            if let Some(fastest) = frequencies.iter().find(|f| !(**f as f32).is_finite()) {
                return Err(Error::config("rope_scaling", fastest, "frequencies that fit into f32"));
            }
        }
        Ok(())
    }

    /// The frequency of each of `dim / 2` pairs, in radians per position, and the factor on rotated elements, for a
    /// sequence of `length` tokens.
    pub(crate) fn frequencies(&self, theta: f64, dim: usize, length: usize) -> (Vec<f64>, f64) {
        let from_base = |base: f64| (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64)).collect::<Vec<_>>();
        let unscaled = from_base(theta);
        match *self {
            Self::None => (unscaled, 1.0),
            Self::LongRope { ref short_factor, ref long_factor, attention_factor, .. } => {
                let factors = if self.class(length) > 0 { long_factor } else { short_factor };
                (unscaled.into_iter().zip(factors).map(|(f, factor)| f / factor).collect(), attention_factor)
            }
            Self::Linear { factor } => (unscaled.into_iter().map(|f| f / factor).collect(), 1.0),
            Self::Proportional { pairs, factor } => {
                let turned = |(i, f): (usize, f64)| if i < pairs { f / factor } else { 0.0 };
                (unscaled.into_iter().enumerate().map(turned).collect(), 1.0)
            }
            Self::Dynamic { factor, original_max_position_embeddings: original } => {
                let length = length.max(original) as f64;
                let grown = factor * length / original as f64 - (factor - 1.0);
                (from_base(theta * grown.powf(dim as f64 / (dim as f64 - 2.0))), 1.0)
            }
            Self::Ntk { factor, .. } if factor <= 1.0 => (unscaled, 1.0),
            Self::Ntk { factor, mixed_b: None } => {
                let divisor = factor.powf(2.0 / dim as f64);
                (from_base(theta * factor).into_iter().map(|f| f / divisor).collect(), 1.0)
            }
            Self::Ntk { factor, mixed_b: Some(power) } => {
                let scale = factor.ln() / (dim as f64 / 2.0).powf(power);
                let divided = |(i, f): (usize, f64)| f / (scale * ((i + 1) as f64).powf(power)).exp();
                (unscaled.into_iter().enumerate().map(divided).collect(), 1.0)
            }
            Self::Yarn {
                factor,
                original_max_position_embeddings: original,
                beta_fast,
                beta_slow,
                attention_factor,
                truncate,
            } => {
                let original = original as f64;
                // The fractional index of the frequency with so many rotations over the original length.
                let index = |rotations: f64| dim as f64 * (original / (rotations * TAU)).ln() / (2.0 * theta.ln());
                let (low, high) = (index(beta_fast), index(beta_slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, mut high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let interpolated = |(i, f): (usize, f64)| {
                    let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * divided + f * (1.0 - divided)
                };
                let attention = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                (unscaled.into_iter().enumerate().map(interpolated).collect(), attention_factor.unwrap_or(attention))
            }
            Self::Llama3 { factor, original_max_position_embeddings: original, low_freq_factor, high_freq_factor } => {
                let original = original as f64;
                let interpolated = |f: f64| {
                    let rotations = original * f / TAU;
                    let kept = (rotations - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    match rotations {
                        rotations if rotations < low_freq_factor => f / factor,
                        rotations if rotations > high_freq_factor => f,
                        _ => (1.0 - kept) * f / factor + kept * f,
                    }
                };
                (unscaled.into_iter().map(interpolated).collect(), 1.0)
            }
        }
    }
}

/// Whether two positive numbers are the ends of a range.
fn is_range(low: f64, high: f64) -> bool {
    low > 0.0 && low < high && high.is_finite()
}

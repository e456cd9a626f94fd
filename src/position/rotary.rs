use candle_core::{D, DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::macros::setters;
use crate::position::rope_cache;
use crate::position::rope_cache::Kind;

/// Which numbers of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RotaryStyle {
    /// Number `i` with number `i + dim / 2` (Llama, GPT-NeoX).
    #[default]
    HalfSplit,
    /// Number `2 i` with number `2 i + 1` (GPT-J, Cohere, the paper).
    Interleaved,
}

/// How the frequencies are changed for texts longer than those of the training.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// Not at all.
    #[default]
    None,
    /// Positions divided by `factor` ([Chen 2023](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// How many times longer.
        factor: f64,
    },
    /// A larger base for texts longer than the original maximum, by how long the text is.
    Dynamic {
        /// How many times longer.
        factor: f64,
        /// The longest text of the training.
        original_max_position_embeddings: usize,
    },
    /// YaRN ([Peng 2023](https://arxiv.org/abs/2309.00071)): low frequencies as in `Linear`, high ones as they are, a
    /// ramp between.
    Yarn {
        /// How many times longer.
        factor: f64,
        /// The longest text of the training.
        original_max_position_embeddings: usize,
        /// Turns over the original length above which a frequency stays; 32 in the paper.
        beta_fast: f64,
        /// Turns below which it is divided; 1 in the paper.
        beta_slow: f64,
        /// Factor on queries and keys alike; `None` is `0.1 · ln(factor) + 1`.
        attention_factor: Option<f64>,
        /// Whether the ends of the ramp are rounded to whole frequencies.
        truncate: bool,
    },
    /// LongRoPE ([Ding 2024](https://arxiv.org/abs/2402.13753)): each frequency divided by a factor of its own, one set for
    /// short and one for long texts.
    LongRope {
        /// For texts up to the original maximum; as many as frequencies.
        short_factor: Vec<f64>,
        /// For longer ones.
        long_factor: Vec<f64>,
        /// The longest text of the training.
        original_max_position_embeddings: usize,
        /// Factor on queries and keys alike.
        attention_factor: f64,
    },
    /// Llama 3's: long wavelengths divided, short ones as they are, a ramp between.
    Llama3 {
        /// How many times longer.
        factor: f64,
        /// The longest text of the training.
        original_max_position_embeddings: usize,
        /// The original length over the longest wavelength that is blended.
        low_freq_factor: f64,
        /// The original length over the shortest wavelength that is blended.
        high_freq_factor: f64,
    },
}

/// Rotary position embedding ([Su 2021](https://arxiv.org/abs/2104.09864)).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rotary {
    /// The base of the wavelengths.
    pub theta: f64,
    /// How many numbers of a head are rotated, from the first; `None` is all.
    pub dim: Option<usize>,
    /// Which ones together.
    pub style: RotaryStyle,
    /// For long texts.
    pub scaling: RotaryScaling,
}

impl Default for Rotary {
    fn default() -> Self {
        Self { theta: 10_000.0, dim: None, style: RotaryStyle::default(), scaling: RotaryScaling::default() }
    }
}

impl Rotary {
    setters! {
        /// Sets the base.
        with_theta, theta: f64 = theta;
        /// Sets how many numbers are rotated.
        with_dim, dim: usize = Some(dim);
        /// Sets which ones together.
        with_style, style: RotaryStyle = style;
        /// Sets the scaling for long texts.
        with_scaling, scaling: RotaryScaling = scaling;
    }

    pub(crate) fn validate(&self, head_dim: usize) -> Result<()> {
        let dim = self.dim.unwrap_or(head_dim);
        if dim == 0 || !dim.is_multiple_of(2) || dim > head_dim {
            return Err(Error::config("rotary dim", dim, format!("an even number up to head_dim = {head_dim}")));
        }
        // Below 1 the numbers turn faster the later they come, next to 0 by more than a float holds.
        if !(self.theta.is_finite() && self.theta >= 1.0) {
            return Err(Error::config("rope_theta", self.theta, "at least 1"));
        }
        let (factor, original) = match &self.scaling {
            RotaryScaling::None => return Ok(()),
            RotaryScaling::LongRope { short_factor, long_factor, original_max_position_embeddings, .. } => {
                for (field, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                    if factors.len() != dim / 2 || !factors.iter().all(|f| f.is_finite() && *f > 0.0) {
                        let found = format!("{} numbers", factors.len());
                        return Err(Error::config(field, found, format!("{} positive ones", dim / 2)));
                    }
                }
                (1.0, *original_max_position_embeddings)
            }
            RotaryScaling::Linear { factor } => (*factor, 1),
            RotaryScaling::Dynamic { factor, original_max_position_embeddings: original }
            | RotaryScaling::Yarn { factor, original_max_position_embeddings: original, .. }
            | RotaryScaling::Llama3 { factor, original_max_position_embeddings: original, .. } => (*factor, *original),
        };
        let attention = match &self.scaling {
            RotaryScaling::Yarn { attention_factor, .. } => attention_factor.unwrap_or(1.0),
            RotaryScaling::LongRope { attention_factor, .. } => *attention_factor,
            _ => 1.0,
        };
        if !((attention as f32).is_finite() && attention > 0.0) {
            return Err(Error::config("rope_scaling attention_factor", attention, "a positive number"));
        }
        match &self.scaling {
            // Its ramp is between logarithms to this base.
            RotaryScaling::Yarn { .. } if self.theta <= 1.0 => {
                return Err(Error::config("rope_theta", self.theta, "more than 1 for yarn"));
            }
            RotaryScaling::Yarn { beta_fast: high, beta_slow: low, .. } if !is_range(*low, *high) => {
                return Err(Error::config("rope_scaling beta_slow", low, format!("from 0 to {high}, beta_fast")));
            }
            RotaryScaling::Llama3 { low_freq_factor: low, high_freq_factor: high, .. } if !is_range(*low, *high) => {
                let allowed = format!("from 0 to {high}, high_freq_factor");
                return Err(Error::config("rope_scaling low_freq_factor", low, allowed));
            }
            RotaryScaling::Dynamic { .. } if dim < 4 => {
                return Err(Error::config("rotary dim", dim, "at least 4 for dynamic scaling"));
            }
            _ => {}
        }
        if !(factor.is_finite() && factor > 0.0) {
            return Err(Error::config("rope_scaling factor", factor, "a positive number"));
        }
        if original == 0 {
            return Err(Error::config("original_max_position_embeddings", 0, "at least 1"));
        }
        // Factors next to 0 are positive, but nothing turns so fast.
        for length in [original, original.saturating_add(1)] {
            let (frequencies, _) = self.frequencies(head_dim, length);
            if let Some(fastest) = frequencies.iter().find(|f| !(**f as f32).is_finite()) {
                return Err(Error::config("rope_scaling", fastest, "frequencies that a float holds"));
            }
        }
        Ok(())
    }

    /// Radians a position for each pair of numbers, and the factor on what is rotated, for texts of `length` tokens.
    fn frequencies(&self, head_dim: usize, length: usize) -> (Vec<f64>, f64) {
        let dim = self.dim.unwrap_or(head_dim);
        let of_base = |base: f64| (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64)).collect::<Vec<_>>();
        let plain = of_base(self.theta);
        match self.scaling {
            RotaryScaling::None => (plain, 1.0),
            RotaryScaling::LongRope { ref short_factor, ref long_factor, attention_factor, .. } => {
                let factors = if length > self.original() as usize { long_factor } else { short_factor };
                (plain.into_iter().zip(factors).map(|(f, factor)| f / factor).collect(), attention_factor)
            }
            RotaryScaling::Linear { factor } => (plain.into_iter().map(|f| f / factor).collect(), 1.0),
            RotaryScaling::Dynamic { factor, original_max_position_embeddings: original } => {
                let length = length.max(original) as f64;
                let grown = factor * length / original as f64 - (factor - 1.0);
                (of_base(self.theta * grown.powf(dim as f64 / (dim as f64 - 2.0))), 1.0)
            }
            RotaryScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, truncate, .. } => {
                let original = self.original();
                // The (broken) index of the frequency that turns so often over the original length.
                let index = |turns: f64| {
                    dim as f64 * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (low, high) = (index(beta_fast), index(beta_slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, mut high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let blend = |(i, f): (usize, f64)| {
                    let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * divided + f * (1.0 - divided)
                };
                let attention = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                (plain.into_iter().enumerate().map(blend).collect(), attention_factor.unwrap_or(attention))
            }
            RotaryScaling::Llama3 { factor, low_freq_factor, high_freq_factor, .. } => {
                let original = self.original();
                let blend = |f: f64| {
                    let turns = original * f / std::f64::consts::TAU;
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    match turns {
                        turns if turns < low_freq_factor => f / factor,
                        turns if turns > high_freq_factor => f,
                        _ => (1.0 - kept) * f / factor + kept * f,
                    }
                };
                (plain.into_iter().map(blend).collect(), 1.0)
            }
        }
    }

    fn original(&self) -> f64 {
        match self.scaling {
            RotaryScaling::None | RotaryScaling::Linear { .. } => 1.0,
            RotaryScaling::Dynamic { original_max_position_embeddings: original, .. }
            | RotaryScaling::Yarn { original_max_position_embeddings: original, .. }
            | RotaryScaling::LongRope { original_max_position_embeddings: original, .. }
            | RotaryScaling::Llama3 { original_max_position_embeddings: original, .. } => original as f64,
        }
    }

    /// Cosines and sines of the angles of rows of `s` tokens, the first at `starts`: each `(rows, s, 1, pairs)`.
    pub(crate) fn angles(
        &self,
        starts: &[usize],
        s: usize,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let length = starts.iter().max().map_or(0, |last| last + s);
        let positions = starts.iter().flat_map(|start| *start..start + s);
        let pairs = self.dim.unwrap_or(head_dim) / 2;
        let shape = (starts.len(), s, 1, pairs);
        let shaped = |waves: [Tensor; 2]| {
            let [cos, sin] = waves.map(|wave| wave.reshape(shape));
            Ok([cos?, sin?])
        };
        if self.goes_by_length() || !rope_cache::are_kept(length, head_dim, device)? {
            let waves = self.waves(positions, head_dim, length);
            return shaped(rope_cache::tensors(waves, starts.len() * s, dtype, device)?);
        }
        let make = |rows: usize| Ok(self.waves(0..rows, head_dim, rows));
        let waves = rope_cache::waves(&Kind::Positions(self.clone()), head_dim, length, dtype, device, make)?;
        let [cos, sin] = match starts {
            [start] => waves.map(|wave| wave.narrow(0, *start, s)),
            _ => {
                let places = Tensor::from_iter(positions.map(|position| position as u32), device)?;
                waves.map(|wave| wave.index_select(&places, 0))
            }
        };
        shaped([cos?, sin?])
    }

    /// As [`angles`](Self::angles), of texts of these lengths one after the other, each from position 0:
    /// `(1, tokens, 1, pairs)`.
    pub(crate) fn angles_of_texts(
        &self,
        lengths: impl Iterator<Item = usize> + Clone,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let pairs = self.dim.unwrap_or(head_dim) / 2;
        let longest = lengths.clone().max().unwrap_or(0);
        let common = self.waves(0..longest, head_dim, longest);
        let mut all = [Vec::new(), Vec::new()];
        for length in lengths {
            let own = self.goes_by_length().then(|| self.waves(0..length, head_dim, length));
            let waves = own.as_ref().unwrap_or(&common);
            all.iter_mut().zip(waves).for_each(|(all, wave)| all.extend_from_slice(&wave[..length * pairs]));
        }
        let shape = (1, all[0].len() / pairs.max(1), 1, pairs);
        let [cos, sin] =
            all.map(|wave| Tensor::from_vec(wave, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device));
        Ok([cos?, sin?])
    }

    /// Cosines and sines at each of the positions in a text of `length` tokens, those of the first position's pairs
    /// first.
    pub(crate) fn waves(
        &self,
        positions: impl Iterator<Item = usize>,
        head_dim: usize,
        length: usize,
    ) -> [Vec<f64>; 2] {
        let (frequencies, factor) = self.frequencies(head_dim, length);
        // In f64 and rounded once: the product of a large position and a frequency has few digits left in f32.
        let angles: Vec<f64> = positions.flat_map(|p| frequencies.iter().map(move |f| p as f64 * f)).collect();
        let of = |f: fn(f64) -> f64| angles.iter().map(|&angle| f(angle) * factor).collect();
        [of(f64::cos), of(f64::sin)]
    }

    /// Whether the angles depend on how long the text is.
    pub(crate) fn goes_by_length(&self) -> bool {
        matches!(self.scaling, RotaryScaling::Dynamic { .. } | RotaryScaling::LongRope { .. })
    }
}

/// xs `(b, s, h, d)`, of each head's numbers as many rotated as there are angles `(rows, s, 1, pairs)`. Differentiable.
pub(crate) fn rotate(xs: &Tensor, [cos, sin]: &[Tensor; 2], style: RotaryStyle) -> Result<Tensor> {
    if let Some(ys) = crate::ops::rotate(xs, [cos, sin], style == RotaryStyle::Interleaved)? {
        return Ok(ys);
    }
    let (b, s, h, d) = xs.dims4()?;
    let dim = 2 * cos.dim(D::Minus1)?;
    let rotated = xs.narrow(D::Minus1, 0, dim)?;
    let turn = |first: &Tensor, second: &Tensor| {
        let a = (first.broadcast_mul(cos)? - second.broadcast_mul(sin)?)?;
        let b = (second.broadcast_mul(cos)? + first.broadcast_mul(sin)?)?;
        Ok::<_, Error>((a, b))
    };
    let rotated = match style {
        RotaryStyle::HalfSplit => {
            let half = |i: usize| rotated.narrow(D::Minus1, i * dim / 2, dim / 2);
            let (a, b) = turn(&half(0)?, &half(1)?)?;
            Tensor::cat(&[a, b], D::Minus1)?
        }
        RotaryStyle::Interleaved => {
            let pairs = rotated.reshape((b, s, h, dim / 2, 2))?;
            let one = |i: usize| pairs.narrow(D::Minus1, i, 1)?.squeeze(D::Minus1);
            let (x, y) = turn(&one(0)?, &one(1)?)?;
            Tensor::stack(&[x, y], 4)?.reshape((b, s, h, dim))?
        }
    };
    if dim == d {
        return Ok(rotated);
    }
    Ok(Tensor::cat(&[rotated, xs.narrow(D::Minus1, dim, d - dim)?], D::Minus1)?)
}

/// Whether two positive numbers are the ends of a range.
fn is_range(low: f64, high: f64) -> bool {
    low > 0.0 && low < high && high.is_finite()
}

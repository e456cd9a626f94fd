//! Rotary position embedding (RoPE) for sequences.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::parameters::LayerSizes;
use super::ragged::RaggedBatch;
use super::rope_cache::{self, Growth};
use super::rope_scaling::RotaryScaling;
use super::rotation::{CosSin, RotaryStyle, rotate};
use super::scheme::{PositionScheme, RaggedSupport, TokenPositions};
use crate::error::{Error, Result};
use crate::macros::setters;

/// Rotary position embedding ([Su 2021](https://arxiv.org/abs/2104.09864)): pairs of elements of each query and key are
/// rotated by `position · theta^(-2 i / dim)` radians, `i` being the index of the pair.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rotary {
    /// The base of the wavelengths; default 10,000, at least 1.
    pub theta: f64,
    /// How many elements of a head are rotated, from the first; even. `None`, the default, is all.
    pub dim: Option<usize>,
    /// Which elements form a pair: half-split (GPT-NeoX, the default) or interleaved (GPT-J).
    pub style: RotaryStyle,
    /// Context extension (linear, dynamic NTK, YaRN, LongRoPE, Llama 3); default none.
    pub scaling: RotaryScaling,
}

impl Default for Rotary {
    fn default() -> Self {
        Self { theta: 10_000.0, dim: None, style: RotaryStyle::default(), scaling: RotaryScaling::default() }
    }
}

impl Rotary {
    setters! {
        /// Sets the base of the wavelengths.
        with_theta, theta: f64 = theta;
        /// Sets how many elements of a head are rotated.
        with_dim, dim: usize = Some(dim);
        /// Sets which elements form a pair.
        with_style, style: RotaryStyle = style;
        /// Sets the context extension.
        with_scaling, scaling: RotaryScaling = scaling;
    }

    /// Rotated elements per head.
    fn rotated(&self, head_dim: usize) -> usize {
        self.dim.unwrap_or(head_dim)
    }

    /// Whether the angles depend on the length of the sequence.
    fn depends_on_length(&self) -> bool {
        self.scaling.depends_on_length()
    }

    /// Cosines and sines at each of `positions` in a sequence of `length` tokens: `(positions, pairs)`.
    fn cos_sin(&self, positions: impl Iterator<Item = usize>, head_dim: usize, length: usize) -> [Vec<f64>; 2] {
        let (frequencies, factor) = self.scaling.frequencies(self.theta, self.rotated(head_dim), length);
        // In f64 and rounded once: the product of a large position and a frequency has few digits left in f32.
        let angles: Vec<f64> = positions.flat_map(|p| frequencies.iter().map(move |f| p as f64 * f)).collect();
        let of = |f: fn(f64) -> f64| angles.iter().map(|&angle| f(angle) * factor).collect();
        [of(f64::cos), of(f64::sin)]
    }

    /// Cosines and sines `(sequences, s, 1, pairs)` of `s` tokens per sequence, the first at `starts`.
    fn padded_cos_sin(
        &self,
        starts: &[usize],
        s: usize,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let length = starts.iter().max().map_or(0, |last| last + s);
        let positions = starts.iter().flat_map(|start| *start..start + s);
        let shape = (starts.len(), s, 1, self.rotated(head_dim) / 2);
        let shaped = |cos_sin: [Tensor; 2]| {
            let [cos, sin] = cos_sin.map(|values| values.reshape(shape));
            Ok([cos?, sin?])
        };
        if self.depends_on_length() || !rope_cache::may_cache(length, head_dim, device)? {
            let cos_sin = self.cos_sin(positions, head_dim, length);
            return shaped(rope_cache::tensors(cos_sin, starts.len() * s, dtype, device)?);
        }
        let make = |rows: usize| Ok(self.cos_sin(0..rows, head_dim, rows));
        let table = rope_cache::cos_sin(self, Growth::PowerOfTwo, head_dim, length, dtype, device, make)?;
        let [cos, sin] = match starts {
            [start] => table.map(|values| values.narrow(0, *start, s)),
            _ => {
                let positions = Tensor::from_iter(positions.map(|position| position as u32), device)?;
                table.map(|values| values.index_select(&positions, 0))
            }
        };
        shaped([cos?, sin?])
    }

    /// Cosines and sines `(1, tokens, 1, pairs)` of a ragged batch, whose sequences all begin at position 0.
    fn ragged_cos_sin(
        &self,
        lengths: impl Iterator<Item = usize> + Clone,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let pairs = self.rotated(head_dim) / 2;
        let longest = lengths.clone().max().unwrap_or(0);
        let common = self.cos_sin(0..longest, head_dim, longest);
        let mut all = [Vec::new(), Vec::new()];
        for length in lengths {
            let own = self.depends_on_length().then(|| self.cos_sin(0..length, head_dim, length));
            let cos_sin = own.as_ref().unwrap_or(&common);
            all.iter_mut().zip(cos_sin).for_each(|(all, values)| all.extend_from_slice(&values[..length * pairs]));
        }
        let shape = (1, all[0].len() / pairs.max(1), 1, pairs);
        let [cos, sin] =
            all.map(|values| Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device));
        Ok([cos?, sin?])
    }

    /// Cosines and sines of positions `0 .. length` in f32.
    fn f32_cos_sin(&self, head_dim: usize, length: usize) -> CosSin {
        let [cos, sin] =
            self.cos_sin(0..length, head_dim, length).map(|values| values.into_iter().map(|x| x as f32).collect());
        CosSin { cos, sin, pairs: self.rotated(head_dim) / 2, style: self.style }
    }
}

impl fmt::Display for Rotary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rotary(theta {}", self.theta)?;
        self.dim.iter().try_for_each(|dim| write!(f, ", {dim} numbers"))?;
        if self.style == RotaryStyle::Interleaved {
            f.write_str(", interleaved")?;
        }
        if self.scaling != RotaryScaling::None {
            write!(f, ", {}", self.scaling)?;
        }
        f.write_str(")")
    }
}

impl PositionScheme for Rotary {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        let (dim, head_dim) = (self.rotated(sizes.head_dim), sizes.head_dim);
        if dim == 0 || !dim.is_multiple_of(2) || dim > head_dim {
            return Err(Error::config("rotary dim", dim, format!("an even number up to head_dim = {head_dim}")));
        }
        // Below 1 the frequencies grow with the index of the pair, and overflow f32 if theta is close to 0.
        if !(self.theta.is_finite() && self.theta >= 1.0) {
            return Err(Error::config("rope_theta", self.theta, "at least 1"));
        }
        self.scaling.validate(self.theta, dim)
    }

    fn has_frequency_buffer(&self) -> bool {
        true
    }

    fn ragged_support(&self) -> RaggedSupport {
        RaggedSupport::CpuBuffers
    }

    fn rotates(&self) -> bool {
        true
    }

    fn rotate(&self, q: Tensor, k: Tensor, tokens: &TokenPositions) -> Result<[Tensor; 2]> {
        let (s_q, s_kv, head_dim) = (q.dim(1)?, k.dim(1)?, q.dim(3)?);
        let (dtype, device) = (q.dtype(), q.device());
        let (for_q, for_k) = if let Some(batch) = tokens.ragged {
            let cos_sin = batch.cache.get_or_compute(
                usize::MAX,
                |key: &(Self, usize, DType)| (&key.0, key.1, key.2) == (self, head_dim, dtype),
                || {
                    Ok((
                        (self.clone(), head_dim, dtype),
                        self.ragged_cos_sin(batch.lengths(), head_dim, dtype, device)?,
                    ))
                },
            )?;
            (cos_sin.clone(), cos_sin)
        } else {
            // As for masks, the last query stands at the last key.
            let starts_q: Vec<usize> = tokens.starts.iter().map(|start| start + s_kv.saturating_sub(s_q)).collect();
            let for_q = self.padded_cos_sin(&starts_q, s_q, head_dim, dtype, device)?;
            let for_k = if s_q == s_kv {
                for_q.clone()
            } else {
                self.padded_cos_sin(tokens.starts, s_kv, head_dim, k.dtype(), device)?
            };
            (for_q, for_k)
        };
        Ok([rotate(&q, &for_q, self.style)?, rotate(&k, &for_k, self.style)?])
    }

    fn rotate_in_place(&self, xs: &mut [f32], heads: usize, head_dim: usize, batch: RaggedBatch) -> Result<()> {
        let tokens = batch.offsets.last().copied().unwrap_or(0);
        let width = xs.len().checked_div(tokens).unwrap_or(0);
        let longest = batch.longest();
        let mut rest = xs;
        for length in batch.lengths().filter(|length| *length > 0) {
            let (sequence, after) = rest.split_at_mut(length * width);
            rest = after;
            // One table for all sequences, unless the angles depend on their length.
            let of = if self.depends_on_length() { length } else { longest };
            let cos_sin = batch.cache.get_or_compute(
                usize::MAX,
                |key: &(Self, usize, usize)| (&key.0, key.1, key.2) == (self, head_dim, of),
                || Ok(((self.clone(), head_dim, of), Arc::new(self.f32_cos_sin(head_dim, of)))),
            )?;
            cos_sin.rotate_sequence(sequence, width, heads, head_dim);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(tensor: &Tensor) -> Vec<f64> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn cached_angles_equal_computed_ones() {
        let cpu = Device::Cpu;
        let plain = Rotary::default();
        let all = [
            plain.clone(),
            plain.clone().with_dim(6),
            plain.clone().with_theta(500.0),
            plain.clone().with_scaling(RotaryScaling::Linear { factor: 2.0 }),
            plain.clone().with_scaling(RotaryScaling::Dynamic { factor: 2.0, original_max_position_embeddings: 8 }),
        ];
        for (starts, s) in [(vec![0], 5), (vec![40], 1), (vec![3, 0, 70], 9), (vec![0], 200), (vec![7], 0)] {
            for rotary in &all {
                let length = starts.iter().max().unwrap() + s;
                let positions = starts.iter().flat_map(|start| *start..start + s);
                let want = rotary.cos_sin(positions, 8, length);
                let got = rotary.padded_cos_sin(&starts, s, 8, DType::F64, &cpu).unwrap();
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got.dims(), [starts.len(), s, 1, rotary.dim.unwrap_or(8) / 2]);
                    assert_eq!(elements(got), *want, "{rotary:?}, {starts:?}, {s}");
                }
                let [half, _] = rotary.padded_cos_sin(&starts, s, 8, DType::BF16, &cpu).unwrap();
                assert_eq!(half.dtype(), DType::BF16);
            }
        }
    }

    #[test]
    fn angles_beyond_the_cache_are_computed_for_their_own_tokens() {
        let far = 1 << 20;
        let rotary = Rotary::default();
        let got = rotary.padded_cos_sin(&[far, 5], 2, 8, DType::F64, &Device::Cpu).unwrap();
        let want = rotary.cos_sin([far, far + 1, 5, 6].into_iter(), 8, far + 2);
        assert_eq!(elements(&got[0]), want[0]);
        assert_eq!(elements(&got[1]), want[1]);
    }
}

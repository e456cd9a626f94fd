//! Cosines and sines of rotary positions: of a padded batch, of positions that a call gives, of a ragged batch.

use candle_core::{DType, Device, Tensor};

use super::explicit::ExplicitPositions;
use super::rope_cache::{self, Growth};
use super::rotary::Rotary;
use super::rotation::CosSin;
use crate::error::Result;

impl Rotary {
    /// Cosines and sines at each of `positions` in a sequence of `length` tokens: `(positions, pairs)`.
    pub(super) fn cos_sin(
        &self,
        positions: impl Iterator<Item = usize>,
        head_dim: usize,
        length: usize,
    ) -> [Vec<f64>; 2] {
        self.cos_sin_at(positions.map(|position| [position; 3]), head_dim, length)
    }

    /// [`cos_sin`](Self::cos_sin) of tokens with a position along each axis.
    fn cos_sin_at(&self, tokens: impl Iterator<Item = [usize; 3]>, head_dim: usize, length: usize) -> [Vec<f64>; 2] {
        let (frequencies, factor) = self.signed_frequencies(head_dim, length);
        // In f64 and rounded once: the product of a large position and a frequency has few digits left in f32.
        let angle = |at: [usize; 3], (pair, frequency): (usize, &f64)| at[self.axis(pair)] as f64 * frequency;
        let token_angles = |at| frequencies.iter().enumerate().map(move |pair| angle(at, pair));
        let angles: Vec<f64> = tokens.flat_map(token_angles).collect();
        let table = |f: fn(f64) -> f64| angles.iter().map(|&angle| f(angle) * factor).collect();
        [table(f64::cos), table(f64::sin)]
    }

    /// Cosines and sines `(sequences, s, 1, pairs)` of `s` tokens per sequence, the first at `starts`. `lengths`: one
    /// per sequence; `None` is up to the last token of all.
    pub(super) fn padded_cos_sin(
        &self,
        starts: &[usize],
        s: usize,
        lengths: Option<&[usize]>,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let length = starts.iter().max().map_or(0, |last| last + s);
        let pairs = self.rotated(head_dim) / 2;
        if self.scaling.depends_on_length() {
            let lengths = lengths.unwrap_or(std::slice::from_ref(&length));
            let rows = starts.len().max(lengths.len());
            let row_cos_sin = |row: usize| {
                let [start, length] = [starts, lengths].map(|all| all[if all.len() == 1 { 0 } else { row }]);
                self.cos_sin(start..start + s, head_dim, length)
            };
            let cos_sin = concatenated((0..rows).map(row_cos_sin));
            return shaped(rope_cache::tensors(cos_sin, rows * s, dtype, device)?, (rows, s, 1, pairs));
        }
        let positions = starts.iter().flat_map(|start| *start..start + s);
        let shape = (starts.len(), s, 1, pairs);
        if !rope_cache::may_cache(length, head_dim, device)? {
            let cos_sin = self.cos_sin(positions, head_dim, length);
            return shaped(rope_cache::tensors(cos_sin, starts.len() * s, dtype, device)?, shape);
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
        shaped([cos?, sin?], shape)
    }

    /// Cosines and sines `(sequences or 1, tokens, 1, pairs)` at the positions of a call. `lengths`: one per sequence;
    /// `None` is up to the largest position of each.
    pub(super) fn explicit_cos_sin(
        &self,
        positions: &ExplicitPositions,
        lengths: Option<&[usize]>,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        /// Tokens from which on the table of one layer is kept for the next one.
        const KEPT: usize = 64;
        let lengths = lengths.filter(|_| self.scaling.depends_on_length());
        let rows = positions.rows.max(lengths.map_or(1, <[usize]>::len));
        let tokens = rows * positions.tokens;
        let make = |_| {
            Ok(concatenated((0..rows).map(|row| {
                let length = match lengths {
                    Some(lengths) => lengths[if lengths.len() == 1 { 0 } else { row }],
                    None => positions.end(row, positions.tokens),
                };
                let axes = [0, 1, 2].map(|axis| positions.row(axis, row));
                let places = (0..positions.tokens).map(|token| axes.map(|axis| axis[token] as usize));
                self.cos_sin_at(places, head_dim, length)
            })))
        };
        let cos_sin = if tokens >= KEPT && rope_cache::may_cache(tokens, head_dim, device)? {
            let key = (self.clone(), positions.clone(), lengths.map(<[usize]>::to_vec));
            rope_cache::cos_sin(&key, Growth::Exact, head_dim, tokens, dtype, device, make)?
        } else {
            rope_cache::tensors(make(tokens)?, tokens, dtype, device)?
        };
        shaped(cos_sin, (rows, positions.tokens, 1, self.rotated(head_dim) / 2))
    }

    /// The axis of the positions that rotate a pair: 0 temporal, 1 height, 2 width.
    fn axis(&self, pair: usize) -> usize {
        match self.mrope_section {
            None => 0,
            Some([_, height, width]) if self.mrope_interleaved => match pair % 3 {
                1 if pair < 3 * height => 1,
                2 if pair < 3 * width => 2,
                _ => 0,
            },
            Some([temporal, height, _]) => usize::from(pair >= temporal) + usize::from(pair >= temporal + height),
        }
    }

    /// Cosines and sines `(1, tokens, 1, pairs)` of a ragged batch, whose sequences all begin at position 0.
    pub(super) fn ragged_cos_sin(
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
            let own = self.scaling.depends_on_length().then(|| self.cos_sin(0..length, head_dim, length));
            let cos_sin = own.as_ref().unwrap_or(&common);
            all.iter_mut().zip(cos_sin).for_each(|(all, values)| all.extend_from_slice(&values[..length * pairs]));
        }
        let rows = all[0].len() / pairs.max(1);
        shaped(rope_cache::tensors(all, rows, dtype, device)?, (1, rows, 1, pairs))
    }

    /// Cosines and sines of positions `0 .. length` in f32.
    pub(super) fn f32_cos_sin(&self, head_dim: usize, length: usize) -> CosSin {
        let [cos, sin] =
            self.cos_sin(0..length, head_dim, length).map(|values| values.into_iter().map(|x| x as f32).collect());
        CosSin { cos, sin, pairs: self.rotated(head_dim) / 2, style: self.style }
    }
}

/// Cosines and sines of sequences, one after the other.
fn concatenated(sequences: impl Iterator<Item = [Vec<f64>; 2]>) -> [Vec<f64>; 2] {
    sequences.fold([Vec::new(), Vec::new()], |[mut cos, mut sin], [more_cos, more_sin]| {
        cos.extend(more_cos);
        sin.extend(more_sin);
        [cos, sin]
    })
}

fn shaped(cos_sin: [Tensor; 2], shape: (usize, usize, usize, usize)) -> Result<[Tensor; 2]> {
    let [cos, sin] = cos_sin.map(|values| values.reshape(shape));
    Ok([cos?, sin?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::RotaryScaling;

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
                let got = rotary.padded_cos_sin(&starts, s, None, 8, DType::F64, &cpu).unwrap();
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got.dims(), [starts.len(), s, 1, rotary.dim.unwrap_or(8) / 2]);
                    assert_eq!(elements(got), *want, "{rotary:?}, {starts:?}, {s}");
                }
                let [half, _] = rotary.padded_cos_sin(&starts, s, None, 8, DType::BF16, &cpu).unwrap();
                assert_eq!(half.dtype(), DType::BF16);
            }
        }
    }

    #[test]
    fn angles_beyond_the_cache_are_computed_for_their_own_tokens() {
        let far = 1 << 20;
        let rotary = Rotary::default();
        let got = rotary.padded_cos_sin(&[far, 5], 2, None, 8, DType::F64, &Device::Cpu).unwrap();
        let want = rotary.cos_sin([far, far + 1, 5, 6].into_iter(), 8, far + 2);
        assert_eq!(elements(&got[0]), want[0]);
        assert_eq!(elements(&got[1]), want[1]);
    }
}

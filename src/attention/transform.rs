//! What happens to queries and keys between projection and attention: limits, norms, rotations.

use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::ragged::shared_positions::SharedPositions;
use crate::config::{NormKind, NormOver, QkNorm};
use crate::error::{Error, Result};
use crate::ops::Norm;
use crate::position::{Position, Rotary, rotate};
use crate::weights::NormWeights;

/// Where the tokens of a call stand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places<'a> {
    /// The position of the first token, of all rows or of each.
    pub starts: &'a [usize],
    /// Rows and columns, if the tokens are patches of an image.
    pub grid: Option<[usize; 2]>,
    /// Where each row starts and the last one ends, if the tokens are those of several, one after the other; each row
    /// then begins at position 0. With it what was made for the same rows before.
    pub rows: Option<(&'a [usize], &'a SharedPositions)>,
}

impl Default for Places<'_> {
    fn default() -> Self {
        Self { starts: &[0], grid: None, rows: None }
    }
}

impl MultiHeadAttention {
    /// Whether queries, keys and values go into attention as they are projected.
    pub(crate) fn is_untransformed(&self) -> bool {
        let rotated = matches!(self.config.position, Position::Rotary(_) | Position::RotaryGrid(_));
        self.qk_norm.is_none() && self.config.clip_qkv.is_none() && !rotated
    }

    /// Queries, keys and values by head, `(b, s, h, d)`, as attention compares them.
    pub(crate) fn transform(&self, [q, k, v]: [Tensor; 3], places: Places) -> Result<[Tensor; 3]> {
        let (q, k, v) =
            (self.normalised(&self.limited(q)?, 0)?, self.normalised(&self.limited(k)?, 1)?, self.limited(v)?);
        let (s_q, s_kv) = (q.dim(1)?, k.dim(1)?);
        let (angles_q, angles_k, style) = match &self.config.position {
            Position::Rotary(rotary) if let Some((starts, shared)) = places.rows => {
                let angles = shared.angles(rotary, starts, self.config.head_dim(), q.dtype(), q.device())?;
                (angles.clone(), angles, rotary.style)
            }
            Position::Rotary(rotary) => {
                // As for masks, the last query stands at the last key.
                let starts_q: Vec<usize> = places.starts.iter().map(|start| start + s_kv.saturating_sub(s_q)).collect();
                let angles_q = self.angles(rotary, &starts_q, &q)?;
                let same = s_q == s_kv;
                let angles_k = if same { angles_q.clone() } else { self.angles(rotary, places.starts, &k)? };
                (angles_q, angles_k, rotary.style)
            }
            Position::RotaryGrid(_) if s_q != s_kv => {
                let found = format!("{s_q} queries and {s_kv} keys");
                return Err(Error::value("a call with patches' positions", found, "as many of both"));
            }
            Position::RotaryGrid(rotary) => {
                let angles = rotary.angles(s_q, places.grid, self.config.head_dim(), q.dtype(), q.device())?;
                (angles.clone(), angles, rotary.style)
            }
            _ => return Ok([q, k, v]),
        };
        Ok([rotate(&q, &angles_q, style)?, rotate(&k, &angles_k, style)?, v])
    }

    /// [`transform`](Self::transform) of queries alone, of a layer without positions.
    pub(crate) fn transform_queries(&self, q: Tensor) -> Result<Tensor> {
        self.normalised(&self.limited(q)?, 0)
    }

    fn angles(&self, rotary: &Rotary, starts: &[usize], xs: &Tensor) -> Result<[Tensor; 2]> {
        rotary.angles(starts, xs.dim(1)?, self.config.head_dim(), xs.dtype(), xs.device())
    }

    fn limited(&self, xs: Tensor) -> Result<Tensor> {
        Ok(match self.config.clip_qkv {
            Some(limit) => xs.clamp(-limit, limit)?,
            None => xs,
        })
    }

    /// `which`: 0 for queries, 1 for keys.
    fn normalised(&self, xs: &Tensor, which: usize) -> Result<Tensor> {
        match (&self.config.qk_norm, &self.qk_norm) {
            (Some(norm), Some(weights)) => normalise(xs, norm, &weights[which]),
            _ => Ok(xs.clone()),
        }
    }
}

/// The shape that a parameter of a norm has to have, which may be one a head.
pub(crate) fn norm_shape(over: NormOver, parameter: &Tensor, h: usize, d: usize) -> Vec<usize> {
    match (over, parameter.rank()) {
        (NormOver::AllHeads, _) => vec![h * d],
        (NormOver::Head, 2) => vec![h, d],
        (NormOver::Head, _) => vec![d],
    }
}

/// xs `(b, s, h, d)`.
pub(crate) fn normalise(xs: &Tensor, norm: &QkNorm, weights: &NormWeights) -> Result<Tensor> {
    let (b, s, h, d) = xs.dims4()?;
    let xs = match norm.over {
        NormOver::Head => xs.clone(),
        NormOver::AllHeads => xs.reshape((b, s, 1, h * d))?,
    };
    let norm = Norm {
        xs: &xs,
        add: None,
        add_bias: None,
        weight: &weights.weight,
        bias: weights.bias.as_ref(),
        eps: norm.eps,
        rms: norm.kind != NormKind::Layer,
        offset: if norm.kind == NormKind::RmsOffset { 1.0 } else { 0.0 },
        keep_sum: false,
    };
    let (_, ys) = norm.forward()?;
    Ok(ys.reshape((b, s, h, d))?)
}

#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::ops::on_cuda::with_mock_device;
    use crate::position::RotaryStyle;

    fn worst(got: &Tensor, want: &Tensor) -> f32 {
        let differences = (got - want).unwrap().abs().unwrap().flatten_all().unwrap();
        differences.max(0).unwrap().to_scalar().unwrap()
    }

    /// In one step, as NVIDIA GPUs do it, and by candle's operations.
    #[test]
    fn norms_and_rotations_in_one_step_are_the_same() {
        let random = |dims: &[usize]| Tensor::randn(0f32, 1.0, dims, &Device::Cpu).unwrap();
        let (b, s, h, d) = (2, 5, 3, 8);
        // A part of a packed projection.
        let xs = random(&[b, s, 7, d]).narrow(2, 1, h).unwrap();
        for (over, dims) in [(NormOver::Head, vec![d]), (NormOver::Head, vec![h, d]), (NormOver::AllHeads, vec![h * d])]
        {
            for (kind, bias) in [(NormKind::Layer, true), (NormKind::Rms, false), (NormKind::RmsOffset, false)] {
                let norm = QkNorm { kind, over, eps: 1e-6 };
                let weights = NormWeights { weight: random(&dims), bias: bias.then(|| random(&dims)) };
                let want = normalise(&xs, &norm, &weights).unwrap();
                let (got, steps) = with_mock_device(|| normalise(&xs, &norm, &weights).unwrap());
                assert_eq!((got.dims(), steps), (want.dims(), 1));
                assert!(worst(&got, &want) < 1e-5, "{kind:?}, {over:?}, {dims:?}");
            }
        }
        for (rows, pairs) in [(1, 4), (b, 4), (1, 2)] {
            let angles = [0, 1].map(|_| random(&[rows, s, 1, pairs]));
            for style in [RotaryStyle::HalfSplit, RotaryStyle::Interleaved] {
                let want = rotate(&xs, &angles, style).unwrap();
                let (got, steps) = with_mock_device(|| rotate(&xs, &angles, style).unwrap());
                assert_eq!((got.dims(), steps), (want.dims(), 1));
                assert!(worst(&got, &want) < 1e-6, "{style:?}, {rows} rows, {pairs} pairs");
            }
        }
    }
}

//! Rotation of queries and keys by given angles, as tensors and in place.

use candle_core::{D, Tensor};
use rayon::prelude::*;

use crate::ensure;
use crate::error::{Error, Result};

/// Which elements of a head form a pair that is rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RotaryStyle {
    /// Element `i` with element `i + dim / 2` (Llama, GPT-NeoX).
    #[default]
    HalfSplit,
    /// Element `2 i` with element `2 i + 1` (GPT-J, Cohere, the paper).
    Interleaved,
}

/// Checks the base of the wavelengths. Below 1 the frequencies grow with the index of the pair, and overflow f32 if the
/// base is close to 0.
pub(super) fn check_theta(theta: f64) -> Result<()> {
    ensure!(theta.is_finite() && theta >= 1.0, Error::config("rope_theta", theta, "at least 1"));
    Ok(())
}

/// xs `(b, s, h, d)` with the first `2 · pairs` elements of each head rotated; cosines and sines are
/// `(b or 1, s, 1, pairs)`. Differentiable.
pub(crate) fn rotate(xs: &Tensor, [cos, sin]: &[Tensor; 2], style: RotaryStyle) -> Result<Tensor> {
    let (b, s, h, d) = xs.dims4()?;
    let dim = 2 * cos.dim(D::Minus1)?;
    let rotated = xs.narrow(D::Minus1, 0, dim)?;
    let rotated_pair = |first: &Tensor, second: &Tensor| {
        let a = (first.broadcast_mul(cos)? - second.broadcast_mul(sin)?)?;
        let b = (second.broadcast_mul(cos)? + first.broadcast_mul(sin)?)?;
        Ok::<_, Error>((a, b))
    };
    let rotated = match style {
        RotaryStyle::HalfSplit => {
            let half = |i: usize| rotated.narrow(D::Minus1, i * dim / 2, dim / 2); // (b, s, h, pairs)
            let (a, b) = rotated_pair(&half(0)?, &half(1)?)?;
            Tensor::cat(&[a, b], D::Minus1)?
        }
        RotaryStyle::Interleaved => {
            let pairs = rotated.reshape((b, s, h, dim / 2, 2))?;
            let one = |i: usize| pairs.narrow(D::Minus1, i, 1)?.squeeze(D::Minus1); // (b, s, h, pairs)
            let (x, y) = rotated_pair(&one(0)?, &one(1)?)?;
            Tensor::stack(&[x, y], 4)?.reshape((b, s, h, dim))?
        }
    };
    if dim == d {
        return Ok(rotated);
    }
    Ok(Tensor::cat(&[rotated, xs.narrow(D::Minus1, dim, d - dim)?], D::Minus1)?)
}

/// Tokens that one thread rotates at a time.
const CHUNK: usize = 64;

/// Cosines and sines of positions 0, 1, …: `pairs` each per position.
#[derive(Debug)]
pub(crate) struct CosSin {
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
    pub pairs: usize,
    pub style: RotaryStyle,
}

impl CosSin {
    /// Rotates one sequence in place: tokens of `width` elements, each beginning with `heads` heads of `head_dim`.
    pub(crate) fn rotate_sequence(&self, sequence: &mut [f32], width: usize, heads: usize, head_dim: usize) {
        let pairs = self.pairs;
        let rotate_chunk = |((tokens, cos), sin): ((&mut [f32], &[f32]), &[f32])| {
            let angles = cos.chunks_exact(pairs).zip(sin.chunks_exact(pairs));
            for (token, (cos, sin)) in tokens.chunks_exact_mut(width).zip(angles) {
                let heads = token[..heads * head_dim].chunks_exact_mut(head_dim);
                heads.for_each(|head| self.rotate_head(head, cos, sin));
            }
        };
        if sequence.len() > 4 * CHUNK * width && rayon::current_num_threads() > 1 {
            let (cos, sin) = (self.cos.par_chunks(CHUNK * pairs), self.sin.par_chunks(CHUNK * pairs));
            sequence.par_chunks_mut(CHUNK * width).zip(cos).zip(sin).for_each(rotate_chunk);
        } else {
            rotate_chunk(((sequence, &self.cos), &self.sin));
        }
    }

    #[inline]
    fn rotate_head(&self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        let rotate_pair =
            |x: &mut f32, y: &mut f32, cos: f32, sin: f32| (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
        let angles = cos.iter().zip(sin);
        match self.style {
            RotaryStyle::HalfSplit => {
                let (first, second) = head.split_at_mut(cos.len());
                first.iter_mut().zip(second).zip(angles).for_each(|((x, y), (cos, sin))| rotate_pair(x, y, *cos, *sin));
            }
            RotaryStyle::Interleaved => {
                for ([x, y], (cos, sin)) in head.as_chunks_mut().0.iter_mut().zip(angles) {
                    rotate_pair(x, y, *cos, *sin);
                }
            }
        }
    }
}

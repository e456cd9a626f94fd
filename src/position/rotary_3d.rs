//! Rotary position embedding in three dimensions, for patches of a video.

use candle_core::{D, DType, Device, Tensor};

use super::rotation::check_theta;
use super::scheme::{LayerSizes, PositionScheme, SchemeTraits, TokenPositions};
use crate::error::{Error, Result};

/// Rotary position embedding of V-JEPA 2 ([Assran 2025](https://arxiv.org/abs/2506.09985)): a third of each head is
/// turned by the frame of the patch, a third by its row, a third by its column, and what is left is not turned.
///
/// A token's position is its number in the video: frame by frame, and within a frame row by row.
/// [`AttentionOptions::positions`](crate::AttentionOptions) gives the numbers of patches of which some are left out.
///
/// The elements `2 i` and `2 i + 1` of a third form a pair, but element `e` is turned with wavelength number `e` modulo
/// half of the third, so that the two of a pair differ: the model was trained so.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rotary3d {
    /// The base of the wavelengths; at least 1.
    pub theta: f64,
    /// Rows and columns of the patches of a frame.
    pub grid: [usize; 2],
}

impl Rotary3d {
    /// Base 10,000, for frames of `rows` and `columns` patches.
    pub fn new([rows, columns]: [usize; 2]) -> Self {
        Self { theta: 10_000.0, grid: [rows, columns] }
    }

    /// Elements of a head that one of the three axes turns.
    fn width(head_dim: usize) -> usize {
        2 * (head_dim / 3 / 2)
    }

    /// Cosines and sines `(rows, tokens, 1, 3 · width)` of tokens with these numbers.
    fn cos_sin(&self, numbers: &[Vec<usize>], head_dim: usize, dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
        let (width, [rows, columns]) = (Self::width(head_dim), self.grid);
        let tokens = numbers.first().map_or(0, Vec::len);
        let frequencies: Vec<f64> = (0..width / 2).map(|i| self.theta.powf(-(i as f64) / (width / 2) as f64)).collect();
        let token_angles = |number: &usize| {
            let (frame, place) = (number / (rows * columns), number % (rows * columns));
            let axis_angles =
                |at: usize| frequencies.iter().chain(&frequencies).map(move |frequency| at as f64 * frequency);
            [frame, place / columns, place % columns].into_iter().flat_map(axis_angles).collect::<Vec<_>>()
        };
        let angles: Vec<f64> = numbers.iter().flatten().flat_map(token_angles).collect();
        let table = |f: fn(f64) -> f64| {
            let values = angles.iter().map(|angle| f(*angle));
            Tensor::from_iter(values, &Device::Cpu)?.reshape((numbers.len(), tokens, 1, 3 * width))?.to_dtype(dtype)
        };
        Ok([table(f64::cos)?.to_device(device)?, table(f64::sin)?.to_device(device)?])
    }
}

/// The first elements of each head of xs `(b, s, h, d)` turned by angles of their own. Differentiable.
fn turn(xs: &Tensor, [cos, sin]: [&Tensor; 2]) -> Result<Tensor> {
    let (b, s, h, d) = xs.dims4()?;
    let dim = cos.dim(D::Minus1)?;
    let turned = xs.narrow(D::Minus1, 0, dim)?.contiguous()?;
    let pairs = turned.reshape((b, s, h, dim / 2, 2))?;
    let one = |i: usize| pairs.narrow(D::Minus1, i, 1);
    let across = Tensor::cat(&[one(1)?.neg()?, one(0)?], D::Minus1)?.reshape((b, s, h, dim))?;
    let turned = (turned.broadcast_mul(cos)? + across.broadcast_mul(sin)?)?;
    Ok(match d - dim {
        0 => turned,
        rest => Tensor::cat(&[turned, xs.narrow(D::Minus1, dim, rest)?], D::Minus1)?,
    })
}

impl PositionScheme for Rotary3d {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        if Self::width(sizes.head_dim) == 0 {
            return Err(Error::config("head_dim", sizes.head_dim, "at least 6 for rotary positions of a video"));
        }
        check_theta(self.theta)?;
        let [rows, columns] = self.grid;
        match rows.checked_mul(columns) {
            Some(1..) => Ok(()),
            _ => Err(Error::config("grid", format!("{rows} x {columns}"), "at least one patch")),
        }
    }

    fn accepts_positions(&self, axes: usize) -> bool {
        axes == 1
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { rotates: true, ..SchemeTraits::default() }
    }

    fn rotate(&self, q: Tensor, k: Tensor, tokens: &TokenPositions) -> Result<[Tensor; 2]> {
        let (s_q, s_kv) = (q.dim(1)?, k.dim(1)?);
        if s_q > s_kv {
            let found = format!("{s_q} queries and {s_kv} keys");
            return Err(Error::value("a call with positions of a video", found, "at least as many keys as queries"));
        }
        let numbers: Vec<Vec<usize>> = match tokens.explicit {
            Some(explicit) => {
                (0..explicit.rows).map(|row| explicit.row(0, row).iter().map(|&n| n as usize).collect()).collect()
            }
            None => tokens.starts.iter().map(|start| (*start..start + s_kv).collect()).collect(),
        };
        let [cos, sin] = self.cos_sin(&numbers, k.dim(3)?, k.dtype(), k.device())?;
        let query_rows = |values: &Tensor| values.narrow(1, s_kv - s_q, s_q);
        Ok([turn(&q, [&query_rows(&cos)?, &query_rows(&sin)?])?, turn(&k, [&cos, &sin])?])
    }

    fn describe(&self) -> String {
        format!("rotary video(theta {}, frames of {} x {} patches)", self.theta, self.grid[0], self.grid[1])
    }
}

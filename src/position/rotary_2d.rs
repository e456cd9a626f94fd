//! Rotary position embedding in two dimensions, for image patches.

use std::fmt;

use candle_core::{DType, Device, Tensor};

use super::rope_cache::{self, Growth};
use super::rotation::{RotaryStyle, rotate};
use super::scheme::LayerSizes;
use super::scheme::{PositionScheme, TokenPositions};
use crate::error::{Error, Result};
use crate::setters;

/// How patch rows and columns are numbered or normalized.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum GridCoordinates {
    /// 0, 1, 2, …
    #[default]
    Index,
    /// The index, scaled as if there were `rows` rows and `columns` columns (timm's EVA: `ref_feat_shape`).
    Reference {
        /// Rows of patches in training.
        rows: usize,
        /// Columns of patches in training.
        columns: usize,
    },
    /// The center of the patch between -1 and 1 over the whole image, times 2π (DINOv3).
    Centered,
}

/// How the wavelengths of a head are shared between rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GridFrequencies {
    /// Rows and columns have the same: `theta^(-4m / head_dim)`, m = 0, 1, …
    #[default]
    Same,
    /// Those of one dimension, `theta^(-2m / head_dim)`, in turn: rows have the even m, columns the odd (Pixtral).
    Alternating,
}

/// Rotary position embedding in two dimensions: the first half of each head's angles is proportional to the row of the
/// patch, the second half to its column (EVA, [Fang 2023](https://arxiv.org/abs/2303.11331); DINOv3, [Siméoni
/// 2025](https://arxiv.org/abs/2508.10104); Pixtral, [Agrawal 2024](https://arxiv.org/abs/2410.07073); Qwen2-VL, [Wang
/// 2024](https://arxiv.org/abs/2409.12191)).
///
/// Tokens that are not patches come first and are not rotated. The number of rows and columns comes from
/// [`AttentionOptions::grid`](crate::AttentionOptions), otherwise from [`grid`](Self::grid), otherwise the patches form
/// a square. `head_dim` has to be a multiple of 4.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rotary2d {
    /// The base of the wavelengths; at least 1.
    pub theta: f64,
    /// Which elements form a pair; default half-split.
    pub style: RotaryStyle,
    /// How rows and columns are numbered; default by index.
    pub coordinates: GridCoordinates,
    /// How rows and columns share the wavelengths; default the same for both.
    pub frequencies: GridFrequencies,
    /// The side of the square blocks in which patches follow one another: within a block row by row, and so the blocks
    /// (`spatial_merge_size` of Qwen2-VL). Default 1: all patches row by row.
    pub block: usize,
    /// Tokens before the patches, such as class and register tokens; default 1.
    pub prefix_tokens: usize,
    /// Rows and columns of patches, for calls that do not give them; default a square.
    pub grid: Option<[usize; 2]>,
}

impl Rotary2d {
    /// Base `theta`, everything else at its default.
    pub fn new(theta: f64) -> Self {
        Self {
            theta,
            style: RotaryStyle::default(),
            coordinates: GridCoordinates::default(),
            frequencies: GridFrequencies::default(),
            block: 1,
            prefix_tokens: 1,
            grid: None,
        }
    }

    setters! {
        /// Sets the base of the wavelengths.
        with_theta, theta: f64 = theta;
        /// Sets which elements form a pair.
        with_style, style: RotaryStyle = style;
        /// Sets how rows and columns are numbered.
        with_coordinates, coordinates: GridCoordinates = coordinates;
        /// Sets how rows and columns share the wavelengths.
        with_frequencies, frequencies: GridFrequencies = frequencies;
        /// Sets the side of the blocks in which patches follow one another.
        with_block, block: usize = block;
        /// Sets the number of tokens before the patches.
        with_prefix_tokens, prefix_tokens: usize = prefix_tokens;
        /// Sets the rows and columns of patches.
        with_grid, grid: [usize; 2] = Some(grid);
    }

    /// Cosines and sines of `tokens` tokens, each `(1, tokens, 1, head_dim / 2)`. `grid`: as the call gives it.
    fn cos_sin(
        &self,
        tokens: usize,
        grid: Option<[usize; 2]>,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let make = |_| {
            let angles = self.angles(tokens, grid, head_dim)?;
            let of = |f: fn(f64) -> f64| angles.iter().map(|angle| f(*angle)).collect();
            Ok([of(f64::cos), of(f64::sin)])
        };
        let cos_sin = if rope_cache::may_cache(tokens, head_dim, device)? {
            let key = (self.clone(), grid, tokens);
            rope_cache::cos_sin(&key, Growth::Exact, head_dim, tokens, dtype, device, make)?
        } else {
            rope_cache::tensors(make(tokens)?, tokens, dtype, device)?
        };
        let [cos, sin] = cos_sin.map(|values| values.reshape((1, tokens, 1, head_dim / 2)));
        Ok([cos?, sin?])
    }

    /// The angles of each token in radians: `(tokens, head_dim / 2)`.
    fn angles(&self, tokens: usize, grid: Option<[usize; 2]>, head_dim: usize) -> Result<Vec<f64>> {
        let [rows, columns] = self.grid_of(tokens, grid)?;
        let quarter = head_dim / 4;
        let of = |first: f64| -> Vec<f64> {
            (0..quarter).map(|m| self.theta.powf(-(m as f64 + first) / quarter as f64)).collect()
        };
        let frequencies = match self.frequencies {
            GridFrequencies::Same => [of(0.0), of(0.0)],
            GridFrequencies::Alternating => [of(0.0), of(0.5)],
        };
        let coordinate = |i: usize, count: usize, reference: usize| match self.coordinates {
            GridCoordinates::Index => i as f64,
            GridCoordinates::Reference { .. } => i as f64 / count as f64 * reference as f64,
            GridCoordinates::Centered => ((i as f64 + 0.5) / count as f64 * 2.0 - 1.0) * std::f64::consts::TAU,
        };
        let reference = match self.coordinates {
            GridCoordinates::Reference { rows, columns } => [rows, columns],
            _ => [0; 2],
        };
        let mut angles = vec![0.0; self.prefix_tokens * 2 * quarter];
        for (y, x) in self.order(rows, columns) {
            let at = [coordinate(y, rows, reference[0]), coordinate(x, columns, reference[1])];
            for (at, frequencies) in at.iter().zip(&frequencies) {
                angles.extend(frequencies.iter().map(|frequency| at * frequency));
            }
        }
        Ok(angles)
    }

    /// Row and column of each patch, in the order of the tokens.
    fn order(&self, rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
        let side = self.block;
        let cells = move |rows: usize, columns: usize| (0..rows).flat_map(move |y| (0..columns).map(move |x| (y, x)));
        cells(rows / side, columns / side)
            .flat_map(move |(down, across)| cells(side, side).map(move |(y, x)| (down * side + y, across * side + x)))
    }

    fn grid_of(&self, tokens: usize, grid: Option<[usize; 2]>) -> Result<[usize; 2]> {
        let prefix = self.prefix_tokens;
        let side = tokens.saturating_sub(prefix).isqrt();
        let grid = grid.or(self.grid).unwrap_or([side, side]);
        let [rows, columns] = grid;
        if rows.checked_mul(columns).and_then(|patches| patches.checked_add(prefix)) == Some(tokens) {
            if let Some(side) = grid.into_iter().find(|side| !side.is_multiple_of(self.block)) {
                return Err(Error::value(
                    "a side of the grid",
                    side,
                    format!("a multiple of the block, {}", self.block),
                ));
            }
            return Ok(grid);
        }
        let expected =
            format!("{prefix} and {rows} x {columns} patches; a call can give another grid (`AttentionOptions::grid`)");
        Err(Error::value("the number of tokens", tokens, expected))
    }
}

impl fmt::Display for Rotary2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rotary grid(theta {}, {} tokens before", self.theta, self.prefix_tokens)?;
        if self.block > 1 {
            write!(f, ", blocks of {} x {}", self.block, self.block)?;
        }
        self.grid.iter().try_for_each(|[rows, columns]| write!(f, ", {rows} x {columns} patches"))?;
        f.write_str(")")
    }
}

impl PositionScheme for Rotary2d {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        if !sizes.head_dim.is_multiple_of(4) {
            let allowed = "a multiple of 4 for rotary positions in two dimensions";
            return Err(Error::config("head_dim", sizes.head_dim, allowed));
        }
        // As for `Rotary`.
        if !(self.theta.is_finite() && self.theta >= 1.0) {
            return Err(Error::config("rope_theta", self.theta, "at least 1"));
        }
        if self.block == 0 {
            return Err(Error::config("block", 0, "at least 1"));
        }
        Ok(())
    }

    fn needs_full_sequence(&self) -> bool {
        true
    }

    fn counts_tokens(&self) -> bool {
        true
    }

    fn uses_grid(&self) -> bool {
        true
    }

    fn rotates(&self) -> bool {
        true
    }

    fn rotate(&self, q: Tensor, k: Tensor, tokens: &TokenPositions) -> Result<[Tensor; 2]> {
        let (s_q, s_kv) = (q.dim(1)?, k.dim(1)?);
        if s_q != s_kv {
            let found = format!("{s_q} queries and {s_kv} keys");
            return Err(Error::value("a call with positions of patches", found, "as many queries as keys"));
        }
        let cos_sin = self.cos_sin(s_q, tokens.grid, q.dim(3)?, q.dtype(), q.device())?;
        Ok([rotate(&q, &cos_sin, self.style)?, rotate(&k, &cos_sin, self.style)?])
    }
}

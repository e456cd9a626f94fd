//! Positions of patches in an image.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::macros::setters;
use crate::position::RotaryStyle;
use crate::position::rope_cache;
use crate::position::rope_cache::Kind;

/// What a patch's row and column count as.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum GridCoordinates {
    /// 0, 1, 2, …
    #[default]
    Index,
    /// The index, stretched as if there were `rows` rows and `columns` columns (timm's EVA: `ref_feat_shape`).
    Reference {
        /// The rows of the training.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
    /// The patch's centre between -1 and 1 over the whole image, times 2π (DINOv3).
    Centred,
}

/// Rotary position embedding in two dimensions: of each head's angles, the first half grow with the patch's row, the
/// others with its column (EVA, [Fang 2023](https://arxiv.org/abs/2303.11331); DINOv3,
/// [Siméoni 2025](https://arxiv.org/abs/2508.10104)).
///
/// Tokens that are no patches come first and are not rotated. How many rows and columns there are is said by
/// [`AttentionOptions::grid`](crate::AttentionOptions), else by the layer; else the patches are taken for a square.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RotaryGrid {
    /// The base of the wavelengths.
    pub theta: f64,
    /// Which numbers are rotated together.
    pub style: RotaryStyle,
    /// What rows and columns count as.
    pub coordinates: GridCoordinates,
    /// Tokens before the patches: class and registers.
    pub prefix_tokens: usize,
    /// Rows and columns of patches, where a call does not say.
    pub grid: Option<[usize; 2]>,
}

impl RotaryGrid {
    /// Base `theta`, half-split, patches counted by index, one token before them, any square.
    pub fn new(theta: f64) -> Self {
        Self {
            theta,
            style: RotaryStyle::default(),
            coordinates: GridCoordinates::default(),
            prefix_tokens: 1,
            grid: None,
        }
    }

    setters! {
        /// Sets which numbers are rotated together.
        with_style, style: RotaryStyle = style;
        /// Sets what rows and columns count as.
        with_coordinates, coordinates: GridCoordinates = coordinates;
        /// Sets how many tokens come before the patches.
        with_prefix_tokens, prefix_tokens: usize = prefix_tokens;
        /// Sets the rows and columns of patches.
        with_grid, grid: [usize; 2] = Some(grid);
    }

    pub(crate) fn validate(&self, head_dim: usize) -> Result<()> {
        if !head_dim.is_multiple_of(4) {
            return Err(Error::config("head_dim", head_dim, "a multiple of 4 for rotary positions in two dimensions"));
        }
        // As for `Rotary`.
        if !(self.theta.is_finite() && self.theta >= 1.0) {
            return Err(Error::config("rope_theta", self.theta, "at least 1"));
        }
        Ok(())
    }

    /// Cosines and sines of the angles of `tokens` tokens, each `(1, tokens, 1, head_dim / 2)`. `grid`: as the call says.
    pub(crate) fn angles(
        &self,
        tokens: usize,
        grid: Option<[usize; 2]>,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let make = |_| {
            let angles = self.radians(tokens, grid, head_dim)?;
            let of = |f: fn(f64) -> f64| angles.iter().map(|angle| f(*angle)).collect();
            Ok([of(f64::cos), of(f64::sin)])
        };
        let kind = Kind::Patches(self.clone(), grid, tokens);
        let waves = match rope_cache::are_kept(tokens, head_dim, device)? {
            true => rope_cache::waves(&kind, head_dim, tokens, dtype, device, make)?,
            false => rope_cache::tensors(make(tokens)?, tokens, dtype, device)?,
        };
        let [cos, sin] = waves.map(|wave| wave.reshape((1, tokens, 1, head_dim / 2)));
        Ok([cos?, sin?])
    }

    /// The angles of each of `tokens` tokens, `head_dim / 2` of them, token after token.
    fn radians(&self, tokens: usize, grid: Option<[usize; 2]>, head_dim: usize) -> Result<Vec<f64>> {
        let [rows, columns] = self.grid_of(tokens, grid)?;
        let quarter = head_dim / 4;
        let frequencies: Vec<f64> = (0..quarter).map(|m| self.theta.powf(-(m as f64) / quarter as f64)).collect();
        let along = |i: usize, count: usize, reference: usize| match self.coordinates {
            GridCoordinates::Index => i as f64,
            GridCoordinates::Reference { .. } => i as f64 / count as f64 * reference as f64,
            GridCoordinates::Centred => ((i as f64 + 0.5) / count as f64 * 2.0 - 1.0) * std::f64::consts::TAU,
        };
        let reference = match self.coordinates {
            GridCoordinates::Reference { rows, columns } => [rows, columns],
            _ => [0; 2],
        };
        let mut angles = vec![0.0; self.prefix_tokens * 2 * quarter];
        for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
            for place in [along(y, rows, reference[0]), along(x, columns, reference[1])] {
                angles.extend(frequencies.iter().map(|frequency| place * frequency));
            }
        }
        Ok(angles)
    }

    fn grid_of(&self, tokens: usize, grid: Option<[usize; 2]>) -> Result<[usize; 2]> {
        let prefix = self.prefix_tokens;
        let side = tokens.saturating_sub(prefix).isqrt();
        let grid = grid.or(self.grid).unwrap_or([side, side]);
        if grid[0].checked_mul(grid[1]).and_then(|patches| patches.checked_add(prefix)) == Some(tokens) {
            return Ok(grid);
        }
        let [rows, columns] = grid;
        let expected =
            format!("{prefix} and {rows} x {columns} patches; a call may say another grid (`AttentionOptions::grid`)");
        Err(Error::value("the number of tokens", tokens, expected))
    }
}

/// A learned bias for every offset between two patches (BEiT, [Bao 2021](https://arxiv.org/abs/2106.08254); Swin,
/// [Liu 2021](https://arxiv.org/abs/2103.14030)). The table is one of the layer's weights: `(2 rows - 1)(2 columns - 1)`
/// rows, by the offset of query from key, the vertical one first, and after them, if there is a class token, three: from
/// it to patches, from patches to it, and from it to itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RelativeGrid {
    /// Rows and columns of patches.
    pub grid: [usize; 2],
    /// Whether a class token comes before the patches.
    pub class_token: bool,
}

impl RelativeGrid {
    /// For `grid` rows and columns of patches.
    pub fn new(grid: [usize; 2], class_token: bool) -> Self {
        Self { grid, class_token }
    }

    /// The number of rows of the table.
    pub fn table_rows(&self) -> usize {
        // Saturating: asked of grids that are yet to be checked.
        let [down, right] = self.grid.map(|side| side.saturating_mul(2).saturating_sub(1));
        down.saturating_mul(right).saturating_add(if self.class_token { 3 } else { 0 })
    }

    pub(crate) fn validate(&self) -> Result<()> {
        match self.grid.iter().find(|side| !(1..=MAX_SIDE).contains(*side)) {
            Some(side) => Err(Error::config("the grid of patches", side, format!("1 to {MAX_SIDE} rows and columns"))),
            None => Ok(()),
        }
    }

    /// The row of the table for each query and key, query after query.
    pub(crate) fn rows(&self, s_q: usize, s_kv: usize) -> Result<Vec<u32>> {
        let [height, width] = self.grid;
        let prefix = usize::from(self.class_token);
        let tokens = prefix + height * width;
        if [s_q, s_kv] != [tokens; 2] {
            let expected = format!("{tokens} and {tokens}: {prefix} and {height} x {width} patches");
            return Err(Error::value("the numbers of queries and keys", format!("{s_q} and {s_kv}"), expected));
        }
        let last = self.table_rows() - 1;
        let row = |i: usize, j: usize| match (i.checked_sub(prefix), j.checked_sub(prefix)) {
            (Some(i), Some(j)) => {
                let down = i / width + height - 1 - j / width;
                let right = i % width + width - 1 - j % width;
                down * (2 * width - 1) + right
            }
            (None, Some(_)) => last - 2,
            (Some(_), None) => last - 1,
            (None, None) => last,
        };
        Ok((0..tokens).flat_map(|i| (0..tokens).map(move |j| row(i, j) as u32)).collect())
    }
}

/// Upper bound of rows and columns of patches.
const MAX_SIDE: usize = 1 << 10;

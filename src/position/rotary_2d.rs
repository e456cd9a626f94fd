//! Rotary position embedding in two dimensions, for image patches.

use candle_core::{D, DType, Device, Tensor};

use super::rope_cache::{self, Growth};
use super::rotation::{RotaryStyle, check_theta, rotate};
use super::scheme::{BiasCall, LayerSizes, PositionScheme, SchemeTraits, TokenPositions};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
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
    /// Rows and columns have the same frequencies: `theta^(-4m / head_dim)`, m = 0, 1, …
    #[default]
    Same,
    /// One set of frequencies, `theta^(-2m / head_dim)`, in turn: rows have the even m, columns the odd (Pixtral).
    Alternating,
}

/// Rotary position embedding in two dimensions: the first half of each head's angles is proportional to the row of the
/// patch, the second half to its column (EVA, [Fang 2023](https://arxiv.org/abs/2303.11331); DINOv3, [Siméoni
/// 2025](https://arxiv.org/abs/2508.10104); Pixtral, [Agrawal 2024](https://arxiv.org/abs/2410.07073); Qwen2-VL, [Wang
/// 2024](https://arxiv.org/abs/2409.12191)).
///
/// Tokens that are not patches come first or last and are not rotated. The number of rows and columns comes from
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
    /// The side, in blocks, of the square windows in which blocks follow one another: within a window row by row, and
    /// so the windows, of which the last ones of a row and of a column may be smaller (Qwen2.5-VL). Default none.
    pub window: Option<usize>,
    /// Whether a patch sees only those of its window; default false.
    pub within_window: bool,
    /// Whether the first half of the angles belongs to columns and the second to rows; default false.
    pub columns_first: bool,
    /// Whether the pairs of rows are in the first half of a head and those of columns in the second, each as if it were
    /// a head (Gemma 4); default false, pairs over the whole head.
    pub halves: bool,
    /// The number of the first row and column; default 0.
    pub first: usize,
    /// Tokens before the patches, such as class and register tokens; default 1.
    pub prefix_tokens: usize,
    /// Tokens after the patches; default 0.
    pub suffix_tokens: usize,
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
            window: None,
            within_window: false,
            columns_first: false,
            halves: false,
            first: 0,
            prefix_tokens: 1,
            suffix_tokens: 0,
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
        /// Sets the side of the windows in which blocks follow one another.
        with_window, window: usize = Some(window);
        /// Sets whether a patch sees only those of its window.
        with_within_window, within_window: bool = within_window;
        /// Sets whether the first half of the angles belongs to columns.
        with_columns_first, columns_first: bool = columns_first;
        /// Sets whether each half of a head is rotated by itself.
        with_halves, halves: bool = halves;
        /// Sets the number of the first row and column.
        with_first, first: usize = first;
        /// Sets the number of tokens before the patches.
        with_prefix_tokens, prefix_tokens: usize = prefix_tokens;
        /// Sets the number of tokens after the patches.
        with_suffix_tokens, suffix_tokens: usize = suffix_tokens;
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
            GridCoordinates::Index => (self.first + i) as f64,
            GridCoordinates::Reference { .. } => i as f64 / count as f64 * reference as f64,
            GridCoordinates::Centered => ((i as f64 + 0.5) / count as f64 * 2.0 - 1.0) * std::f64::consts::TAU,
        };
        let reference = match self.coordinates {
            GridCoordinates::Reference { rows, columns } => [rows, columns],
            _ => [0; 2],
        };
        let mut angles = vec![0.0; self.prefix_tokens * 2 * quarter];
        for (_, y, x) in self.order(rows, columns) {
            let mut at = [coordinate(y, rows, reference[0]), coordinate(x, columns, reference[1])];
            if self.columns_first {
                at.reverse();
            }
            for (at, frequencies) in at.iter().zip(&frequencies) {
                angles.extend(frequencies.iter().map(|frequency| at * frequency));
            }
        }
        angles.resize(angles.len() + self.suffix_tokens * 2 * quarter, 0.0);
        Ok(angles)
    }

    /// Window, row and column of each patch, in the order of the tokens.
    fn order(&self, rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let side = self.block;
        let (rows, columns) = (rows / side, columns / side);
        let window = self.window.unwrap_or(rows.max(columns)).max(1);
        let windows = cells(rows.div_ceil(window), columns.div_ceil(window)).enumerate();
        let blocks = windows.flat_map(move |(number, (down, across))| {
            let (y, x) = (down * window, across * window);
            let inside = cells(window.min(rows - y), window.min(columns - x));
            inside.map(move |(down, across)| (number, y + down, x + across))
        });
        blocks.flat_map(move |(number, down, across)| {
            cells(side, side).map(move |(y, x)| (number, down * side + y, across * side + x))
        })
    }

    /// `xs` `(b, s, h, d)` rotated by these cosines and sines.
    fn rotated(&self, xs: &Tensor, cos_sin: &[Tensor; 2]) -> Result<Tensor> {
        if !self.halves {
            return rotate(xs, cos_sin, self.style);
        }
        let half = |i: usize| {
            let of = |t: &Tensor| {
                let size = t.dim(D::Minus1)? / 2;
                t.narrow(D::Minus1, i * size, size)
            };
            rotate(&of(xs)?, &[of(&cos_sin[0])?, of(&cos_sin[1])?], self.style)
        };
        Ok(Tensor::cat(&[half(0)?, half(1)?], D::Minus1)?)
    }

    fn grid_of(&self, tokens: usize, grid: Option<[usize; 2]>) -> Result<[usize; 2]> {
        let others = self.prefix_tokens.saturating_add(self.suffix_tokens);
        let side = tokens.saturating_sub(others).isqrt();
        let grid = grid.or(self.grid).unwrap_or([side, side]);
        let [rows, columns] = grid;
        if rows.checked_mul(columns).and_then(|patches| patches.checked_add(others)) == Some(tokens) {
            if let Some(side) = grid.into_iter().find(|side| !side.is_multiple_of(self.block)) {
                let expected = format!("a multiple of the block, {}", self.block);
                return Err(Error::value("a side of the grid", side, expected));
            }
            return Ok(grid);
        }
        let expected =
            format!("{others} and {rows} x {columns} patches; a call can give another grid (`AttentionOptions::grid`)");
        Err(Error::value("the number of tokens", tokens, expected))
    }
}

/// Rows and columns, row by row.
fn cells(rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |y| (0..columns).map(move |x| (y, x)))
}

impl PositionScheme for Rotary2d {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        if !sizes.head_dim.is_multiple_of(4) {
            let allowed = "a multiple of 4 for rotary positions in two dimensions";
            return Err(Error::config("head_dim", sizes.head_dim, allowed));
        }
        check_theta(self.theta)?;
        ensure!(self.block != 0, Error::config("block", 0, "at least 1"));
        ensure!(self.window != Some(0), Error::config("window", 0, "at least 1"));
        if self.within_window && (self.window.is_none() || self.prefix_tokens + self.suffix_tokens > 0) {
            let allowed = "false without windows, and with tokens that are not patches";
            return Err(Error::config("within_window", true, allowed));
        }
        Ok(())
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits {
            needs_full_sequence: true,
            counts_tokens: true,
            uses_grid: true,
            rotates: true,
            ..SchemeTraits::default()
        }
    }

    fn rotate(&self, q: Tensor, k: Tensor, tokens: &TokenPositions) -> Result<[Tensor; 2]> {
        let (s_q, s_kv) = (q.dim(1)?, k.dim(1)?);
        if s_q != s_kv {
            let found = format!("{s_q} queries and {s_kv} keys");
            return Err(Error::value("a call with positions of patches", found, "as many queries as keys"));
        }
        let cos_sin = self.cos_sin(s_q, tokens.grid, q.dim(3)?, q.dtype(), q.device())?;
        Ok([self.rotated(&q, &cos_sin)?, self.rotated(&k, &cos_sin)?])
    }

    /// The windows as segments, if a patch sees only its own.
    fn bias(&self, call: &BiasCall) -> Result<Option<AttentionMask>> {
        if !self.within_window || call.s_q != call.s_kv {
            return Ok(None);
        }
        let [rows, columns] = self.grid_of(call.s_kv, call.grid)?;
        let windows = Tensor::from_iter(self.order(rows, columns).map(|(window, ..)| window as i64), call.device)?;
        let windows = windows.unsqueeze(0)?.broadcast_as((call.b, call.s_kv))?;
        Ok(Some(AttentionMask::segments(&windows, &windows)?))
    }

    fn describe(&self) -> String {
        let parts = [
            Some(format!("rotary grid(theta {}, {} tokens before", self.theta, self.prefix_tokens)),
            (self.block > 1).then(|| format!("blocks of {} x {}", self.block, self.block)),
            self.window.map(|window| format!("windows of {window} x {window}")),
            self.grid.map(|[rows, columns]| format!("{rows} x {columns} patches")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ") + ")"
    }
}

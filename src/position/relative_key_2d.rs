//! Relative positions in two dimensions: queries of image patches are also compared with learned embeddings of the rows
//! and columns to each key (SAM).

use candle_core::{Device, Tensor};

use super::relative_bias_2d::check_grid;
use super::scheme::{LayerSizes, NORMAL, PositionScheme, QueryCall, SchemeTraits};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, GridBias};
use crate::tensor::compute_dtype;
use crate::weights::Parameter;

const ROWS: &str = "rel_pos_h";
const COLUMNS: &str = "rel_pos_w";

/// Decomposed relative positions of image patches (MViTv2, [Li 2022](https://arxiv.org/abs/2112.01526); SAM, [Kirillov
/// 2023](https://arxiv.org/abs/2304.02643)): `q · r + q · c` is added to the scores, not scaled, where `r` and `c` are
/// learned embeddings of the rows and of the columns from key to query.
///
/// The embeddings `rel_pos_h` `(2 rows - 1, head_dim)` and `rel_pos_w` `(2 columns - 1, head_dim)` are weights of the
/// layer ([`Parameters`](crate::weights::Parameters)), shared by all heads. The patches of a call are those
/// of [`grid`](Self::grid) row by row, or of another grid that the call gives: then the embeddings are resized
/// linearly. Windows of an image are sequences of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelativeKey2d {
    /// Rows and columns of patches; 1 to 1024 each.
    pub grid: [usize; 2],
}

impl RelativeKey2d {
    /// Embeddings for `grid` rows and columns of patches.
    pub fn new(grid: [usize; 2]) -> Self {
        Self { grid }
    }

    crate::setters! {
        /// Sets the rows and columns of patches.
        with_grid, grid: [usize; 2] = grid;
    }

    /// The rows and columns of a call over `tokens` patches.
    fn grid_of(&self, tokens: usize, given: Option<[usize; 2]>) -> Result<[usize; 2]> {
        let grid @ [rows, columns] = given.unwrap_or(self.grid);
        if rows.checked_mul(columns) == Some(tokens) {
            return Ok(grid);
        }
        let expected = format!("{rows} x {columns} patches; a call can give another grid (`AttentionOptions::grid`)");
        Err(Error::value("the number of tokens", tokens, expected))
    }
}

/// The embeddings `(n, d)` of distances within `side` rows or columns, resized linearly: `(2 side - 1, d)`.
/// Differentiable.
fn resized(table: &Tensor, side: usize) -> Result<Tensor> {
    let (old, new) = (table.dim(0)?, 2 * side - 1);
    if old == new {
        return Ok(table.clone());
    }
    // As `torch.nn.functional.interpolate` without `align_corners`: centers of equal parts correspond.
    let mut weights = vec![0f32; new * old];
    for (i, weights) in weights.chunks_exact_mut(old).enumerate() {
        let at = ((i as f32 + 0.5) * (old as f32 / new as f32) - 0.5).max(0.0);
        let below = (at as usize).min(old - 1);
        let share = at - below as f32;
        weights[below] += 1.0 - share;
        weights[(below + 1).min(old - 1)] += share;
    }
    let weights = Tensor::from_vec(weights, (new, old), &Device::Cpu)?.to_device(table.device())?;
    Ok(weights.to_dtype(table.dtype())?.matmul(table)?)
}

/// The products of queries `(b, n, queries, d)`, of which each of the `n` groups of a sequence stands at another place
/// of one dimension, with the embeddings of distances `(2 n - 1, d)` to all places: `(b, n, queries, n)`.
///
/// Each sequence and place is a product for itself, so that its bits do not depend on the batch.
fn products(queries: &Tensor, table: &Tensor) -> Result<Tensor> {
    let (b, n, _, d) = queries.dims4()?;
    let rows: Vec<u32> = (0..n).flat_map(|q| (0..n).map(move |k| (q + n - 1 - k) as u32)).collect();
    let embeddings = table.index_select(&Tensor::new(rows, table.device())?, 0)?.reshape((1, n, n, d))?;
    let embeddings = embeddings.transpose(2, 3)?.broadcast_as((b, n, d, n))?.contiguous()?;
    Ok(queries.contiguous()?.matmul(&embeddings)?)
}

impl PositionScheme for RelativeKey2d {
    fn validate(&self, _: &LayerSizes) -> Result<()> {
        check_grid(self.grid)
    }

    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        let parameter = |name, side: usize| {
            // Saturating, because the grid may not have been validated yet.
            Parameter::new(name, [side.saturating_mul(2).saturating_sub(1), sizes.head_dim], NORMAL)
        };
        vec![parameter(ROWS, self.grid[0]), parameter(COLUMNS, self.grid[1])]
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { needs_full_sequence: true, counts_tokens: true, uses_grid: true, ..SchemeTraits::default() }
    }

    fn distance_embedding_count(&self, _: usize) -> [usize; 2] {
        [self.grid[0].saturating_add(self.grid[1]), 0]
    }

    fn query_term(&self, call: &QueryCall) -> Result<Option<AttentionMask>> {
        let (b, s_q, h, d) = call.q.dims4()?;
        if s_q != call.s_kv {
            let found = format!("{s_q} queries and {} keys", call.s_kv);
            return Err(Error::value("a call with positions of patches", found, "as many queries as keys"));
        }
        let [height, width] = self.grid_of(s_q, call.grid)?;
        if b * s_q * h == 0 {
            return Ok(None);
        }
        let dtype = compute_dtype(call.q.dtype());
        let table = |name: &str, side: usize| resized(&call.state.weights.require(name)?.to_dtype(dtype)?, side);
        let q = call.q.to_dtype(dtype)?.reshape((b, height, width, h, d))?;
        let by_row = q.reshape((b, height, width * h, d))?;
        let rows = products(&by_row, &table(ROWS, height)?)?.reshape((b, s_q, h, height))?.transpose(1, 2)?;
        let by_column = q.transpose(1, 2)?.reshape((b, width, height * h, d))?;
        let columns = products(&by_column, &table(COLUMNS, width)?)?.reshape((b, width, height, h, width))?;
        let columns = columns.permute((0, 3, 2, 1, 4))?.reshape((b, h, s_q, width))?;
        Ok(Some(AttentionMask::from_term(GridBias { rows, columns })))
    }

    fn describe(&self) -> String {
        let [rows, columns] = self.grid;
        format!("relative key grid({rows} x {columns} patches)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.nn.functional.interpolate(x, size=n, mode="linear")` of torch 2.15.
    #[test]
    fn tables_are_resized_as_torch_does() {
        let table = Tensor::new(&[[1f32], [2.0], [4.0], [8.0], [16.0]], &Device::Cpu).unwrap();
        let cases: [(usize, &[f32]); 3] = [
            (4, &[1.0, 1.571_428_5, 2.571_428_8, 4.0, 6.857_143_4, 11.428_572, 16.0]),
            (2, &[1.333_333_3, 4.0, 13.333_332]),
            (1, &[4.0]),
        ];
        for (side, want) in cases {
            let got = resized(&table, side).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(got.len(), want.len());
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 3e-6), "{got:?}");
        }
    }
}

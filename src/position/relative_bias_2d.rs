//! Relative position bias in two dimensions: a learned bias per head and offset between image patches.

use candle_core::{Device, Tensor};
use candle_nn::Init;

use super::scheme::{BiasCall, LayerSizes, NORMAL, PositionScheme, SchemeTraits};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::tensor::{bias_from_table, compute_dtype};
use crate::weights::{Parameter, Presence};

const TABLE: &str = "relative_position_bias_table";
/// The network that makes the table of offsets: a linear layer into [`HIDDEN`] numbers, and one without a bias into the
/// heads.
const NETWORK: [&str; 3] = ["cpb_mlp.0.weight", "cpb_mlp.0.bias", "cpb_mlp.2.weight"];
const HIDDEN: usize = 512;

/// Upper bound of rows and columns of patches.
const MAX_SIDE: usize = 1 << 10;

/// A learned bias for every offset between two image patches (BEiT, [Bao 2021](https://arxiv.org/abs/2106.08254); Swin,
/// [Liu 2021](https://arxiv.org/abs/2103.14030)).
///
/// The table `relative_position_bias_table` `(table_rows, num_attention_heads)` is a weight of the layer
/// ([`Parameters`](crate::weights::Parameters)). It has `(2 rows - 1)(2 columns - 1)` rows, ordered by the
/// offset of the query from the key, vertical offset first. With a class token three rows follow: class token to patch,
/// patch to class token, class token to itself.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RelativeBias2d {
    /// Rows and columns of patches; at most 1024 each.
    pub grid: [usize; 2],
    /// Whether a class token precedes the patches.
    pub class_token: bool,
    /// The rows and columns of the windows of training, from 2, if the table is computed of offsets (Swin v2,
    /// [Liu 2021](https://arxiv.org/abs/2111.09883)): `16 · sigmoid(MLP(o))`, with
    /// `o = ±log2(8 · |offset| / (side - 1) + 1) / 3` for rows and for columns. In place of the table,
    /// `cpb_mlp.0.weight` `(512, 2)`, `cpb_mlp.0.bias` `(512)` and `cpb_mlp.2.weight` `(h, 512)` are weights of the
    /// layer;
    /// there is no class token.
    pub computed: Option<[usize; 2]>,
}

impl RelativeBias2d {
    /// A bias for `grid` rows and columns of patches.
    pub fn new(grid: [usize; 2], class_token: bool) -> Self {
        Self { grid, class_token, computed: None }
    }

    crate::setters! {
        /// Sets the rows and columns of patches.
        with_grid, grid: [usize; 2] = grid;
        /// Sets whether a class token precedes the patches.
        with_class_token, class_token: bool = class_token;
        /// Sets the rows and columns of the windows of training, of which the table is computed.
        with_computed, computed: [usize; 2] = Some(computed);
    }

    /// The table that the network makes: `(table_rows, h)`. Differentiable.
    fn computed_table(&self, trained: [usize; 2], call: &BiasCall) -> Result<Tensor> {
        let weights = &call.state.weights;
        let [input, bias, output] = [0, 1, 2].map(|part| {
            let weight = weights.require(NETWORK[part])?;
            Ok::<_, Error>(weight.to_dtype(compute_dtype(weight.dtype()))?)
        });
        let (input, bias, output) = (input?, bias?, output?);
        let place = |offset: usize, axis: usize| {
            let scaled = 8.0 * (offset as f64 - (self.grid[axis] - 1) as f64) / (trained[axis] - 1) as f64;
            scaled.signum() * (scaled.abs() + 1.0).log2() / 3.0
        };
        let [rows, columns] = self.grid.map(|side| 2 * side - 1);
        let offsets = (0..rows).flat_map(|row| (0..columns).flat_map(move |column| [place(row, 0), place(column, 1)]));
        let offsets = Tensor::from_vec(offsets.collect::<Vec<f64>>(), (rows * columns, 2), &Device::Cpu)?;
        let offsets = offsets.to_dtype(input.dtype())?.to_device(call.device)?;
        let hidden = offsets.matmul(&input.t()?)?.broadcast_add(&bias)?.maximum(0f64)?;
        Ok((candle_nn::ops::sigmoid(&hidden.matmul(&output.t()?)?)? * 16.0)?)
    }

    /// The number of rows of the table.
    pub fn table_rows(&self) -> usize {
        // Saturating, because the grid may not have been validated yet.
        let [down, right] = self.grid.map(|side| side.saturating_mul(2).saturating_sub(1));
        down.saturating_mul(right).saturating_add(if self.class_token { 3 } else { 0 })
    }

    /// The row of the table for each query and key: `(s_q, s_kv)`.
    fn row_indices(&self, s_q: usize, s_kv: usize) -> Result<Vec<u32>> {
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

/// Checks the rows and columns of a grid of patches.
pub(super) fn check_grid(grid: [usize; 2]) -> Result<()> {
    match grid.iter().find(|side| !(1..=MAX_SIDE).contains(*side)) {
        Some(side) => Err(Error::config("the grid of patches", side, format!("1 to {MAX_SIDE} rows and columns"))),
        None => Ok(()),
    }
}

impl PositionScheme for RelativeBias2d {
    fn validate(&self, _: &LayerSizes) -> Result<()> {
        if let Some(trained) = self.computed {
            ensure!(!self.class_token, Error::config("class_token", true, "false: the table is computed of offsets"));
            if trained.iter().any(|side| !(2..=MAX_SIDE).contains(side)) {
                let allowed = format!("2 to {MAX_SIDE} rows and columns");
                return Err(Error::config("computed", format!("{trained:?}"), allowed));
            }
        }
        check_grid(self.grid)
    }

    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        if self.computed.is_some() {
            let [input, bias, output] = NETWORK;
            return vec![
                Parameter::new(input, [HIDDEN, 2], NORMAL),
                Parameter::new(bias, [HIDDEN], Init::Const(0.0)),
                Parameter::new(output, [sizes.num_attention_heads, HIDDEN], NORMAL).with_head_axis(0),
            ];
        }
        let table = Parameter::new(TABLE, [self.table_rows(), sizes.num_attention_heads], NORMAL);
        vec![table.with_head_axis(1).with_presence(Presence::Shared)]
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { needs_full_sequence: true, counts_tokens: true, ..SchemeTraits::default() }
    }

    fn bias(&self, call: &BiasCall) -> Result<Option<AttentionMask>> {
        let rows = self.row_indices(call.s_q, call.s_kv)?;
        let table = match self.computed {
            Some(trained) => self.computed_table(trained, call)?,
            None => call.state.weights.require(TABLE)?.clone(),
        };
        Ok(Some(AttentionMask::additive(&bias_from_table(&table, rows, [1, call.s_q, call.s_kv])?)?))
    }

    fn describe(&self) -> String {
        let [rows, columns] = self.grid;
        let token = match self {
            Self { computed: Some(_), .. } => ", computed",
            Self { class_token: true, .. } => " and a class token",
            _ => "",
        };
        format!("relative grid({rows} x {columns} patches{token})")
    }
}

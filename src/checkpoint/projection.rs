//! One projection as a layout stores it: reads it, writes it, and finds its sizes, in each orientation.

use candle_core::Tensor;

use crate::checkpoint::source::WeightSource;
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layout::{Layout, LinearNames, Orientation};
use crate::tensor::same_elements;
use crate::weights::LinearWeights;

/// The rows of a projection: heads of `dim` each.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub heads: usize,
    pub dim: usize,
}

impl Rows {
    /// The rows of query, key and value.
    pub fn from_config(config: &AttentionConfig) -> [Self; 3] {
        let (heads, kv_heads) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        let (dim, value_dim) = (config.resolved_head_dim(), config.resolved_value_head_dim());
        [Self { heads, dim }, Self { heads: kv_heads, dim }, Self { heads: kv_heads, dim: value_dim }]
    }

    /// Rows that are not divided into heads.
    pub fn whole(rows: usize) -> Self {
        Self { heads: rows, dim: 1 }
    }

    pub fn count(self) -> usize {
        self.heads * self.dim
    }
}

/// The side of a projection on which the heads are.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum HeadSide {
    /// Its outputs are heads, as those of queries.
    Outputs,
    /// Its inputs are heads, as those of the output projection.
    Inputs,
}

impl LinearNames {
    /// Reads a projection between heads on one side and `width` numbers on the other, as `(out, in)`.
    pub(super) fn read(
        self,
        source: &dyn WeightSource,
        heads: Rows,
        width: usize,
        side: HeadSide,
    ) -> Result<LinearWeights> {
        let Rows { heads, dim } = heads;
        let (out, input) = match side {
            HeadSide::Outputs => (heads * dim, width),
            HeadSide::Inputs => (width, heads * dim),
        };
        let mut bias_shape = vec![out];
        let weight = match self.orientation {
            Orientation::OutIn => source.get(self.weight, &[out, input])?,
            Orientation::InOut => source.get(self.weight, &[input, out])?.t()?,
            Orientation::OutHeads => source.get_reshaped(self.weight, &[out, heads, dim], &[out, input])?,
            Orientation::Pointwise(ones) => {
                source.get_reshaped(self.weight, &[&[out, input][..], &vec![1; ones]].concat(), &[out, input])?
            }
            Orientation::Grouped => {
                // A source that does not tell shapes has one group.
                let divides =
                    |size: &usize| *size > 0 && input.is_multiple_of(*size) && out.is_multiple_of(input / size);
                let stored = source.shape(self.weight)?.and_then(|shape| shape.get(1).copied()).filter(divides);
                let columns = stored.unwrap_or(input);
                block_diagonal(&source.get_reshaped(self.weight, &[out, columns, 1], &[out, columns])?, input)?
            }
            // Flax and Keras may keep the heads as a dimension of their own.
            Orientation::Kernel | Orientation::Absent => {
                let by_head = match side {
                    HeadSide::Outputs => [width, heads, dim],
                    HeadSide::Inputs => [heads, dim, width],
                };
                let is_by_head = match source.shape(self.weight)? {
                    Some(shape) => shape.len() == 3,
                    // This source only confirms a shape.
                    None => source.get(self.weight, &by_head).is_ok(),
                };
                if is_by_head && side == HeadSide::Outputs {
                    bias_shape = vec![heads, dim];
                }
                let stored = if is_by_head { by_head.to_vec() } else { vec![input, out] };
                source.get_reshaped(self.weight, &stored, &[input, out])?.t()?
            }
        };
        let has_bias = !self.bias.is_empty() && source.contains(self.bias);
        let bias = has_bias.then(|| source.get_reshaped(self.bias, &bias_shape, &[out])).transpose()?;
        Ok(LinearWeights { weight, bias })
    }

    /// The weight `(out, in)` as the layout stores it. `heads` are those of one side, where each has its rows or
    /// columns.
    pub(super) fn stored_weight(
        self,
        weight: &Tensor,
        heads: Option<(Rows, HeadSide)>,
        layout: &Layout,
    ) -> Result<Tensor> {
        let (out, input) = weight.dims2()?;
        Ok(match (self.orientation, heads) {
            (Orientation::OutIn, _) => weight.contiguous()?,
            (Orientation::OutHeads, Some((Rows { heads, dim }, _))) => weight.reshape((out, heads, dim))?,
            (Orientation::Pointwise(ones), _) => weight.reshape([weight.dims(), &vec![1; ones]].concat())?,
            (Orientation::Grouped, _) => diagonal_blocks(weight, layout)?.unsqueeze(2)?,
            (Orientation::Kernel, Some((Rows { heads, dim }, side))) if layout.per_head_kernels => match side {
                HeadSide::Outputs => weight.t()?.reshape((input, heads, dim))?,
                HeadSide::Inputs => weight.t()?.reshape((heads, dim, out))?,
            },
            _ => weight.t()?.contiguous()?,
        })
    }

    /// The sizes `(out, in)` of the stored weight.
    pub(super) fn sizes(self, source: &dyn WeightSource, side: HeadSide) -> Result<(usize, usize)> {
        let unknown = || {
            let found = "is in a source that does not tell shapes, such as `VarBuilder::from_varmap`";
            let expected = "one that does: `VarMapSource::new(&map)`, a `Checkpoint`, or another `VarBuilder`";
            Error::tensor(source.full_name(self.weight), found, expected)
        };
        let shape = source.shape(self.weight)?.ok_or_else(unknown)?;
        match (shape.as_slice(), self.orientation, side) {
            ([out, input, ones @ ..], Orientation::Pointwise(n), _) if ones == vec![1; n] => Ok((*out, *input)),
            (&[out, input, 1], Orientation::Grouped, _) if input > 0 && out.is_multiple_of(input) => Ok((out, out)),
            (&[out, input], Orientation::OutIn, _) => Ok((out, input)),
            (&[input, out], Orientation::InOut | Orientation::Kernel, _) => Ok((out, input)),
            (&[input, h, d], Orientation::Kernel, HeadSide::Outputs) => Ok((h * d, input)),
            (&[out, h, d], Orientation::OutHeads, HeadSide::Inputs) => Ok((out, h * d)),
            (&[h, d, out], Orientation::Kernel, HeadSide::Inputs) => Ok((out, h * d)),
            _ => {
                let found = format!("has shape {shape:?}");
                Err(Error::tensor(source.full_name(self.weight), found, "a projection's weight"))
            }
        }
    }
}

impl Layout {
    /// The error for something that the layout has no place for.
    pub(super) fn cannot_hold(&self, what: &str, expected: &str) -> Error {
        Error::value(format!("the layout for {what}"), format!("layout `{}`", self.name), expected)
    }
}

/// The matrix `(out, width)` of groups whose rows are `weight` `(out, width / groups)`. Differentiable.
fn block_diagonal(weight: &Tensor, width: usize) -> Result<Tensor> {
    let (out, columns) = weight.dims2()?;
    let groups = width.checked_div(columns).unwrap_or(0).max(1);
    let block = |group: usize| {
        let rows = weight.narrow(0, group * (out / groups), out / groups)?;
        rows.pad_with_zeros(1, group * columns, width.saturating_sub((group + 1) * columns))
    };
    Ok(Tensor::cat(&(0..groups).map(block).collect::<candle_core::Result<Vec<_>>>()?, 0)?)
}

/// The inverse of [`block_diagonal`], with as many groups as there are: the rows `(out, in / groups)` of a square
/// weight.
fn diagonal_blocks(weight: &Tensor, layout: &Layout) -> Result<Tensor> {
    let (out, input) = weight.dims2()?;
    for size in (1..=out).filter(|size| out == input && out.is_multiple_of(*size)) {
        let block = |start: usize| weight.narrow(0, start, size)?.narrow(1, start, size);
        let rows = (0..out).step_by(size).map(block).collect::<candle_core::Result<Vec<_>>>()?;
        let rows = Tensor::cat(&rows, 0)?;
        if same_elements(&block_diagonal(&rows, input)?, &weight.contiguous()?)? {
            return Ok(rows);
        }
    }
    let what = format!("a projection of {input} numbers to {out}");
    Err(layout.cannot_hold(&what, "one that needs no square weights"))
}

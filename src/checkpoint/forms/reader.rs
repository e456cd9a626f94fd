//! `Reader`: reads projections in the sizes of a configuration.

use std::fmt::Display;

use candle_core::Tensor;

use crate::checkpoint::projection::{HeadSide, Rows};
use crate::checkpoint::source::WeightSource;
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layout::{Layout, LinearNames};
use crate::tensor::check_tensor_memory;
use crate::weights::LinearWeights;

/// A layer of a source, the layout that it is in, and the configuration that it has to fit.
pub(in crate::checkpoint) struct Reader<'a> {
    pub source: &'a dyn WeightSource,
    pub layout: &'static Layout,
    pub config: &'a AttentionConfig,
    /// The rows of query, key and value.
    pub rows: [Rows; 3],
    /// The widths of the inputs of query, key and value.
    pub inputs: [usize; 3],
}

impl Reader<'_> {
    /// The numbers of rows of query, key and value.
    pub fn counts(&self) -> [usize; 3] {
        self.rows.map(Rows::count)
    }

    /// Reads a projection of `width` numbers into heads.
    pub fn linear(&self, names: LinearNames, rows: Rows, width: usize) -> Result<LinearWeights> {
        names.read(self.source, rows, width, HeadSide::Outputs)
    }

    /// Reads the projection of query (0), key (1) or value (2).
    pub fn part(&self, names: LinearNames, part: usize) -> Result<LinearWeights> {
        self.linear(names, self.rows[part], self.inputs[part])
    }

    /// Reads the projection of the output, which has `heads` as inputs.
    pub fn output(&self, heads: Rows) -> Result<LinearWeights> {
        self.layout.o.read(self.source, heads, self.config.resolved_output_size(), HeadSide::Inputs)
    }

    /// The heads of the context: those of the values that each query attends to.
    pub fn context(&self) -> Rows {
        Rows { heads: self.rows[0].heads, dim: self.rows[2].dim }
    }

    /// The weight of a projection that the layout does not have, of the dtype of `like`.
    pub fn identity(&self, out: usize, like: &Tensor) -> Result<LinearWeights> {
        let (dtype, device) = (like.dtype(), like.device());
        check_tensor_memory("the number of inputs of a projection", out, &[out, out], dtype, device)?;
        Ok(LinearWeights { weight: Tensor::eye(out, dtype, device)?, bias: None })
    }

    /// The width of the one input of a fused projection.
    pub fn one_input(&self) -> Result<usize> {
        let [q, k, v] = self.inputs;
        if q == k && q == v {
            return Ok(q);
        }
        let allowed = format!("query_size = {q}: the checkpoint's fused layout `{}` has one", self.layout.name);
        let (field, found) = if q != k { ("key_size", k) } else { ("value_size", v) };
        Err(Error::config(field, found, allowed))
    }

    /// The error for a field of the configuration that another layout has as it is.
    pub fn wrong(&self, field: &'static str, found: impl ToString, allowed: impl Display) -> Error {
        let allowed = format!("{allowed}: the checkpoint's layout is `{}`", self.layout.name);
        Error::config(field, found, allowed)
    }
}

//! `Writer`: collects the tensors of a layer under the names of a layout.

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::checkpoint::projection::{HeadSide, Rows};
use crate::config::AttentionConfig;
use crate::ensure;
use crate::error::Result;
use crate::families::layout::{Layout, LinearNames};
use crate::tensor::same_elements;
use crate::weights::LinearWeights;

/// The tensors of a layer until now, and the layout that they are in.
pub(in crate::checkpoint) struct Writer<'a> {
    pub config: &'a AttentionConfig,
    pub layout: &'a Layout,
    pub tensors: BTreeMap<String, Tensor>,
}

/// The projections of a layer to be written.
pub(in crate::checkpoint) struct Projections {
    /// Query, key and value.
    pub parts: [LinearWeights; 3],
    /// How many of them the layer has itself: the query, then the key, then the value.
    pub own: usize,
    /// The gate, if it is stored before the queries.
    pub gate: Option<LinearWeights>,
}

impl Writer<'_> {
    pub fn insert(&mut self, name: &str, tensor: Tensor) {
        self.tensors.insert(name.to_string(), tensor);
    }

    /// Adds a projection. `heads` are those of one side, if it is a projection of queries, keys, values or the output
    /// alone.
    pub fn put(&mut self, names: LinearNames, dense: &LinearWeights, heads: Option<(Rows, HeadSide)>) -> Result<()> {
        if names.is_absent() {
            let (out, input) = dense.weight.dims2()?;
            let eye = Tensor::eye(out, dense.weight.dtype(), dense.weight.device())?;
            let is_eye = out == input && dense.bias.is_none() && same_elements(&eye, &dense.weight)?;
            let what = "a projection that the layout leaves out";
            ensure!(is_eye, self.layout.cannot_hold(what, "one whose families have it"));
            return Ok(());
        }
        self.insert(names.weight, names.stored_weight(&dense.weight, heads, self.layout)?);
        if let Some(bias) = dense.bias.as_ref().filter(|_| !names.bias.is_empty()) {
            let bias = match heads {
                Some((Rows { heads, dim }, HeadSide::Outputs)) if self.layout.per_head_kernels => {
                    bias.reshape((heads, dim))?
                }
                _ => bias.contiguous()?,
            };
            self.insert(names.bias, bias);
        }
        Ok(())
    }

    /// Adds the projections of query, key and value that have names here and that the layer has.
    pub fn put_parts(&mut self, names: &[LinearNames], projections: &Projections) -> Result<()> {
        let Projections { parts, own, .. } = projections;
        for ((names, dense), rows) in names.iter().zip(&parts[..*own]).zip(Rows::from_config(self.config)) {
            self.put(*names, dense, Some((rows, HeadSide::Outputs)))?;
        }
        Ok(())
    }

    /// Checks that the projections from part `first` on have inputs of one size, which one weight needs.
    pub fn check_one_input(&self, first: usize) -> Result<()> {
        let config = self.config;
        let sizes = [config.resolved_query_size(), config.resolved_key_size(), config.resolved_value_size()];
        let is_one = sizes[first..].iter().all(|size| *size == sizes[2]);
        let what = format!("inputs of {sizes:?} numbers");
        ensure!(is_one, self.layout.cannot_hold(&what, "one with a weight for each"));
        Ok(())
    }
}

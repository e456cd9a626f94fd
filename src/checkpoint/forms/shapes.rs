//! `Shapes`: the sizes of a layer as the shapes of its weights show them.

use crate::attention::mechanisms;
use crate::checkpoint::projection::HeadSide;
use crate::checkpoint::source::WeightSource;
use crate::config::{AttentionConfig, ProjectionBias, Scoring};
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layout::{Layout, LinearNames};
use crate::weights::SCORE;

/// A layer of a source, and what its shapes do not show: the number of heads.
pub(in crate::checkpoint) struct Shapes<'a> {
    pub source: &'a dyn WeightSource,
    pub layout: &'static Layout,
    pub heads: usize,
    /// The biases that the layer has.
    pub bias: ProjectionBias,
    /// The sizes `(out, in)` of the output projection; 0 if there is none.
    pub o: (usize, usize),
}

impl Shapes<'_> {
    /// The sizes `(out, in)` of a projection into heads.
    pub fn linear(&self, names: LinearNames) -> Result<(usize, usize)> {
        names.sizes(self.source, HeadSide::Outputs)
    }

    /// The configuration of a layer whose projections of queries, keys and values are `(out, in)`.
    pub fn config(&self, qkv: [(usize, usize); 3]) -> Result<AttentionConfig> {
        let ([q, k, v], &Self { source, layout, heads, .. }) = (qkv, self);
        // Without an output projection the width of the model is that of its queries, that of the output of its values.
        let [width, output] = if layout.o.is_absent() { [q.1, v.0] } else { [self.o.0; 2] };
        let config = AttentionConfig::new(width, heads).with_output_size(output).with_bias(self.bias);
        let config = config.with_query_size(q.1).with_key_size(k.1).with_value_size(v.1);
        let config = config.with_key_value_source(layout.qkv.key_value_source());
        if heads == 0 && q.0 == 0 {
            // All heads are pruned: no shape shows their size, and nothing needs it. This size has room for any
            // rotation.
            return self.with_mechanisms(config.with_head_dim(256));
        }
        let quotient = |total: usize, divisor: usize, dividend: &str| {
            if divisor > 0 && total.is_multiple_of(divisor) {
                return Ok(total / divisor);
            }
            Err(Error::config("num_attention_heads", heads, format!("a divisor of {total}, {dividend}")))
        };
        let head_dim = quotient(q.0, heads, "the rows of the query projection")?;
        let kv_heads = quotient(k.0, head_dim, "the rows of the key projection")?;
        let value_head_dim = quotient(v.0, kv_heads, "the rows of the value projection")?;
        let mut config =
            config.with_head_dim(head_dim).with_num_key_value_heads(kv_heads).with_value_head_dim(value_head_dim);
        if source.contains(SCORE) {
            config = config.with_scoring(Scoring::Additive);
        }
        let config = self.with_mechanisms(config)?;
        config.validate()?;
        Ok(config)
    }

    /// Adds to `config`, which has the sizes of the projections, the mechanisms whose tensors the source holds.
    pub fn with_mechanisms(&self, config: AttentionConfig) -> Result<AttentionConfig> {
        mechanisms::infer(config, &|parameter, rank| {
            let held = self.layout.held_name(|name| self.source.contains(name), parameter);
            let Some(name) = held else { return Ok(None) };
            let shape = self.source.shape(&name)?.unwrap_or_default();
            let error = || Error::shape(self.source.full_name(&name), &shape, format!("{rank} dimensions"));
            ensure!(shape.len() == rank, error());
            Ok(Some(shape))
        })
    }
}

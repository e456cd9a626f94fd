//! Queries over a memory whose keys and values are projected already.

use std::borrow::Cow;

use candle_core::Tensor;

use super::{CallTokens, Counted, Projection};
use crate::attention::MultiHeadAttention;
use crate::attention::cache::CrossCache;
use crate::attention::options::{AttentionInputs, AttentionOptions};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;

pub(super) struct Memory<'a>(pub &'a CrossCache);

impl CallTokens for Memory<'_> {
    fn check(&self, layer: &MultiHeadAttention, inputs: &AttentionInputs, _: &AttentionOptions) -> Result<usize> {
        layer.check_own_keys()?;
        layer.check_input("query", inputs.query, layer.config.resolved_query_size())?;
        self.0.check_layer(layer)?;
        let b = inputs.query.dim(0)?;
        if b != self.0.batch_size() {
            let expected = format!("{}, as in the cache for cross-attention", self.0.batch_size());
            return Err(Error::value("the batch size", b, expected));
        }
        Ok(b)
    }

    fn count<'m>(
        &mut self,
        layer: &MultiHeadAttention,
        [query, ..]: &[Tensor; 3],
        _: &AttentionOptions,
        mask: Cow<'m, AttentionMask>,
    ) -> Result<(Counted, Cow<'m, AttentionMask>)> {
        let stored = Some((layer.dtype(), self.0.tracks_gradient()));
        Ok((Counted { stored, ..Counted::new([query.dim(0)?, query.dim(1)?, self.0.len()]) }, mask))
    }

    fn keys(&mut self, projection: &Projection, _: &mut Cow<AttentionMask>) -> Result<[Tensor; 3]> {
        let Projection { layer, xs, positions, dtype, .. } = projection;
        let q = layer.project_queries(xs[0], self.0.len(), *dtype, positions)?;
        Ok([q, self.0.keys.clone(), self.0.values.clone()])
    }
}

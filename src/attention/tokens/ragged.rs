//! Ragged tokens: sequences one after another, `(tokens, ·)`, without padding.

use std::borrow::Cow;

use candle_core::Tensor;

use super::{CallTokens, Counted, Projection};
use crate::attention::MultiHeadAttention;
use crate::attention::options::{AttentionInputs, AttentionOptions};
use crate::attention::transform::map_distinct;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::position::TokenPositions;
use crate::ragged::{BatchCache, Buffers, RaggedBatch, offsets};
use crate::tensor::same_dtype_and_device;

pub(super) struct Ragged<'a> {
    pub lengths: &'a [usize],
    pub buffers: Option<&'a Buffers>,
    /// The results of this call alone, where the layers of a model share none.
    pub own: BatchCache,
}

impl Ragged<'_> {
    fn results(&self) -> &BatchCache {
        self.buffers.map_or(&self.own, |buffers| &buffers.positions)
    }
}

impl CallTokens for Ragged<'_> {
    fn check(&self, layer: &MultiHeadAttention, inputs: &AttentionInputs, _: &AttentionOptions) -> Result<usize> {
        layer.check_own_keys()?;
        let (xs, lengths, size) = (inputs.query, self.lengths, layer.config.resolved_query_size());
        let tokens = lengths.iter().copied().fold(0, usize::saturating_add);
        match xs.dims() {
            [found, width] if *width == size => {
                if *found != tokens {
                    return Err(Error::value("the sum of lengths", tokens, format!("{found}, the tokens of xs")));
                }
            }
            dims => return Err(Error::shape("xs", dims, format!("(tokens, {size})"))),
        }
        if !inputs.mask.is_windowed() {
            return Err(Error::value("the mask of a ragged batch", &inputs.mask, "full, causal or a window"));
        }
        if layer.config.mask.has_functions() {
            let expected = "full, causal, a window or chunks: a function counts the sequences of a padded batch";
            return Err(Error::value("the layer's mask in a ragged batch", &layer.config.mask, expected));
        }
        if layer.config.position.scheme().traits().counts_tokens && lengths.iter().any(|length| *length != lengths[0]) {
            let expected = format!("equal ones for {}", layer.config.position);
            return Err(Error::value("the list of lengths", format!("{lengths:?}"), expected));
        }
        same_dtype_and_device("xs", xs, layer.qkv.like())?;
        Ok(lengths.len())
    }

    fn count<'m>(
        &mut self,
        _: &MultiHeadAttention,
        _: &[Tensor; 3],
        _: &AttentionOptions,
        mask: Cow<'m, AttentionMask>,
    ) -> Result<(Counted, Cow<'m, AttentionMask>)> {
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        Ok((Counted::new([self.lengths.len(), longest, longest]), mask))
    }

    fn rows(&self, mask: &AttentionMask) -> Option<(Option<Vec<usize>>, AttentionMask)> {
        Some((Some(self.lengths.to_vec()), mask.clone()))
    }

    fn ragged(&self) -> Option<(&[usize], &BatchCache)> {
        Some((self.lengths, self.results()))
    }

    fn keys(&mut self, projection: &Projection, _: &mut Cow<AttentionMask>) -> Result<[Tensor; 3]> {
        let Projection { layer, xs, positions, dtype, .. } = projection;
        let [query, key, value] = map_distinct(*xs, |xs| Ok(xs.unsqueeze(0)?))?;
        let ragged = Some(RaggedBatch { offsets: &offsets(self.lengths), cache: self.results() });
        let positions = TokenPositions { ragged, ..*positions };
        let (q, stored) = layer.project([&query, &key, &value], None, *dtype, &positions)?;
        layer.compared(q, stored, projection)
    }
}

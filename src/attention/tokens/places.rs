//! Padded tokens of a call with a cache, without their padding.

use candle_core::Tensor;

use crate::error::Result;
use crate::tensor::select;

/// Where the new tokens of a call with a cache stand among their padding, which is not projected.
pub(in crate::attention) struct NewPlaces {
    /// `[b, s]` of the padded tokens.
    padded: [usize; 2],
    /// The place of each token among the padded ones.
    places: Vec<usize>,
}

impl NewPlaces {
    /// The places of the first `lengths[i]` of `s` tokens in each of `b` sequences; `None` if there is no padding, or
    /// nothing else.
    pub(in crate::attention) fn new([b, s]: [usize; 2], lengths: &[usize]) -> Option<Self> {
        let places: Vec<usize> = lengths.iter().enumerate().flat_map(|(i, n)| i * s..i * s + n).collect();
        (!places.is_empty() && places.len() < b * s).then_some(Self { padded: [b, s], places })
    }

    /// `(b, s, width)` → `(1, tokens, width)`.
    pub(in crate::attention) fn pack(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(select(&xs.flatten(0, 1)?, &self.places, 0)?.unsqueeze(0)?)
    }

    /// `(1, tokens, …)` → `(b, s, …)`. What stands at padding is the first token.
    pub(in crate::attention) fn pad(&self, ys: &Tensor) -> Result<Tensor> {
        let [b, s] = self.padded;
        let mut tokens = vec![0; b * s];
        self.places.iter().enumerate().for_each(|(token, &place)| tokens[place] = token);
        let dims: Vec<usize> = [b, s].into_iter().chain(ys.dims()[2..].iter().copied()).collect();
        Ok(select(&ys.squeeze(0)?, &tokens, 0)?.reshape(dims)?)
    }
}

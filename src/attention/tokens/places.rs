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
}

/// The tokens at `places`: `(b, s, width)` → `(1, tokens, width)`; `xs` as they are if there is no padding.
pub(in crate::attention) fn pack(places: Option<&NewPlaces>, xs: &Tensor) -> Result<Tensor> {
    let Some(NewPlaces { places, .. }) = places else { return Ok(xs.clone()) };
    Ok(select(&xs.flatten(0, 1)?, places, 0)?.unsqueeze(0)?)
}

/// The tokens of [`pack`] among their padding: `(1, tokens, …)` → `(b, s, …)`. What stands at padding is the first
/// token.
pub(in crate::attention) fn pad(places: Option<&NewPlaces>, ys: Tensor) -> Result<Tensor> {
    let Some(NewPlaces { padded: [b, s], places }) = places else { return Ok(ys) };
    let mut tokens = vec![0; b * s];
    places.iter().enumerate().for_each(|(token, &place)| tokens[place] = token);
    let dims: Vec<usize> = [*b, *s].into_iter().chain(ys.dims()[2..].iter().copied()).collect();
    Ok(select(&ys.squeeze(0)?, &tokens, 0)?.reshape(dims)?)
}

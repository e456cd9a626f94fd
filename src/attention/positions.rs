//! The positions of a call's tokens, as the call gives them.

use crate::attention::MultiHeadAttention;
use crate::attention::options::AttentionOptions;
use crate::error::{Error, Result};
use crate::position::ExplicitPositions;

impl MultiHeadAttention {
    /// The positions that a call gives its `b` sequences of `s_kv` keys, if it does.
    pub(super) fn explicit_positions(
        &self,
        options: &AttentionOptions,
        b: usize,
        s_kv: usize,
    ) -> Result<Option<ExplicitPositions>> {
        let Some(positions) = options.positions else { return Ok(None) };
        let position = &self.config.position;
        let explicit = ExplicitPositions::new(positions, b, s_kv)?;
        if position.scheme().accepts_positions(explicit.axes()) {
            // Without a sequence there is no position to be asked for.
            return Ok(Some(explicit).filter(|_| b > 0));
        }
        if position.scheme().accepts_positions(1) {
            let found = format!("{} per token", explicit.axes());
            return Err(Error::value("the number of positions", found, format!("1: the layer has {position}")));
        }
        let allowed = format!("none: the layer's positions are {position}, which follow from the order of the tokens");
        Err(Error::config("positions", "given by the call", allowed))
    }
}

/// The length of each sequence up to its last token that is not padding; `tokens` are those that are not.
pub(super) fn sequence_lengths(tokens: &[usize], explicit: Option<&ExplicitPositions>) -> Vec<usize> {
    let length = |(row, &tokens): (usize, &usize)| explicit.map_or(tokens, |positions| positions.end(row, tokens));
    tokens.iter().enumerate().map(length).collect()
}

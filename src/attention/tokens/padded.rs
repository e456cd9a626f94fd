//! Padded tokens: queries `(b, s_q, ·)` over keys and values `(b, s_kv, ·)` of one call.

use std::borrow::Cow;

use candle_core::Tensor;

use super::{CallTokens, Counted, Projection};
use crate::attention::MultiHeadAttention;
use crate::attention::options::{AttentionInputs, AttentionOptions};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, DistanceProducts};
use crate::position::QueryCall;

pub(super) struct Padded;

/// Checks padded queries, keys and values against the layer and each other. Returns the number of sequences.
pub(super) fn check_padded(layer: &MultiHeadAttention, inputs: &AttentionInputs) -> Result<usize> {
    let AttentionInputs { query, key, value, .. } = *inputs;
    layer.check_own_keys()?;
    layer.check_input("query", query, layer.config.resolved_query_size())?;
    layer.check_input("key", key, layer.config.resolved_key_size())?;
    let (b, (found, s_kv, size)) = (query.dim(0)?, key.dims3()?);
    ensure!(found == b, Error::shape("key", key.dims(), format!("[{b}, {s_kv}, {size}]")));
    layer.check_values(key, value)?;
    Ok(b)
}

impl CallTokens for Padded {
    fn check(&self, layer: &MultiHeadAttention, inputs: &AttentionInputs, _: &AttentionOptions) -> Result<usize> {
        check_padded(layer, inputs)
    }

    fn count<'m>(
        &mut self,
        layer: &MultiHeadAttention,
        [query, key, _]: &[Tensor; 3],
        options: &AttentionOptions,
        mask: Cow<'m, AttentionMask>,
    ) -> Result<(Counted, Cow<'m, AttentionMask>)> {
        let counted = Counted::new([query.dim(0)?, query.dim(1)?, key.dim(1)?]);
        let explicit = layer.explicit_positions(options, counted.b, counted.s_kv)?;
        Ok((Counted { explicit, ..counted }, mask))
    }

    fn lengths(&self, mask: &AttentionMask, counted: &Counted) -> Option<Vec<usize>> {
        let end = |(sequence, &tokens): (usize, &usize)| {
            counted.explicit.as_ref().map_or(tokens, |positions| positions.end(sequence, tokens))
        };
        mask.padded_lengths().map(|all| all.iter().enumerate().map(end).collect())
    }

    fn rows(&self, mask: &AttentionMask) -> Option<(Option<Vec<usize>>, AttentionMask)> {
        if mask.is_windowed() {
            return Some((None, mask.clone()));
        }
        mask.as_padding().map(|(lengths, band)| (Some(lengths.to_vec()), band))
    }

    fn keys(&mut self, projection: &Projection, mask: &mut Cow<AttentionMask>) -> Result<[Tensor; 3]> {
        let Projection { layer, xs, counted, positions, dtype, .. } = projection;
        let (q, stored) = layer.project(*xs, None, *dtype, positions)?;
        let [q, k, v] = layer.compared(q, stored, projection)?;
        let scale = layer.config.resolved_scale();
        let mut join = |term: AttentionMask| *mask = Cow::Owned(AttentionMask::clone(mask).and(term));
        if let Some(embeddings) = layer.distance_embeddings(counted.s_q, counted.s_kv)? {
            let products = DistanceProducts { q: q.clone(), k: k.clone(), embeddings, scale };
            join(AttentionMask::from_term(products));
        }
        let AttentionOptions { grid, token_types, .. } = *projection.options;
        let (xs, s_kv, state) = (xs[0], counted.s_kv, &layer.position);
        let queries = QueryCall { xs, q: &q, s_kv, scale, grid, token_types, state };
        if let Some(term) = layer.config.position.scheme().query_term(&queries)? {
            join(term);
        }
        Ok([q, layer.append(k, 0)?, layer.append(v, 1)?])
    }
}

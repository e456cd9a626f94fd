//! Queries over the keys and values that another layer returned.

use std::borrow::Cow;

use candle_core::Tensor;

use super::{CallTokens, Counted, Projection};
use crate::attention::MultiHeadAttention;
use crate::attention::cache::KeyValues;
use crate::attention::options::{AttentionInputs, AttentionOptions};
use crate::config::{CallInput, KeyValueSource};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::tensor::{check_shape, same_device};

pub(super) struct Shared<'a>(pub &'a KeyValues);

impl CallTokens for Shared<'_> {
    fn check(&self, layer: &MultiHeadAttention, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<usize> {
        let (config, shared, queries) = (&layer.config, self.0, inputs.query);
        if !matches!(config.key_value_source, KeyValueSource::Shared { .. }) {
            let found = "those of another layer";
            return Err(Error::value("the keys and values of a call", found, "none: the layer has its own"));
        }
        layer.check_input("query", queries, config.resolved_query_size())?;
        let (b, s, h_kv) = (queries.dim(0)?, queries.dim(1)?, config.resolved_num_key_value_heads());
        let sizes = [
            ("keys", &shared.keys, config.resolved_head_dim()),
            ("values", &shared.values, config.resolved_value_head_dim()),
        ];
        for (name, tensor, d) in sizes {
            check_shape(&format!("the {name} of another layer"), tensor, &[b, shared.len(), h_kv, d])?;
        }
        same_device("the keys of another layer", &shared.keys, queries)?;
        if config.requires.contains(&CallInput::Positions) {
            return Ok(b); // They say where the queries stand.
        }
        let unequal = shared.new_tokens.as_ref().is_some_and(|new| new.unequal.is_some());
        if s > shared.tokens || unequal && s < shared.tokens {
            let expected = format!("{}, the tokens of the call that made the keys", shared.tokens);
            return Err(Error::value("the number of queries", s, expected));
        }
        if options.positions.is_some() {
            let allowed = "none: they are those of the call that made the keys";
            return Err(Error::config("positions", "given by the call", allowed));
        }
        Ok(b)
    }

    fn count<'m>(
        &mut self,
        layer: &MultiHeadAttention,
        [query, ..]: &[Tensor; 3],
        options: &AttentionOptions,
        mask: Cow<'m, AttentionMask>,
    ) -> Result<(Counted, Cow<'m, AttentionMask>)> {
        let (b, s, _) = query.dims3()?;
        let given = layer.explicit_positions(options, b, s)?;
        let counted = Counted {
            new_tokens: self.0.new_tokens.clone().filter(|_| given.is_none()),
            explicit: given.or_else(|| self.0.explicit.clone()),
            stored: Some((self.0.keys.dtype(), self.0.tracks_gradient())),
            ..Counted::new([b, s, self.0.len()])
        };
        let mask = mask.into_owned().and(self.0.mask.clone());
        if !mask.counts_tokens() {
            return Ok((counted, Cow::Owned(mask)));
        }
        if self.0.mask.narrowest_window().left.is_some() {
            let expected = "one without chunks and functions, which count from the first token";
            return Err(Error::value("the mask of a call with keys of a cache that drops tokens", mask, expected));
        }
        // The queries are the last tokens; where sequences are unequal, the mask of the keys says where they stand.
        let start = self.0.len().saturating_sub(counted.s_q) as i64;
        Ok((counted, Cow::Owned(mask.with_default_starts(vec![start; query.dim(0)?]))))
    }

    fn lengths(&self, _: &AttentionMask, _: &Counted) -> Option<Vec<usize>> {
        self.0.lengths.clone()
    }

    fn keys(&mut self, projection: &Projection, _: &mut Cow<AttentionMask>) -> Result<[Tensor; 3]> {
        let Projection { layer, xs, positions, dtype, counted, .. } = projection;
        let tokens = counted.explicit.as_ref().map_or(self.0.tokens, |positions| positions.tokens);
        let q = layer.project_queries(xs[0], tokens, *dtype, positions)?;
        Ok([q, self.0.keys.clone(), self.0.values.clone()])
    }
}

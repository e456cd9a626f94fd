//! Incremental decoding with a key-value cache.

use super::append::{CachedKeys, TokenShape};
use super::kv_cache::KvCache;
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::mask::AttnShape;
use crate::position::{ExplicitPositions, TokenPositions};
use crate::sdpa;
use crate::sdpa::{AttentionOutput, Plan};

/// The new tokens of a call with a cache.
pub(super) struct NewTokens {
    /// Tokens of each sequence that are not padding.
    pub(super) counts: Vec<usize>,
    /// The position of the first token of each sequence, if the call does not give positions.
    starts: Vec<usize>,
    /// The length of each sequence with these tokens.
    lengths: Vec<usize>,
    explicit: Option<ExplicitPositions>,
    /// Whether the call tracks a gradient.
    tracked: bool,
}

impl MultiHeadAttention {
    /// [`attend_with`](Self::attend_with) for the next tokens of a sequence: `inputs` are the new tokens, whose keys
    /// and values are added to the cache, and which attend to all keys in it.
    ///
    /// Positions continue from the end of the cache, or are those of
    /// [`AttentionOptions::with_positions`]. The mask covers all keys: causal masks and windows as usual,
    /// [`keep`](crate::AttentionMask::keep) and similar masks with one column per kept token and per new one
    /// ([`KvCache::mask_columns`]).
    ///
    /// # Errors
    /// Those of [`attend_with`](Self::attend_with); [`Error::CacheFull`]; [`Error::CachedRotation`], where LongRoPE or
    /// dynamic scaling would rotate the cached keys otherwise; a cache of another batch or of a layer with other sizes; a
    /// layer with `add_bias_kv`, `add_zero_attn` or positions of image patches. The cache is unchanged after an error.
    pub fn attend_cached(
        &self,
        inputs: &AttentionInputs,
        cache: &mut KvCache,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        self.run_cached(inputs, None, cache, options)
    }

    /// [`attend_cached`](Self::attend_cached) for sequences of unequal length: the new tokens are padded on the right,
    /// and sequence `i` has `lengths[i]` of them. Each sequence continues at its own end. The output for padding is
    /// undefined.
    ///
    /// # Errors
    /// Those of [`attend_cached`](Self::attend_cached), or another number of lengths than sequences, or a length of more
    /// than the new tokens.
    pub fn attend_cached_lengths(
        &self,
        inputs: &AttentionInputs,
        lengths: &[usize],
        cache: &mut KvCache,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        self.run_cached(inputs, Some(lengths), cache, options)
    }

    fn run_cached(
        &self,
        inputs: &AttentionInputs,
        lengths: Option<&[usize]>,
        cache: &mut KvCache,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        self.check(inputs, options)?;
        if self.config.num_attention_heads == 0 {
            return self.without_heads(inputs.query);
        }
        let new = self.check_cached(inputs, lengths, cache, options)?;
        let before = cache.snapshot();
        let attended = self.attend_new_tokens(inputs, &new, cache, options);
        if attended.is_err() {
            *cache = before;
        }
        attended
    }

    /// Checks everything about a call that can be checked before it runs.
    pub(super) fn check_cached(
        &self,
        inputs: &AttentionInputs,
        lengths: Option<&[usize]>,
        cache: &KvCache,
        options: &AttentionOptions,
    ) -> Result<NewTokens> {
        if self.bias_kv.is_some() || self.config.add_zero_attn {
            return Err(Error::config("add_bias_kv or add_zero_attn", true, "false with a cache"));
        }
        if self.config.position.scheme().needs_full_sequence() {
            let allowed = "a scheme that works with a cache; this one needs the whole sequence";
            return Err(Error::config("position", &self.config.position, allowed));
        }
        let (b, s, _) = inputs.query.dims3()?;
        if inputs.key.dim(1)? != s {
            let found = format!("{s} queries and {} keys", inputs.key.dim(1)?);
            return Err(Error::value("a cached call", found, "as many new keys as new queries"));
        }
        let config = &self.config;
        let of = TokenShape {
            b,
            h_kv: config.resolved_num_key_value_heads(),
            d: config.resolved_head_dim(),
            d_v: config.resolved_value_head_dim(),
            dtype: self.dtype(),
        };
        let counts = cache.check_chunk(of, self.device(), s, lengths)?;
        let explicit = self.explicit_positions(options, b, s)?;
        let mut new = self.check_rotation(cache, counts, explicit)?;

        let s_kv = cache.mask_columns(&new.counts);
        inputs.mask.check(AttnShape { b, h: config.num_attention_heads, s_q: s, s_kv })?;
        let sdpa_options = self.sdpa_options(inputs, options);
        let mut call = self.call(inputs, &sdpa_options, s_kv)?;
        call.dtype = self.dtype();
        Plan::new(&call, &sdpa_options)?;
        new.tracked = call.tracks_gradient;
        Ok(new)
    }

    /// Where the new tokens stand; an error if one run over all tokens would rotate the cached keys otherwise.
    fn check_rotation(
        &self,
        cache: &KvCache,
        counts: Vec<usize>,
        explicit: Option<ExplicitPositions>,
    ) -> Result<NewTokens> {
        let rows = cache.rows_of(counts.len());
        let starts: Vec<usize> = rows.iter().map(|row| row.next_position()).collect();
        let length = |i: usize| match &explicit {
            Some(positions) => starts[i].max(positions.end(i, counts[i])),
            None => starts[i] + counts[i],
        };
        let lengths: Vec<usize> = (0..counts.len()).map(length).collect();
        let scheme = self.config.position.scheme();
        for (i, row) in rows.iter().enumerate().filter(|(i, row)| row.held > 0 && counts[*i] > 0) {
            if scheme.rotation_class(row.rotated_for) != scheme.rotation_class(lengths[i]) {
                return Err(Error::CachedRotation {
                    sequence: i,
                    cached: row.held,
                    rotated_for: row.rotated_for,
                    length: lengths[i],
                    position: self.config.position.to_string(),
                });
            }
        }
        Ok(NewTokens { counts, starts, lengths, explicit, tracked: false })
    }

    fn attend_new_tokens(
        &self,
        inputs: &AttentionInputs,
        new: &NewTokens,
        cache: &mut KvCache,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        let NewTokens { counts, starts, lengths, explicit, tracked } = new;
        let one = |all: &[usize]| all.iter().all(|each| *each == all[0]);
        let rows = if one(starts) && one(lengths) { starts.len().min(1) } else { starts.len() };
        let tokens = TokenPositions {
            starts: &starts[..rows],
            lengths: Some(&lengths[..rows]),
            explicit: explicit.as_ref(),
            ..TokenPositions::default()
        };
        let [q, k, v] = self.project(inputs, self.dtype(), &tokens)?;
        let CachedKeys { keys, values, unequal } =
            cache.append([k, v], counts, lengths, explicit.as_ref(), *tracked)?;

        let starts = unequal.as_ref().map(|[starts, _]| &starts[..]);
        let mask = cache.mask(&inputs.mask, unequal.as_ref());
        let inputs = inputs.under(&mask);
        let mask = self.mask_with_bias(&inputs, inputs.query.dim(1)?, keys.dim(1)?, starts, None)?;
        let inputs = inputs.under(&*mask);
        let sdpa_options = self.sdpa_options(&inputs, options);
        self.finish(sdpa::attend_bshd(&q, &keys, &values, &sdpa_options)?, &inputs, options)
    }
}

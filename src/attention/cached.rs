//! Calls that go on where the last one ended.

use crate::attention::kv_cache::{Held, Kind, KvCache};
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::mask::AttnShape;
use crate::ops::accumulate_dtype;
use crate::position::TokenPositions;
use crate::sdpa;
use crate::sdpa::{AttentionOutput, Plan};

impl MultiHeadAttention {
    /// As [`attend_with`](Self::attend_with) for the next tokens of a sequence: `inputs` are the new ones, their keys and
    /// values join those in the cache, and they attend to all of them. Positions go on from where the cache ends. The
    /// mask is over all keys: causal masks and windows as they are, `keep` and the like with a column for each key held.
    ///
    /// With [`KvCache::cross`], keys and values are made from `inputs.key` and `inputs.value` once and kept.
    ///
    /// # Errors
    /// As [`attend_with`](Self::attend_with); a cache of another batch, or full; a cache of a memory for a layer with
    /// positions. The cache is then as before.
    pub fn attend_cached(
        &self,
        inputs: &AttentionInputs,
        cache: &mut KvCache,
        options: &AttentionOptions,
    ) -> candle_core::Result<AttentionOutput> {
        Ok(self.cached(inputs, None, cache, options)?)
    }

    /// As [`attend_cached`](Self::attend_cached) for rows of unequal length: of the new tokens, padded on the right, row
    /// `b` has `lengths[b]`. Each row goes on where it ended itself; what comes out for padding means nothing.
    ///
    /// # Errors
    /// As [`attend_cached`](Self::attend_cached); a rotating cache.
    pub fn attend_cached_rows(
        &self,
        inputs: &AttentionInputs,
        lengths: &[usize],
        cache: &mut KvCache,
        options: &AttentionOptions,
    ) -> candle_core::Result<AttentionOutput> {
        Ok(self.cached(inputs, Some(lengths), cache, options)?)
    }

    fn cached(
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
        if self.bias_kv.is_some() || self.config.add_zero_attn {
            return Err(Error::config("add_bias_kv or add_zero_attn", true, "false where there is a cache"));
        }
        if self.config.position.scheme().needs_full_sequence() {
            let allowed = "another where there is a cache: these positions are of whole inputs";
            return Err(Error::config("position", &self.config.position, allowed));
        }
        if cache.kind() == Kind::Cross {
            return self.cached_memory(inputs, cache, options);
        }
        let (b, s, _) = inputs.query.dims3()?;
        if inputs.key.dim(1)? != s {
            let found = format!("{s} queries and {} keys", inputs.key.dim(1)?);
            return Err(Error::value("a cached call", found, "as many new keys as queries"));
        }
        let shape = AttnShape { b, h: self.config.num_attention_heads, s_q: s, s_kv: cache.keys_after(s, lengths) };
        inputs.mask.check(shape)?;
        let starts = cache.lengths(b);
        let first = [starts.first().copied().unwrap_or(0)];
        let of_rows: &[usize] = if starts.iter().all(|start| *start == first[0]) { &first } else { &starts };
        let plain = self.sdpa_options(inputs, options);
        let call = self.call(inputs, &plain, shape.s_kv)?;
        let dtype = cache.dtype().unwrap_or(call.dtype);
        // What cannot run has to be found before the cache changes.
        Plan::new(&call, &plain)?;
        let [q, k, v] =
            self.project(inputs, dtype, &TokenPositions { starts: of_rows, ..TokenPositions::default() })?;
        let Held { keys, values, starts, lengths } = cache.append(k, v, lengths)?;

        let mut mask = inputs.mask.clone();
        if let Kind::Rotating(window) = cache.kind() {
            mask = mask.and(AttentionMask::window(Some(window - 1), None));
        }
        if let (Some(starts), Some(lengths)) = (&starts, &lengths) {
            let starts = starts.iter().map(|&start| start as i64).collect();
            mask = mask.and(AttentionMask::starts(starts)).and(AttentionMask::lengths(lengths));
        }
        let inputs = AttentionInputs { mask: &mask, ..*inputs };
        let mask = self.mask_with_bias(&inputs, inputs.query.dim(1)?, keys.dim(1)?, starts.as_deref(), None)?;
        let inputs = AttentionInputs { mask: &mask, ..inputs };
        let sdpa_options = self.sdpa_options(&inputs, options);
        self.finish(sdpa::attend_bshd(&q, &keys, &values, &sdpa_options)?, &inputs, options)
    }

    /// Cross-attention to a memory whose keys and values are made once.
    fn cached_memory(
        &self,
        inputs: &AttentionInputs,
        cache: &mut KvCache,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        if !self.config.position.is_none() {
            // Where a chunk's queries stand against another sequence, only the whole sequence tells.
            return Err(Error::config("position", &self.config.position, "none where the cache is one of a memory"));
        }
        let s_kv = inputs.key.dim(1)?;
        let sdpa_options = self.sdpa_options(inputs, options);
        let dtype = cache.dtype().unwrap_or(self.call(inputs, &sdpa_options, s_kv)?.dtype);
        let held = match cache.memory() {
            Some(held) if held[0].dims()[..2] == inputs.key.dims()[..2] => held.clone(),
            Some([k, _]) => {
                let expected = format!("{:?}, as the cache was made", &k.dims()[..2]);
                return Err(Error::shape("the memory", &inputs.key.dims()[..2], expected));
            }
            None => {
                let [_, k, v] = self.project(inputs, dtype, &TokenPositions::default())?;
                [k.contiguous()?, v.contiguous()?]
            }
        };
        let q = self.qkv.query(inputs.query, self.config.head_dim(), accumulate_dtype(self.qkv.weight()))?;
        let q = self.transform_queries(q)?.to_dtype(dtype)?;
        let [keys, values] = &held;
        let attended = sdpa::attend_bshd(&q, keys, values, &sdpa_options)?;
        let attended = self.finish(attended, inputs, options)?;
        cache.keep_memory(held);
        Ok(attended)
    }
}

//! Incremental decoding with a KV cache.

use crate::attention::kv_cache::{CacheKind, CachedKeys, KvCache};
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::position::TokenPositions;
use crate::sdpa;
use crate::sdpa::{AttentionOutput, Plan};

impl MultiHeadAttention {
    /// [`attend_with`](Self::attend_with) for the next tokens of a sequence: `inputs` are the new tokens, whose keys
    /// and values are added to the cache, and which attend to all keys in it. Positions continue from the end of the
    /// cache. The mask covers all keys: causal masks and windows as usual, [`AttentionMask::keep`] and similar masks
    /// with one column per cached key and per new one.
    ///
    /// With [`KvCache::cross`], keys and values are projected from `inputs.key` and `inputs.value` once and kept.
    ///
    /// # Errors
    /// Those of [`attend_with`](Self::attend_with); a cache of another batch or a full one; a cache for cross-attention
    /// with a layer that has positions. The cache is unchanged after an error.
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
    /// Those of [`attend_cached`](Self::attend_cached), or a rotating cache.
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
        if self.bias_kv.is_some() || self.config.add_zero_attn {
            return Err(Error::config("add_bias_kv or add_zero_attn", true, "false with a cache"));
        }
        if self.config.position.scheme().needs_full_sequence() {
            let allowed = "a scheme that works with a cache; this one needs the whole sequence";
            return Err(Error::config("position", &self.config.position, allowed));
        }
        if cache.kind() == CacheKind::Cross {
            return self.run_cross_cached(inputs, cache, options);
        }
        let (b, s, _) = inputs.query.dims3()?;
        if inputs.key.dim(1)? != s {
            let found = format!("{s} queries and {} keys", inputs.key.dim(1)?);
            return Err(Error::value("a cached call", found, "as many new keys as new queries"));
        }
        let shape = AttnShape { b, h: self.config.num_attention_heads, s_q: s, s_kv: cache.keys_after(s, lengths) };
        inputs.mask.check(shape)?;
        let starts = cache.lengths(b);
        let first = [starts.first().copied().unwrap_or(0)];
        let positions: &[usize] = if starts.iter().all(|start| *start == first[0]) { &first } else { &starts };
        let sdpa_options = self.sdpa_options(inputs, options);
        let call = self.call(inputs, &sdpa_options, shape.s_kv)?;
        let dtype = cache.dtype().unwrap_or(call.dtype);
        // A call that cannot run has to fail before the cache changes.
        Plan::new(&call, &sdpa_options)?;
        let [q, k, v] =
            self.project(inputs, dtype, &TokenPositions { starts: positions, ..TokenPositions::default() })?;
        let CachedKeys { keys, values, starts, lengths } = cache.append(k, v, lengths)?;

        let mut mask = AttentionMask::clone(&inputs.mask);
        if let CacheKind::Rotating(window) = cache.kind() {
            mask = mask.and(AttentionMask::window(Some(window - 1), None));
        }
        if let (Some(starts), Some(lengths)) = (&starts, &lengths) {
            let starts = starts.iter().map(|&start| start as i64).collect();
            mask = mask.and(AttentionMask::lengths(lengths)).with_query_starts(starts);
        }
        let inputs = inputs.under(&mask);
        let mask = self.mask_with_bias(&inputs, inputs.query.dim(1)?, keys.dim(1)?, starts.as_deref(), None)?;
        let inputs = inputs.under(&*mask);
        let sdpa_options = self.sdpa_options(&inputs, options);
        self.finish(sdpa::attend_bshd(&q, &keys, &values, &sdpa_options)?, &inputs, options)
    }

    /// Cross-attention to a memory whose keys and values are projected once.
    fn run_cross_cached(
        &self,
        inputs: &AttentionInputs,
        cache: &mut KvCache,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        if !self.config.position.is_none() {
            // The positions of a chunk's queries relative to another sequence follow only from the whole sequence.
            return Err(Error::config("position", &self.config.position, "none with a cache for cross-attention"));
        }
        let s_kv = inputs.key.dim(1)?;
        let mask = self.with_own_mask(&inputs.mask);
        let inputs = &inputs.under(&*mask);
        let sdpa_options = self.sdpa_options(inputs, options);
        let dtype = cache.dtype().unwrap_or(self.call(inputs, &sdpa_options, s_kv)?.dtype);
        let memory = match cache.memory() {
            Some(memory) if memory[0].dims()[..2] == inputs.key.dims()[..2] => memory.clone(),
            Some([k, _]) => {
                let expected = format!("{:?}, as in the first call with this cache", &k.dims()[..2]);
                return Err(Error::shape("the memory", &inputs.key.dims()[..2], expected));
            }
            None => {
                let [_, k, v] = self.project(inputs, dtype, &TokenPositions::default())?;
                [k.contiguous()?, v.contiguous()?]
            }
        };
        let q = self.project_queries(inputs.query, dtype)?;
        let [keys, values] = &memory;
        let attended = sdpa::attend_bshd(&q, keys, values, &sdpa_options)?;
        let attended = self.finish(attended, inputs, options)?;
        cache.keep_memory(memory);
        Ok(attended)
    }
}

//! Calls of a layer with latent attention: from inputs to what attention compares, in the expanded and the absorbed
//! form.

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::KvCache;
use crate::attention::call::PreparedCall;
use crate::attention::options::{AttentionInputs, AttentionOptions, Tokens};
use crate::attention::padded::NewPlaces;
use crate::config::LatentAttention;
use crate::error::{Error, Result};
use crate::ops::{Latent, accumulate_dtype, concat_last};
use crate::position::TokenPositions;
use crate::ragged::{BatchCache, RaggedBatch, offsets};
use crate::sdpa::{Backend, Call, Plan, SdpaOptions};

impl LatentAttention {
    /// Whether the absorbed form costs fewer multiply-adds for `s` new tokens and `keys` keys, `s` of them new. Per
    /// head and with `r` elements of a latent, `n + p` of a key and `v` of a value:
    ///
    /// - expanded, every key of the cache is made again: `keys · r (n + v)`, then `s · keys · (n + p + v)`;
    /// - absorbed, queries and outputs are projected: `s · r (n + v)`, then `s · keys · (2 r + p)`.
    ///
    /// For DeepSeek-V3 (r = 512, n = v = 128, p = 64) that is one query from 2 keys on, and up to 170 queries if there
    /// are enough keys.
    fn absorbs(&self, s: usize, keys: usize) -> bool {
        let [s, keys, r, n, p, v] =
            [s, keys, self.kv_lora_rank, self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim]
                .map(|size| size as f64);
        s * r * (n + v) + s * keys * (2.0 * r + p) < keys * r * (n + v) + s * keys * (n + p + v)
    }
}

impl MultiHeadAttention {
    /// The call in the absorbed form and its backend, if that form is the cheaper one for a call with a cache. A
    /// gradient goes through the expanded form, and so does a call whose forced backend does not run the other one.
    pub(super) fn absorbed_call(&self, call: &Call, options: &SdpaOptions) -> Option<(Call, Backend)> {
        let latent = self.config.latent.as_ref()?;
        if call.tracks_gradient || !latent.absorbs(call.shape.s_q, call.shape.s_kv) {
            return None;
        }
        let call = Call { h_kv: 1, d: latent.cached_size(), d_v: latent.kv_lora_rank, ..*call };
        Plan::choose(&call, options).ok().map(|backend| (call, backend))
    }

    /// Checks that a call has one input for keys and values, and no more keys than an indexer chooses.
    pub(super) fn check_latent(&self, inputs: &AttentionInputs, s_kv: usize) -> Result<()> {
        let Some(latent) = &self.config.latent else { return Ok(()) };
        if inputs.key.id() != inputs.value.id() {
            let expected = "the tensor of the keys: latent attention makes both of one input";
            return Err(Error::value("the input of values", "another tensor", expected));
        }
        match latent.index_topk {
            Some(most) if s_kv > most => {
                let why = "beyond it an indexer chooses the keys, which this version does not run";
                let expected = format!("at most `index_topk` = {most}: {why}");
                Err(Error::value("the number of keys", s_kv, expected))
            }
            _ => Ok(()),
        }
    }

    /// [`transformed`](Self::transformed) of a layer with latent attention, in the absorbed form if `prepared` has it.
    pub(super) fn transformed_latent(
        &self,
        latent: &Latent,
        inputs: &AttentionInputs,
        prepared: &PreparedCall,
        dtype: DType,
        options: &AttentionOptions,
        cache: Option<&mut KvCache>,
    ) -> Result<[Tensor; 3]> {
        let PreparedCall { call, new_tokens, absorbed, .. } = prepared;
        let xs = [inputs.query, inputs.key];
        let tokens = prepared.positions(options.grid, None);
        let (q, latents) = match (&inputs.tokens, cache, new_tokens) {
            (Tokens::Memory(_) | Tokens::Shared(_), ..) => {
                let expected = "its own: a layer with latent attention makes keys of its input";
                return Err(Error::value("the keys of a call", "those of a memory or of another layer", expected));
            }
            (Tokens::Ragged(lengths), ..) => {
                let (xs, own_batch) = (inputs.query.unsqueeze(0)?, BatchCache::default());
                let cache = inputs.buffers.map_or(&own_batch, |buffers| &buffers.positions);
                let ragged = Some(RaggedBatch { offsets: &offsets(lengths), cache });
                self.latents(latent, [&xs; 2], None, dtype, &TokenPositions { ragged, ..tokens })?
            }
            (Tokens::Padded, Some(cache), Some(new)) => {
                let (q, latents) = self.latents(latent, xs, NewPlaces::of(inputs), dtype, &tokens)?;
                let [latents] = cache.add([latents], new, call.tracks_gradient)?;
                (q, latents)
            }
            (Tokens::Padded, ..) => self.latents(latent, xs, None, dtype, &tokens)?,
        };
        if absorbed.is_some() {
            let values = latents.narrow(3, 0, latent.sizes().rank)?;
            return Ok([latent.absorb(&q)?, latents, values]);
        }
        let [k, v] = latent.expand(&latents, dtype)?;
        Ok([q, k, v])
    }

    /// Queries `(b, s, h, d)`, and latents with rotated keys `(b, s, 1, ·)`, in `dtype`. Of padded tokens only those
    /// at `places` are projected.
    fn latents(
        &self,
        latent: &Latent,
        [query, key]: [&Tensor; 2],
        places: Option<NewPlaces>,
        dtype: DType,
        tokens: &TokenPositions,
    ) -> Result<(Tensor, Tensor)> {
        let wide = accumulate_dtype(latent.like());
        let [q, latents, shared] = match &places {
            None => {
                let [latents, shared] = latent.compress(key, wide)?;
                [latent.queries(query, wide)?, latents, shared]
            }
            Some(places) => {
                let [latents, shared] = latent.compress(&places.pack(key)?, wide)?;
                let q = latent.queries(&places.pack(query)?, wide)?;
                [places.pad(&q)?, places.pad(&latents)?, places.pad(&shared)?]
            }
        };
        let [q, shared] = self.stepped_latent(q, shared, tokens)?;
        Ok((q.to_dtype(dtype)?, concat_last(&latents, &shared)?.to_dtype(dtype)?))
    }
}

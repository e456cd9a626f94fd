//! Latent attention: its latents, the form in which a call compares them, and the limits of its keys.

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::tokens::{NewPlaces, pack, pad};
use crate::config::LatentAttention;
use crate::error::{Error, Result};
use crate::ops::{Latent, accumulate_dtype, concat_last};
use crate::position::TokenPositions;
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
        if latent.multi_query || call.tracks_gradient || !latent.absorbs(call.shape.s_q, call.shape.s_kv) {
            return None;
        }
        let call = Call { h_kv: 1, d: latent.cached_size(), d_v: latent.kv_lora_rank, ..*call };
        Plan::choose(&call, options).ok().map(|backend| (call, backend))
    }

    /// Checks that a call of `xs` has one input for keys and values where the layer makes both of one, and no more keys
    /// than the layer takes.
    pub(super) fn check_keys(&self, [_, key, value]: &[Tensor; 3], s_kv: usize) -> Result<()> {
        if self.config.latent.is_some() && key.id() != value.id() {
            let expected = "the tensor of the keys: latent attention makes both of one input";
            return Err(Error::value("the input of values", "another tensor", expected));
        }
        self.check_key_count(s_kv)
    }

    /// Queries `(b, s, h, d)`, and latents with rotated keys and what keys of blocks are made of, `(b, s, 1, ·)`, in
    /// `dtype`. Of padded tokens only those at `places` are projected.
    pub(super) fn latents(
        &self,
        latent: &Latent,
        [query, key]: [&Tensor; 2],
        places: Option<&NewPlaces>,
        dtype: DType,
        tokens: &TokenPositions,
    ) -> Result<(Tensor, Tensor)> {
        let wide = accumulate_dtype(latent.like());
        let [latents, shared] = latent.compress(&pack(places, key)?, wide)?;
        let q = pad(places, latent.queries(&pack(places, query)?, wide)?)?;
        let [q, shared] = self.stepped_latent(q, pad(places, shared)?, tokens)?;
        let mut stored = concat_last(&pad(places, latents)?, &shared)?;
        for mechanism in &self.mechanisms {
            if let Some(parts) = mechanism.beside_latents(key, wide)? {
                stored = concat_last(&stored, &parts)?;
            }
        }
        Ok((q.to_dtype(dtype)?, stored.to_dtype(dtype)?))
    }
}

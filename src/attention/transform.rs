//! From inputs to the queries, keys and values of attention: projection, clipping, steps and extra keys.

use candle_attention_kernels::SCALE_BYTES;
use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::tokens::{NewPlaces, Projection, pack, pad};
use crate::error::{Error, Result};
use crate::mask::DistanceEmbeddings;
use crate::ops::accumulate_dtype;
use crate::position::{EmbeddingCall, TokenPositions};
use crate::tensor::{is_int8, wide};

/// The index of the output projection, after those of queries, keys and values.
pub(super) const OUTPUT: usize = 3;

/// The projections that a cache holds.
pub(super) enum Stored {
    /// Keys and values `(b, s, h_kv, ·)`.
    KeyValues([Tensor; 2]),
    /// The latents of latent attention, then the rotated keys that all heads share, `(b, s, 1, rank + rope)`, then the
    /// elements of mechanisms.
    Latents([Tensor; 1]),
}

impl MultiHeadAttention {
    /// The embeddings of the distances of a call whose last query stands at the last key, if the scheme has some.
    pub(super) fn distance_embeddings(&self, s_q: usize, s_kv: usize) -> Result<Option<DistanceEmbeddings>> {
        let heads = self.config.num_attention_heads;
        let call = EmbeddingCall { s_q, s_kv, heads, qkv: &self.qkv, state: &self.position };
        self.config.position.scheme().distance_embeddings(&call)
    }

    /// Queries `(b, s, h, d)` and what a cache holds of the tokens, in `dtype`: projected, clipped and stepped. Of
    /// padded tokens only those at `places` are projected.
    pub(super) fn project(
        &self,
        xs: [&Tensor; 3],
        places: Option<&NewPlaces>,
        dtype: DType,
        tokens: &TokenPositions,
    ) -> Result<(Tensor, Stored)> {
        if let Some(latent) = self.qkv.latent() {
            let (q, latents) = self.latents(latent, [xs[0], xs[1]], places, dtype, tokens)?;
            return Ok((q, Stored::Latents([latents])));
        }
        let config = &self.config;
        let sizes = [config.resolved_head_dim(), config.resolved_head_dim(), config.resolved_value_head_dim()];
        let query_bias = config.position.scheme().query_bias(&self.position)?;
        let unchanged = !self.wraps_projections() && !config.has_steps() && query_bias.is_none();
        if unchanged && !config.position.scheme().traits().rotates {
            let [q, k, v] = self.project_at(xs, places, sizes, dtype)?;
            return Ok((q, Stored::KeyValues([k, v])));
        }
        // Rounded once, after the transformations.
        let [q, k, v] = self.project_at(xs, places, sizes, accumulate_dtype(self.qkv.like()))?;
        let [mut q, k, v] =
            self.stepped([self.wrapped_output(0, q)?, self.wrapped_output(1, k)?, self.wrapped_output(2, v)?], tokens)?;
        if let Some(bias) = query_bias {
            q = q.broadcast_add(&bias.to_dtype(q.dtype())?)?;
        }
        Ok((q.to_dtype(dtype)?, Stored::KeyValues([k.to_dtype(dtype)?, v.to_dtype(dtype)?])))
    }

    /// Queries, keys and values of what [`project`](Self::project) has made and a cache holds.
    pub(super) fn compared(&self, q: Tensor, stored: Stored, projection: &Projection) -> Result<[Tensor; 3]> {
        match (stored, self.qkv.latent()) {
            (Stored::KeyValues([k, v]), _) => Ok([q, k, v]),
            (Stored::Latents([latents]), Some(latent)) if projection.absorbed => {
                // In int8, the scale precedes the latents.
                let scale = if is_int8(&latents) { SCALE_BYTES } else { 0 };
                let values = latents.narrow(3, 0, scale + latent.sizes().rank)?;
                Ok([latent.absorb(&q)?, latents, values])
            }
            (Stored::Latents([latents]), latent) => {
                let [latents] = wide([latents], projection.dtype)?;
                let latent = latent.expect("the latents are those of this layer");
                let [k, v] = latent.expand(&latents, projection.dtype)?;
                if !latent.sizes().multi_query {
                    return Ok([q, k, v]);
                }
                let (own, all) = (k.dim(3)?, latents.dim(3)?);
                let parts = latents.narrow(3, own, all - own)?;
                let keys = self.mechanisms.iter().try_fold(k, |keys, mechanism| mechanism.extend_keys(keys, &parts))?;
                Ok([q, keys.clone(), keys])
            }
        }
    }

    /// The products of [`project`](Self::project).
    fn project_at(
        &self,
        xs: [&Tensor; 3],
        places: Option<&NewPlaces>,
        sizes: [usize; 3],
        dtype: DType,
    ) -> Result<[Tensor; 3]> {
        let xs = [self.wrapped_input(0, xs[0])?, self.wrapped_input(1, xs[1])?, self.wrapped_input(2, xs[2])?];
        let packed = map_distinct(xs.each_ref(), |xs| pack(places, xs))?;
        let [q, k, v] = self.qkv.forward(packed.each_ref(), sizes, dtype)?;
        Ok([pad(places, q)?, pad(places, k)?, pad(places, v)?])
    }

    /// The queries alone in `dtype`, as [`project`](Self::project) makes them, over `s_kv` keys that are there already.
    pub(super) fn project_queries(
        &self,
        query: &Tensor,
        s_kv: usize,
        dtype: DType,
        tokens: &TokenPositions,
    ) -> Result<Tensor> {
        if self.qkv.latent().is_some() {
            let expected = "its own: a layer with latent attention makes keys of its input";
            return Err(Error::value("the keys of a call", "those of a memory or of another layer", expected));
        }
        let wide = accumulate_dtype(self.qkv.like());
        let q = self.qkv.query(&self.wrapped_input(0, query)?, self.config.resolved_head_dim(), wide)?;
        Ok(self.stepped_queries(self.wrapped_output(0, q)?, s_kv, tokens)?.to_dtype(dtype)?)
    }

    /// Keys and values alone in `dtype`, as [`project`](Self::project) makes them, of a layer without positions, with
    /// the extra keys.
    pub(super) fn project_memory(&self, key: &Tensor, value: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
        let wide = accumulate_dtype(self.qkv.like());
        let sizes = [self.config.resolved_head_dim(), self.config.resolved_value_head_dim()];
        let [key, value] = [self.wrapped_input(1, key)?, self.wrapped_input(2, value)?];
        let [k, v] = self.qkv.key_value([&key, &value], sizes, wide)?;
        let [k, v] = self.stepped_memory([self.wrapped_output(1, k)?, self.wrapped_output(2, v)?])?;
        Ok([self.append(k.to_dtype(dtype)?, 0)?, self.append(v.to_dtype(dtype)?, 1)?])
    }

    /// Keys (0) or values (1) `(b, s, h_kv, ·)`, then those that mechanisms append.
    pub(super) fn append(&self, xs: Tensor, which: usize) -> Result<Tensor> {
        self.mechanisms.iter().try_fold(xs, |xs, mechanism| mechanism.append(xs, which))
    }

    /// Whether mechanisms change the inputs or outputs of projections.
    pub(super) fn wraps_projections(&self) -> bool {
        self.mechanisms.iter().any(|mechanism| mechanism.wraps_projections())
    }

    /// The input of the projection of queries (0), keys (1), values (2) or the [output](OUTPUT). Differentiable.
    pub(super) fn wrapped_input(&self, projection: usize, xs: &Tensor) -> Result<Tensor> {
        self.mechanisms.iter().try_fold(xs.clone(), |xs, mechanism| mechanism.input(projection, xs))
    }

    /// The output of that projection. Differentiable.
    pub(super) fn wrapped_output(&self, projection: usize, ys: Tensor) -> Result<Tensor> {
        self.mechanisms.iter().try_fold(ys, |ys, mechanism| mechanism.output(projection, ys))
    }

    /// The context `(b, s, h, d_v)` as the output projection takes it, `(b, s, ·)`; `query` `(b, s, query_size)` is the
    /// input of the queries. Differentiable.
    pub(super) fn context(&self, context: Tensor, query: &Tensor) -> Result<Tensor> {
        let context =
            if self.has_context_stage() { context.to_dtype(accumulate_dtype(self.qkv.like()))? } else { context };
        let mut mechanisms = self.mechanisms.iter();
        let context = mechanisms.try_fold(context, |context, mechanism| mechanism.context(self, context, query))?;
        Ok(context.flatten_from(2)?)
    }
}

/// Applies `make` to each distinct tensor. If all three are one tensor, `make` runs once.
pub(super) fn map_distinct(xs: [&Tensor; 3], make: impl Fn(&Tensor) -> Result<Tensor>) -> Result<[Tensor; 3]> {
    let query = make(xs[0])?;
    let key = if xs[1].id() == xs[0].id() { query.clone() } else { make(xs[1])? };
    let value = match xs[2].id() {
        id if id == xs[0].id() => query.clone(),
        id if id == xs[1].id() => key.clone(),
        _ => make(xs[2])?,
    };
    Ok([query, key, value])
}

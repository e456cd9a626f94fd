//! From inputs to what attention compares: projection, clipping, steps and extra keys.

use std::borrow::Cow;

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::KvCache;
use crate::attention::call::PreparedCall;
use crate::attention::options::{AttentionInputs, AttentionOptions, Tokens};
use crate::attention::padded::NewPlaces;
use crate::error::Result;
use crate::mask::{AttentionMask, DistanceEmbeddings, DistanceProducts};
use crate::ops::accumulate_dtype;
use crate::position::{EmbeddingCall, QueryCall, TokenPositions};
use crate::ragged::{BatchCache, RaggedBatch, offsets};

impl MultiHeadAttention {
    /// Queries, keys and values `(b, s, heads, d)` in `dtype`, ready for attention: with the extra keys of the layer,
    /// and with the keys and values of the cache, to which the new ones are added. What depends on queries and keys is
    /// added to the mask of the call.
    pub(super) fn transformed(
        &self,
        inputs: &AttentionInputs,
        prepared: &mut PreparedCall,
        dtype: DType,
        options: &AttentionOptions,
        cache: Option<&mut KvCache>,
    ) -> Result<[Tensor; 3]> {
        if let Some(latent) = self.qkv.latent() {
            return self.transformed_latent(latent, inputs, prepared, dtype, options, cache);
        }
        let PreparedCall { call, new_tokens, .. } = &*prepared;
        let xs = [inputs.query, inputs.key, inputs.value];
        let tokens = TokenPositions { cos_sin: options.cos_sin, ..prepared.positions(options.grid, None) };
        let [q, k, v] = match (&inputs.tokens, cache, new_tokens) {
            (Tokens::Memory(memory), ..) => {
                let q = self.project_queries(inputs.query, memory.len(), dtype, &tokens)?;
                return Ok([q, memory.keys.clone(), memory.values.clone()]);
            }
            (Tokens::Shared(shared), ..) => {
                let q = self.project_queries(inputs.query, shared.tokens, dtype, &tokens)?;
                return Ok([q, shared.keys.clone(), shared.values.clone()]);
            }
            (Tokens::Ragged(lengths), ..) => {
                let own_batch = BatchCache::default();
                let cache = inputs.buffers.map_or(&own_batch, |buffers| &buffers.positions);
                let ragged = Some(RaggedBatch { offsets: &offsets(lengths), cache });
                let [query, key, value] = each_once(xs, |xs| Ok(xs.unsqueeze(0)?))?;
                return self.project([&query, &key, &value], None, dtype, &TokenPositions { ragged, ..tokens });
            }
            (Tokens::Padded, Some(cache), Some(new)) => {
                let [q, k, v] = self.project(xs, NewPlaces::of(inputs), dtype, &tokens)?;
                let [k, v] = cache.add([k, v], new, call.tracks_gradient)?;
                return Ok([q, k, v]);
            }
            (Tokens::Padded, ..) => self.project(xs, None, dtype, &tokens)?,
        };
        let (s_q, s_kv) = (call.shape.s_q, call.shape.s_kv);
        if let Some(embeddings) = self.distance_embeddings(s_q, s_kv)? {
            let scale = self.config.resolved_scale();
            let products = AttentionMask::of_term(DistanceProducts { q: q.clone(), k: k.clone(), embeddings, scale });
            prepared.options.mask = Cow::Owned(AttentionMask::clone(&prepared.options.mask).and(products));
        }
        let queries = QueryCall { xs: inputs.query, q: &q, s_kv, grid: options.grid, state: &self.position };
        if let Some(term) = self.config.position.scheme().query_term(&queries)? {
            prepared.options.mask = Cow::Owned(AttentionMask::clone(&prepared.options.mask).and(term));
        }
        Ok([q, self.append(k, 0)?, self.append(v, 1)?])
    }

    /// The embeddings of the distances of a call whose last query stands at the last key, if the scheme has some.
    pub(super) fn distance_embeddings(&self, s_q: usize, s_kv: usize) -> Result<Option<DistanceEmbeddings>> {
        let heads = self.config.num_attention_heads;
        let call = EmbeddingCall { s_q, s_kv, heads, qkv: &self.qkv, state: &self.position };
        self.config.position.scheme().distance_embeddings(&call)
    }

    /// Queries, keys and values `(b, s, heads, d)` in `dtype`, projected, clipped and stepped. Of padded
    /// tokens only those at `places` are projected.
    fn project(
        &self,
        xs: [&Tensor; 3],
        places: Option<NewPlaces>,
        dtype: DType,
        tokens: &TokenPositions,
    ) -> Result<[Tensor; 3]> {
        let config = &self.config;
        let sizes = [config.resolved_head_dim(), config.resolved_head_dim(), config.resolved_value_head_dim()];
        let query_bias = config.position.scheme().query_bias(&self.position)?;
        let unchanged = config.clip_qkv.is_none() && !config.steps.has_more_than_rotation() && query_bias.is_none();
        if unchanged && !config.position.scheme().rotates() {
            return self.project_at(xs, places, sizes, dtype);
        }
        // Rounded once, after the transformations.
        let [q, k, v] = self.project_at(xs, places, sizes, accumulate_dtype(self.qkv.like()))?;
        let [mut q, k, v] = self.stepped([self.clipped(q)?, self.clipped(k)?, self.clipped(v)?], tokens)?;
        if let Some(bias) = query_bias {
            q = q.broadcast_add(&bias.to_dtype(q.dtype())?)?;
        }
        Ok([q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?])
    }

    /// The products of [`project`](Self::project).
    fn project_at(
        &self,
        xs: [&Tensor; 3],
        places: Option<NewPlaces>,
        sizes: [usize; 3],
        dtype: DType,
    ) -> Result<[Tensor; 3]> {
        let Some(places) = places else { return self.qkv.forward(xs, sizes, dtype) };
        let [query, key, value] = each_once(xs, |xs| places.pack(xs))?;
        let [q, k, v] = self.qkv.forward([&query, &key, &value], sizes, dtype)?;
        Ok([places.pad(&q)?, places.pad(&k)?, places.pad(&v)?])
    }

    /// The queries alone in `dtype`, as [`project`](Self::project) makes them, over `s_kv` keys that are there already.
    fn project_queries(&self, query: &Tensor, s_kv: usize, dtype: DType, tokens: &TokenPositions) -> Result<Tensor> {
        let wide = accumulate_dtype(self.qkv.like());
        let q = self.qkv.query(query, self.config.resolved_head_dim(), wide)?;
        Ok(self.stepped_queries(self.clipped(q)?, s_kv, tokens)?.to_dtype(dtype)?)
    }

    /// Keys and values alone in `dtype`, as [`project`](Self::project) makes them, of a layer without positions, with
    /// the extra keys.
    pub(super) fn project_memory(&self, key: &Tensor, value: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
        let wide = accumulate_dtype(self.qkv.like());
        let sizes = [self.config.resolved_head_dim(), self.config.resolved_value_head_dim()];
        let [k, v] = self.qkv.key_value([key, value], sizes, wide)?;
        let [k, v] = self.stepped_memory([self.clipped(k)?, self.clipped(v)?])?;
        Ok([self.append(k.to_dtype(dtype)?, 0)?, self.append(v.to_dtype(dtype)?, 1)?])
    }

    /// `xs` `(b, s, h_kv, d)`, then the learned token of `bias_kv` (0: key, 1: value), then the token of zeros.
    fn append(&self, xs: Tensor, which: usize) -> Result<Tensor> {
        let (b, s, h_kv, d) = xs.dims4()?;
        // candle cannot concatenate an empty tensor.
        let mut tokens = if s == 0 { Vec::new() } else { vec![xs.clone()] };
        if let Some(bias) = &self.bias_kv {
            tokens.push(bias[which].to_dtype(xs.dtype())?.reshape((1, 1, h_kv, d))?.broadcast_as((b, 1, h_kv, d))?);
        }
        if self.config.add_zero_attn {
            tokens.push(Tensor::zeros((b, 1, h_kv, d), xs.dtype(), xs.device())?);
        }
        match tokens.as_slice() {
            [] => Ok(xs),
            [only] => Ok(only.clone()),
            _ => Ok(Tensor::cat(&tokens, 1)?),
        }
    }

    fn clipped(&self, xs: Tensor) -> Result<Tensor> {
        Ok(match self.config.clip_qkv {
            Some(limit) => xs.clamp(-limit, limit)?,
            None => xs,
        })
    }
}

/// What `make` makes of each tensor. One tensor stays one: then it is one product.
pub(super) fn each_once(xs: [&Tensor; 3], make: impl Fn(&Tensor) -> Result<Tensor>) -> Result<[Tensor; 3]> {
    let query = make(xs[0])?;
    let key = if xs[1].id() == xs[0].id() { query.clone() } else { make(xs[1])? };
    let value = match xs[2].id() {
        id if id == xs[0].id() => query.clone(),
        id if id == xs[1].id() => key.clone(),
        _ => make(xs[2])?,
    };
    Ok([query, key, value])
}

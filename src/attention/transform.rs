//! From inputs to what attention compares: projection, clipping, norms, rotation and extra keys.

use std::borrow::Cow;

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::KvCache;
use crate::attention::call::PreparedCall;
use crate::attention::options::{AttentionInputs, AttentionOptions, Tokens};
use crate::attention::padded::NewPlaces;
use crate::config::{NormKind, NormOver, QkNorm};
use crate::error::Result;
use crate::mask::{AttentionMask, DistanceEmbeddings, DistanceProducts};
use crate::ops::{Norm, accumulate_dtype};
use crate::position::{EmbeddingCall, QueryCall, TokenPositions};
use crate::ragged::{BatchCache, RaggedBatch, offsets};
use crate::weights::NormWeights;

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
        let PreparedCall { call, new_tokens, .. } = &*prepared;
        let xs = [inputs.query, inputs.key, inputs.value];
        let tokens = prepared.positions(options.grid, None);
        let [q, k, v] = match (&inputs.tokens, cache, new_tokens) {
            (Tokens::Memory(memory), ..) => {
                let q = self.project_queries(inputs.query, dtype)?;
                return Ok([q, memory.keys.clone(), memory.values.clone()]);
            }
            (Tokens::Ragged(lengths), ..) => {
                let (xs, own_batch) = (inputs.query.unsqueeze(0)?, BatchCache::default());
                let cache = inputs.buffers.map_or(&own_batch, |buffers| &buffers.positions);
                let ragged = Some(RaggedBatch { offsets: &offsets(lengths), cache });
                return self.project([&xs; 3], None, dtype, &TokenPositions { ragged, ..tokens });
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

    /// Queries, keys and values `(b, s, heads, d)` in `dtype`, projected, clipped, normalized and rotated. Of padded
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
        let rotates = config.position.scheme().rotates() || query_bias.is_some();
        if self.qk_norm.is_none() && config.clip_qkv.is_none() && !rotates {
            return self.project_at(xs, places, sizes, dtype);
        }
        // Rounded once, after the transformations.
        let [q, k, v] = self.project_at(xs, places, sizes, accumulate_dtype(self.qkv.like()))?;
        let (q, k) = (self.normalized(&self.clipped(q)?, 0)?, self.normalized(&self.clipped(k)?, 1)?);
        let [mut q, k] = config.position.scheme().rotate(q, k, tokens)?;
        if let Some(bias) = query_bias {
            q = q.broadcast_add(&bias.to_dtype(q.dtype())?)?;
        }
        Ok([q.to_dtype(dtype)?, k.to_dtype(dtype)?, self.clipped(v)?.to_dtype(dtype)?])
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
        let query = places.pack(xs[0])?;
        // One tensor stays one: then it is one product.
        let pack = |xs_i: &Tensor| if xs_i.id() == xs[0].id() { Ok(query.clone()) } else { places.pack(xs_i) };
        let [q, k, v] = self.qkv.forward([&query, &pack(xs[1])?, &pack(xs[2])?], sizes, dtype)?;
        Ok([places.pad(&q)?, places.pad(&k)?, places.pad(&v)?])
    }

    /// The queries alone in `dtype`, as [`project`](Self::project) makes them, of a layer without positions.
    fn project_queries(&self, query: &Tensor, dtype: DType) -> Result<Tensor> {
        let wide = accumulate_dtype(self.qkv.like());
        let q = self.qkv.query(query, self.config.resolved_head_dim(), wide)?;
        Ok(self.normalized(&self.clipped(q)?, 0)?.to_dtype(dtype)?)
    }

    /// Keys and values alone in `dtype`, as [`project`](Self::project) makes them, of a layer without positions, with
    /// the extra keys.
    pub(super) fn project_memory(&self, key: &Tensor, value: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
        let wide = accumulate_dtype(self.qkv.like());
        let sizes = [self.config.resolved_head_dim(), self.config.resolved_value_head_dim()];
        let [k, v] = self.qkv.key_value([key, value], sizes, wide)?;
        let k = self.normalized(&self.clipped(k)?, 1)?.to_dtype(dtype)?;
        let v = self.clipped(v)?.to_dtype(dtype)?;
        Ok([self.append(k, 0)?, self.append(v, 1)?])
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

    /// `xs` `(b, s, h, d)` normalized as queries (`which` is 0) or keys (1).
    fn normalized(&self, xs: &Tensor, which: usize) -> Result<Tensor> {
        match (&self.config.qk_norm, &self.qk_norm) {
            (Some(norm), Some(weights)) => normalize(xs, norm, &weights[which]),
            _ => Ok(xs.clone()),
        }
    }
}

/// The expected shape of a parameter of a norm: of rank 2 if it is per head.
pub(super) fn norm_shape(over: NormOver, parameter: &Tensor, h: usize, d: usize) -> Vec<usize> {
    match (over, parameter.rank()) {
        (NormOver::AllHeads, _) => vec![h * d],
        (NormOver::Head, 2) => vec![h, d],
        (NormOver::Head, _) => vec![d],
    }
}

/// xs `(b, s, h, d)` normalized per head, or over all heads of a token.
fn normalize(xs: &Tensor, norm: &QkNorm, weights: &NormWeights) -> Result<Tensor> {
    let (b, s, h, d) = xs.dims4()?;
    let xs = match norm.over {
        NormOver::Head => xs.clone(),
        NormOver::AllHeads => xs.reshape((b, s, 1, h * d))?,
    };
    let norm = Norm {
        xs: &xs,
        add: None,
        add_bias: None,
        weight: &weights.weight,
        bias: weights.bias.as_ref(),
        eps: norm.eps,
        rms: norm.kind != NormKind::Layer,
        offset: if norm.kind == NormKind::RmsOffset { 1.0 } else { 0.0 },
        keep_sum: false,
    };
    let (_, ys) = norm.forward()?;
    Ok(ys.reshape((b, s, h, d))?)
}

#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use super::*;
    use crate::ops::cuda::with_mock_device;
    use crate::tensor::random::Random;

    fn worst(got: &Tensor, want: &Tensor) -> f32 {
        let differences = (got - want).unwrap().abs().unwrap().flatten_all().unwrap();
        differences.max(0).unwrap().to_scalar().unwrap()
    }

    #[test]
    fn fused_norms_equal_tensor_operations() {
        let mut random = Random(1);
        let (b, s, h, d) = (2, 5, 3, 8);
        // A part of a packed projection.
        let xs = random.tensor(&[b, s, 7, d]).narrow(2, 1, h).unwrap();
        for (over, dims) in [(NormOver::Head, vec![d]), (NormOver::Head, vec![h, d]), (NormOver::AllHeads, vec![h * d])]
        {
            for (kind, bias) in [(NormKind::Layer, true), (NormKind::Rms, false), (NormKind::RmsOffset, false)] {
                let norm = QkNorm { kind, over, eps: 1e-6 };
                let weights = NormWeights { weight: random.tensor(&dims), bias: bias.then(|| random.tensor(&dims)) };
                let want = normalize(&xs, &norm, &weights).unwrap();
                let (got, steps) = with_mock_device(|| normalize(&xs, &norm, &weights).unwrap());
                assert_eq!((got.dims(), steps), (want.dims(), 1));
                assert!(worst(&got, &want) < 1e-5, "{kind:?}, {over:?}, {dims:?}");
            }
        }
    }
}

//! From inputs to what attention compares: projection, clipping, norms, rotation and extra keys.

use std::borrow::Cow;

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::options::{AttentionInputs, AttentionOptions};
use crate::attention::positions::sequence_lengths;
use crate::config::{NormKind, NormOver, QkNorm};
use crate::error::Result;
use crate::mask::{AttentionMask, Disentangled, DistanceEmbeddings};
use crate::ops::{Norm, accumulate_dtype};
use crate::position::{EmbeddingCall, TokenPositions};
use crate::weights::NormWeights;

/// Queries, keys and values `(b, s, heads, d)` ready for attention, extra keys included, and the whole mask.
pub(super) struct Transformed<'a> {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub mask: Cow<'a, AttentionMask>,
}

impl MultiHeadAttention {
    /// Projects and transforms the inputs of a padded call. Their mask has the position bias already, to which what
    /// depends on queries and keys is added here.
    pub(super) fn transformed<'a>(
        &self,
        inputs: &'a AttentionInputs,
        dtype: DType,
        options: &AttentionOptions,
    ) -> Result<Transformed<'a>> {
        let (b, s_kv, _) = inputs.key.dims3()?;
        let explicit = self.explicit_positions(options, b, s_kv)?;
        let lengths = inputs.mask.padded_lengths().map(|padding| sequence_lengths(padding, explicit.as_ref()));
        let tokens = TokenPositions {
            explicit: explicit.as_ref(),
            lengths: lengths.as_deref(),
            grid: options.grid,
            ..TokenPositions::default()
        };
        let [q, k, v] = self.project(inputs, dtype, &tokens)?;
        let mask = match self.distance_embeddings(q.dim(1)?, s_kv)? {
            Some(embeddings) => {
                let scale = self.config.resolved_scale();
                let products = Disentangled { q: q.clone(), k: k.clone(), embeddings, scale };
                Cow::Owned(AttentionMask::clone(&inputs.mask).and(AttentionMask::of_term(products)))
            }
            None => Cow::Borrowed(&*inputs.mask),
        };
        Ok(Transformed { q, k: self.append(k, 0)?, v: self.append(v, 1)?, mask })
    }

    /// The embeddings of the distances of a call whose last query stands at the last key, if the scheme has some.
    pub(super) fn distance_embeddings(&self, s_q: usize, s_kv: usize) -> Result<Option<DistanceEmbeddings>> {
        let call = EmbeddingCall { s_q, s_kv, qkv: &self.qkv, state: &self.position };
        self.config.position.scheme().distance_embeddings(&call)
    }

    /// Queries, keys and values `(b, s, heads, d)` in `dtype`, projected, clipped, normalized and rotated.
    pub(super) fn project(
        &self,
        inputs: &AttentionInputs,
        dtype: DType,
        tokens: &TokenPositions,
    ) -> Result<[Tensor; 3]> {
        let config = &self.config;
        let sizes = [config.resolved_head_dim(), config.resolved_head_dim(), config.resolved_value_head_dim()];
        let xs = [inputs.query, inputs.key, inputs.value];
        if self.qk_norm.is_none() && config.clip_qkv.is_none() && !config.position.scheme().rotates() {
            return self.qkv.forward(xs, sizes, dtype);
        }
        // Rounded once, after the transformations.
        let [q, k, v] = self.qkv.forward(xs, sizes, accumulate_dtype(self.qkv.like()))?;
        let (q, k) = (self.normalized(&self.clipped(q)?, 0)?, self.normalized(&self.clipped(k)?, 1)?);
        let [q, k] = config.position.scheme().rotate(q, k, tokens)?;
        Ok([q.to_dtype(dtype)?, k.to_dtype(dtype)?, self.clipped(v)?.to_dtype(dtype)?])
    }

    /// The queries alone in `dtype`, as [`project`](Self::project) makes them, of a layer without positions.
    pub(super) fn project_queries(&self, query: &Tensor, dtype: DType) -> Result<Tensor> {
        let wide = accumulate_dtype(self.qkv.like());
        let q = self.qkv.query(query, self.config.resolved_head_dim(), wide)?;
        Ok(self.normalized(&self.clipped(q)?, 0)?.to_dtype(dtype)?)
    }

    /// Keys and values alone in `dtype`, as [`project`](Self::project) makes them, of a layer without positions, with the
    /// extra keys.
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

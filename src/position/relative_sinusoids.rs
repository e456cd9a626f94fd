//! Transformer-XL's relative positions, as Conformers have them: queries are also compared with projected sinusoids of
//! their distance to each key.

use candle_core::{D, Device, Tensor};
use candle_nn::Init;

use super::scheme::{EmbeddingCall, LayerSizes, NORMAL, PositionScheme, PositionState, QueryCall, SchemeTraits};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, DistanceEmbeddings, comparable};
use crate::ops::{Linear, accumulate_dtype};
use crate::setters;
use crate::tensor::{compute_dtype, element_count};
use crate::weights::{LinearWeights, Parameter};

const PROJECTION: &str = "relative_k_proj.weight";
const CONTENT_BIAS: &str = "bias_u";
const POSITION_BIAS: &str = "bias_v";
const SEGMENT_BIAS: &str = "segment_bias";
const SEGMENTS: &str = "segment_embeddings";

/// The base of the wavelengths.
const THETA: f32 = 10_000.0;

/// Relative positions of Transformer-XL ([Dai 2019](https://arxiv.org/abs/1901.02860)) and of Conformers: a score is
/// `(q + u) · k + (q + v) · r`, times the scale, where `r` is the projected sinusoid of the distance from key to query.
///
/// The projection `relative_k_proj.weight` `(h · d, hidden_size)` and the vectors `bias_u` and `bias_v` `(h, d)` are
/// weights of the layer ([`Parameters`](crate::weights::Parameters)). Sequences may be of any length; the
/// sinusoids of `2 s - 1` distances are projected once and kept.
///
/// With [`segments`](Self::segments) there are `segment_embeddings` `(2, h, d)` and vectors `segment_bias` `(h, d)`,
/// too. In a call with [`token_types`](crate::AttentionOptions::token_types), `(q + segment_bias) · e` is added before
/// the scale, where `e` is the first embedding for a key of the query's own type and the second for any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RelativeSinusoids {
    /// Whether all sines come before all cosines, the longest wavelength is `2π · 10,000`, and there are no vectors `u`
    /// and `v` (the [Universal Speech Model](https://arxiv.org/abs/2303.01037), audio of Gemma 3n); default no.
    pub in_halves: bool,
    /// Whether all sines come before all cosines, and queries are compared with embeddings of whether a key is of their
    /// segment, too ([XLNet](https://arxiv.org/abs/1906.08237)); default no.
    pub segments: bool,
}

impl RelativeSinusoids {
    setters! {
        /// Sets whether all sines come before all cosines, and there are no vectors.
        with_in_halves, in_halves: bool = in_halves;
        /// Sets whether all sines come before all cosines, and there are embeddings of segments.
        with_segments, segments: bool = segments;
    }

    /// The sinusoids of all distances of a sequence of `length` tokens, the longest before a query first, projected:
    /// `(2 length - 1, h · d)`.
    fn project(self, call: &EmbeddingCall, length: usize) -> Result<Tensor> {
        let weight = call.state.weights.require(PROJECTION)?;
        let (out, width) = weight.dims2()?;
        let dtype = accumulate_dtype(call.qkv.like());
        element_count("the embeddings of distances", &[2 * length, out.max(width)])?;
        let sinusoids = self.sinusoids(length, width)?.to_device(weight.device())?;
        // The projection reads its input in its own dtype.
        let sinusoids = sinusoids.to_dtype(weight.dtype())?.unsqueeze(0)?;
        let projection = Linear::new(PROJECTION, LinearWeights::new(weight.clone(), None), out, width)?;
        Ok(projection.forward_in_dtype(&sinusoids, dtype)?.squeeze(0)?)
    }

    /// Sines and cosines `(2 length - 1, width)` of the positions `1 - length ..` of a query after a key. Angles are
    /// computed in f32, as in the references.
    fn sinusoids(self, length: usize, width: usize) -> Result<Tensor> {
        let pairs = width / 2;
        let exponent = |i: usize| {
            if self.in_halves {
                i as f32 / pairs.saturating_sub(1).max(1) as f32
            } else {
                (2 * i) as f32 / width as f32
            }
        };
        let frequencies: Vec<f32> = (0..pairs).map(|i| 1.0 / THETA.powf(exponent(i))).collect();
        let last = length as i64 - 1;
        let angles =
            (-last..=last).flat_map(|position| frequencies.iter().map(move |f| f64::from(position as f32 * f)));
        let angles = Tensor::from_vec(angles.collect(), (2 * length - 1, pairs), &Device::Cpu)?;
        let parts = [angles.sin()?, angles.cos()?];
        let sines_first = self.in_halves || self.segments;
        Ok(if sines_first { Tensor::cat(&parts, 1)? } else { Tensor::stack(&parts, 2)?.flatten_from(1)? })
    }
}

impl PositionScheme for RelativeSinusoids {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        if self.in_halves && self.segments {
            return Err(Error::config("in_halves", true, "false for relative sinusoids with segments"));
        }
        let (size, allowed) = (sizes.hidden_size, "an even number for relative sinusoids");
        ensure!(size.is_multiple_of(2), Error::config("hidden_size", size, allowed));
        Ok(())
    }

    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        let (h, d, width) = (sizes.num_attention_heads, sizes.head_dim, sizes.hidden_size);
        let bound = (6.0 / (h * d + width) as f64).sqrt();
        let parameter = |name, rows, columns, init| Parameter::new(name, [rows, columns], init).with_head_axis(0);
        let projection = parameter(PROJECTION, h * d, width, Init::Uniform { lo: -bound, up: bound });
        let vectors = [CONTENT_BIAS, POSITION_BIAS].map(|name| parameter(name, h, d, Init::Const(0.0)));
        let segments = [
            Parameter::new(SEGMENTS, [2, h, d], NORMAL).with_head_axis(1),
            parameter(SEGMENT_BIAS, h, d, Init::Const(0.0)),
        ];
        let vectors = vectors.into_iter().filter(|_| !self.in_halves);
        [projection].into_iter().chain(vectors).chain(segments.into_iter().filter(|_| self.segments)).collect()
    }

    fn traits(&self) -> SchemeTraits {
        let uses_token_types = self.segments;
        SchemeTraits { needs_full_sequence: true, runs_rows: true, uses_token_types, ..SchemeTraits::default() }
    }

    fn query_bias<'a>(&self, state: &'a PositionState) -> Result<Option<&'a Tensor>> {
        if self.in_halves { Ok(None) } else { state.weights.require(CONTENT_BIAS).map(Some) }
    }

    fn distance_embeddings(&self, call: &EmbeddingCall) -> Result<Option<DistanceEmbeddings>> {
        let fixed = !call.state.weights.tracks_gradient();
        let needed = call.s_q.max(call.s_kv).max(1);
        let (length, all) = call.state.grown(fixed, needed, |length| self.project(call, length))?;
        let count = 2 * needed - 1;
        let c2p = all.narrow(0, length - needed, count)?;
        let first = 1 - call.s_kv as i64;
        let indices = (first..call.s_q as i64).map(|distance| (needed as i64 - 1 - distance) as u32).collect();
        let all = DistanceEmbeddings { c2p: Some(c2p.clone()), p2c: None, bias: None, count, indices, first };
        if self.in_halves {
            return Ok(Some(all));
        }
        // Queries come with `u`: (q + v) · r is (q + u) · r + (v - u) · r, and the second term depends on no query.
        let vector = |name: &str| Ok::<_, Error>(call.state.weights.require(name)?.to_dtype(c2p.dtype())?);
        let difference = (vector(POSITION_BIAS)? - vector(CONTENT_BIAS)?)?; // (h, d)
        let (h, d) = difference.dims2()?;
        let bias = c2p.reshape((count, h, d))?.broadcast_mul(&difference)?.sum(D::Minus1)?;
        Ok(Some(DistanceEmbeddings { bias: Some(bias), ..all }))
    }

    fn query_term(&self, call: &QueryCall) -> Result<Option<AttentionMask>> {
        let (b, s_q, h, _) = call.q.dims4()?;
        let Some(types) = call.token_types.filter(|_| self.segments && b * s_q * h > 0) else { return Ok(None) };
        let dtype = compute_dtype(call.q.dtype());
        let weight = |name: &str| Ok::<_, Error>(call.state.weights.require(name)?.to_dtype(dtype)?);
        // Queries come with `u`.
        let q = call.q.to_dtype(dtype)?.broadcast_add(&(weight(SEGMENT_BIAS)? - weight(CONTENT_BIAS)?)?)?;
        let shape = (b, h, s_q, call.s_kv);
        let scores = |e: usize| {
            let products = q.broadcast_mul(&weight(SEGMENTS)?.get(e)?)?.sum(D::Minus1)?; // (b, s_q, h)
            Ok::<_, Error>((products.transpose(1, 2)?.unsqueeze(3)? * call.scale)?.broadcast_as(shape)?)
        };
        let keys = comparable(types)?.to_device(q.device())?.unsqueeze(1)?.unsqueeze(1)?; // (b or 1, 1, 1, s_kv)
        let queries = keys.narrow(3, call.s_kv - s_q, s_q)?.transpose(2, 3)?;
        let is_own = queries.broadcast_eq(&keys)?.broadcast_as(shape)?;
        Ok(Some(AttentionMask::additive(&is_own.where_cond(&scores(0)?, &scores(1)?)?)?))
    }

    fn distance_embedding_count(&self, s_kv: usize) -> [usize; 2] {
        [s_kv.saturating_mul(2), 0]
    }

    fn describe(&self) -> String {
        if self.segments { "relative sinusoids and segments" } else { "relative sinusoids" }.to_string()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn sinusoids_are_in_the_order_of_positions() {
        let values = RelativeSinusoids::default()
            .sinusoids(3, 4)
            .unwrap()
            .to_dtype(DType::F32)
            .unwrap()
            .to_vec2::<f32>()
            .unwrap();
        assert_eq!(values.len(), 5);
        assert_eq!(values[2], [0.0, 1.0, 0.0, 1.0]);
        let (near, far) = (2f32, 0.02f32);
        assert_eq!(values[4], [near.sin(), near.cos(), far.sin(), far.cos()]);
        assert_eq!(values[0], [-near.sin(), near.cos(), -far.sin(), far.cos()]);
    }
}

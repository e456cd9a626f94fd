//! The projections of multi-head latent attention, in its two forms.
//!
//! Expanded, each latent becomes keys and values of every head, and attention is the usual one. Absorbed, the half of
//! `kv_b_proj` that makes keys is applied to the queries instead, `(q W) · c = q · (W c)`, and the half that makes
//! values to the attended latents: then all heads share the latents as one key-value head. Without `kv_b_proj` they
//! share them in every form.

use std::sync::{Arc, OnceLock};

use candle_core::{D, DType, Tensor, TensorId};

use crate::error::{Error, Result};
use crate::map_fields;
use crate::ops::dense::accumulate_dtype;
use crate::ops::linear::Linear;
use crate::ops::norm::NormParameters;
use crate::ops::quantization::Quantization;
use crate::tensor::{ShareWeights, check_shape, same_dtype_and_device};
use crate::weights::{LatentWeights, NormWeights};

/// The sizes and constants of a layer's projections; [`LatentAttention`](crate::LatentAttention) documents them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LatentSizes {
    /// Elements of the inputs of queries and of keys.
    pub inputs: [usize; 2],
    pub heads: usize,
    pub nope: usize,
    pub rope: usize,
    pub value: usize,
    pub rank: usize,
    pub q_rank: Option<usize>,
    pub eps: f64,
    pub q_scale: f64,
    pub kv_scale: f64,
    pub multi_query: bool,
}

/// The projections of a layer.
#[derive(Debug, Clone)]
pub(crate) struct Latent {
    sizes: LatentSizes,
    q_a: Option<(Linear, NormWeights)>,
    q: Linear,
    kv_a: Linear,
    kv_a_norm: NormWeights,
    /// The projection of latents to keys and values; `None` if latents are themselves the key and value of all heads.
    kv_b: Option<Linear>,
    /// The projection of the gate of the output, if there is one.
    gate: Option<Linear>,
    /// The two halves of `kv_b` per head, once they were needed and cannot change.
    halves: Arc<OnceLock<[Tensor; 2]>>,
}

impl Latent {
    /// Checks the weights against the sizes.
    pub(crate) fn new(weights: LatentWeights, sizes: LatentSizes, gate: Option<Linear>) -> Result<Self> {
        let LatentWeights { q_a, q, kv_a, kv_a_norm, kv_b } = weights;
        let LatentSizes { inputs: [q_in, kv_in], heads, nope, rope, value, rank, q_rank, multi_query, .. } = sizes;
        let kv_a = Linear::new("kv_a_proj_with_mqa", kv_a, rank + rope, kv_in)?;
        let norm = |name: &str, norm: NormWeights, size: usize| -> Result<NormWeights> {
            for tensor in [Some(&norm.weight), norm.bias.as_ref()].into_iter().flatten() {
                check_shape(name, tensor, &[size])?;
                same_dtype_and_device(name, tensor, kv_a.like())?;
            }
            Ok(norm)
        };
        let normalized = if multi_query { rank + rope } else { rank };
        let kv_a_norm = norm("kv_a_layernorm", kv_a_norm, normalized)?;
        let q_a = match (q_a, q_rank) {
            (Some((linear, weights)), Some(rank)) => {
                Some((Linear::new("q_a_proj", linear, rank, q_in)?, norm("q_a_layernorm", weights, rank)?))
            }
            (None, None) => None,
            (_, rank) => {
                let found = if rank.is_some() { "set" } else { "none" };
                return Err(Error::config("q_lora_rank", found, "set if and only if the weights have `q_a_proj`"));
            }
        };
        let name = if q_a.is_some() { "q_b_proj" } else { "q_proj" };
        let q = Linear::new(name, q, heads * (nope + rope), q_rank.unwrap_or(q_in))?;
        let kv_b = match (kv_b, multi_query) {
            (Some(kv_b), false) => Some(Linear::new("kv_b_proj", kv_b, heads * (nope + value), rank)?),
            (None, true) => None,
            (kv_b, _) => {
                let found = if kv_b.is_some() { "true" } else { "false" };
                return Err(Error::config("multi_query", found, "true if and only if the weights lack `kv_b_proj`"));
            }
        };
        let latent = Self { sizes, q_a, q, kv_a, kv_a_norm, kv_b, gate, halves: Arc::default() };
        for linear in latent.linears() {
            same_dtype_and_device("a weight of latent attention", linear.like(), latent.like())?;
        }
        Ok(latent)
    }

    pub(crate) fn sizes(&self) -> &LatentSizes {
        &self.sizes
    }

    /// A tensor with the dtype and the device of the weights.
    pub(crate) fn like(&self) -> &Tensor {
        self.kv_a.like()
    }

    /// The identity of these weights among those of all layers.
    pub(crate) fn id(&self) -> TensorId {
        self.kv_a.id()
    }

    /// The projection of the gate of the output, if there is one.
    pub(crate) fn gate(&self) -> Option<&Linear> {
        self.gate.as_ref()
    }

    /// These projections with another one of the gate.
    pub(crate) fn with_gate(&self, gate: Linear) -> Self {
        Self { gate: Some(gate), ..self.clone() }
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        let optional = [self.kv_b.as_ref(), self.q_a.as_ref().map(|(linear, _)| linear), self.gate.as_ref()];
        [&self.q, &self.kv_a].into_iter().chain(optional.into_iter().flatten())
    }

    pub(crate) fn norms_track_gradient(&self) -> bool {
        let norms = [&self.kv_a_norm].into_iter().chain(self.q_a.as_ref().map(|(_, norm)| norm));
        norms.flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten().any(Tensor::track_op)
    }

    /// Quantizes the projections, as [`Linear::quantize`] does. What absorbs `kv_b` into queries and values multiplies
    /// with its dequantized weights.
    pub(crate) fn quantize(&mut self, format: Quantization) -> Result<()> {
        self.halves = Arc::default();
        self.linears_mut().try_for_each(|linear| linear.quantize(format))
    }

    pub(crate) fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let optional = [self.kv_b.as_mut(), self.q_a.as_mut().map(|(linear, _)| linear), self.gate.as_mut()];
        [&mut self.q, &mut self.kv_a].into_iter().chain(optional.into_iter().flatten())
    }

    pub(crate) fn weights(&self) -> Result<LatentWeights> {
        let q_a = self.q_a.as_ref().map(|(linear, norm)| Ok::<_, Error>((linear.weights()?, norm.clone())));
        let kv_a_norm = self.kv_a_norm.clone();
        let kv_b = self.kv_b.as_ref().map(Linear::weights).transpose()?;
        Ok(LatentWeights::new(q_a.transpose()?, self.q.weights()?, self.kv_a.weights()?, kv_a_norm, kv_b))
    }

    /// The weights that latents are made with.
    pub(crate) fn latent_weights(&self) -> Result<Vec<Tensor>> {
        let norm = self.kv_a_norm.clone();
        Ok(self.kv_a.weights()?.to_tensors().into_iter().chain([norm.weight]).chain(norm.bias).collect())
    }

    /// The queries of `xs` `(b, s, in)`, not rotated: `(b, s, h, nope + rope)` in `dtype`.
    pub(crate) fn queries(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        let LatentSizes { heads, nope, rope, q_scale, .. } = self.sizes;
        let q = match &self.q_a {
            Some((linear, norm)) => {
                let latents = self.normalized(&linear.forward_in_dtype(xs, accumulate_dtype(self.like()))?, norm)?;
                self.q.forward_in_dtype(&scaled(latents, q_scale)?, dtype)?
            }
            None => scaled(self.q.forward_in_dtype(xs, dtype)?, q_scale)?,
        };
        let (b, s, _) = q.dims3()?;
        Ok(q.reshape((b, s, heads, nope + rope))?)
    }

    /// The latents `(b, s, 1, rank)` of `xs` `(b, s, in)`, normalized, and the key that all heads share, not rotated,
    /// `(b, s, 1, rope)`, both in `dtype`.
    pub(crate) fn compress(&self, xs: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
        let LatentSizes { rank, rope, kv_scale, multi_query, .. } = self.sizes;
        let both = self.kv_a.forward_in_dtype(xs, dtype)?;
        if multi_query {
            let both = self.normalized(&both, &self.kv_a_norm)?.unsqueeze(2)?;
            return Ok([both.narrow(3, 0, rank)?, both.narrow(3, rank, rope)?]);
        }
        let latents = self.normalized(&both.narrow(D::Minus1, 0, rank)?, &self.kv_a_norm)?;
        Ok([scaled(latents, kv_scale)?.unsqueeze(2)?, both.narrow(D::Minus1, rank, rope)?.unsqueeze(2)?])
    }

    fn normalized(&self, xs: &Tensor, norm: &NormWeights) -> Result<Tensor> {
        let bias = norm.bias.as_ref();
        let norm = NormParameters { weight: &norm.weight, bias, eps: self.sizes.eps, rms: true, offset: 0.0 };
        norm.forward(&xs.contiguous()?)
    }

    /// Keys `(b, s, h, nope + rope)` and values `(b, s, h, value)` of `tokens` `(b, s, 1, rank + rope)`, latents and
    /// the rotated keys, in `dtype`; without `kv_b_proj` the tokens themselves.
    pub(crate) fn expand(&self, tokens: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
        let LatentSizes { heads, nope, rope, value, rank, .. } = self.sizes;
        let Some(kv_b) = &self.kv_b else {
            let keys = tokens.narrow(3, 0, rank + rope)?;
            return Ok([keys.clone(), keys]);
        };
        let (b, s, ..) = tokens.dims4()?;
        let latents = tokens.narrow(3, 0, rank)?.reshape((b, s, rank))?;
        let both = kv_b.forward_in_dtype(&latents, dtype)?.reshape((b, s, heads, nope + value))?;
        let shared = tokens.narrow(3, rank, rope)?.to_dtype(dtype)?.broadcast_as((b, s, heads, rope))?;
        Ok([concat_last(&both.narrow(3, 0, nope)?, &shared)?, both.narrow(3, nope, value)?])
    }

    /// Queries `(b, s, h, nope + rope)`, rotated, → `(b, s, h, rank + rope)`, whose products with latents and rotated
    /// keys are those of the queries with keys.
    pub(crate) fn absorb(&self, q: &Tensor) -> Result<Tensor> {
        let LatentSizes { nope, rope, .. } = self.sizes;
        let [keys, _] = self.halves()?;
        let absorbed = per_head(&q.narrow(3, 0, nope)?, &keys)?;
        concat_last(&absorbed, &q.narrow(3, nope, rope)?)
    }

    /// Attended latents `(b, s, h, rank)` → attended values `(b, s, h, value)`.
    pub(crate) fn values(&self, attended: &Tensor) -> Result<Tensor> {
        let [_, values] = self.halves()?;
        per_head(attended, &values)
    }

    /// The halves of `kv_b` that make keys, `(h, nope, rank)`, and values, `(h, rank, value)`, in the dtype of
    /// products.
    fn halves(&self) -> Result<[Tensor; 2]> {
        if let Some(halves) = self.halves.get() {
            return Ok(halves.clone());
        }
        let LatentSizes { heads, nope, value, rank, .. } = self.sizes;
        let kv_b = self.kv_b.as_ref().expect("only what has `kv_b_proj` is absorbed");
        let weight = kv_b.weights()?.weight.to_dtype(accumulate_dtype(self.like()))?;
        let by_head = weight.reshape((heads, nope + value, rank))?;
        let halves = [by_head.narrow(1, 0, nope)?, by_head.narrow(1, nope, value)?.transpose(1, 2)?];
        Ok(if kv_b.tracks_gradient() { halves } else { self.halves.get_or_init(|| halves).clone() })
    }
}

/// `xs` `(b, s, h, in)` times a matrix per head, `(h, in, out)` → `(b, s, h, out)` in the dtype of `xs`.
pub(crate) fn per_head(xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (b, s, h, input) = xs.dims4()?;
    let out = weight.dim(2)?;
    if xs.elem_count() == 0 {
        return Ok(Tensor::zeros((b, s, h, out), xs.dtype(), xs.device())?);
    }
    let by_head = xs.to_dtype(weight.dtype())?.reshape((b * s, h, input))?.transpose(0, 1)?.contiguous()?;
    let ys = by_head.matmul(weight)?; // (h, b · s, out)
    Ok(ys.transpose(0, 1)?.contiguous()?.reshape((b, s, h, out))?.to_dtype(xs.dtype())?)
}

fn scaled(xs: Tensor, factor: f64) -> Result<Tensor> {
    Ok(if factor == 1.0 { xs } else { xs.affine(factor, 0.0)? })
}

/// `(b, s, h, m)` and `(b, s, h, n)` → `(b, s, h, m + n)`.
pub(crate) fn concat_last(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    // candle cannot concatenate an empty tensor.
    if b.dim(3)? == 0 {
        return Ok(a.clone());
    }
    if a.elem_count() == 0 {
        let (batch, s, h, m) = a.dims4()?;
        return Ok(Tensor::zeros((batch, s, h, m + b.dim(3)?), a.dtype(), a.device())?);
    }
    Ok(Tensor::cat(&[a, b], 3)?)
}

impl ShareWeights for Latent {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        if self.sizes != other.sizes {
            return Ok(());
        }
        if let (Some((own, _)), Some((other, _))) = (&mut self.q_a, &other.q_a) {
            own.share_weights(other)?;
        }
        self.gate.share_weights(&other.gate)?;
        self.q.share_weights(&other.q)?;
        self.kv_a.share_weights(&other.kv_a)?;
        if let (Some(own), Some(theirs)) = (&self.kv_b, &other.kv_b)
            && own.has_same_weights(theirs)?
        {
            (self.kv_b, self.halves) = (other.kv_b.clone(), other.halves.clone());
        }
        Ok(())
    }
}

map_fields!(LatentWeights { q_a, q, kv_a, kv_a_norm, kv_b });

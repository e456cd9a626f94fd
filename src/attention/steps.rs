//! The steps between projection and scores: norms, the rotation and factors, over tensors and in the buffers of the CPU
//! kernel.

use candle_attention_kernels::{Isa, Team};
use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::config::{AttentionConfig, Factor, HeadNorm, NormKind, NormOver, Step};
use crate::error::Result;
use crate::ops::{NormParameters, concat_last};
use crate::position::TokenPositions;
use crate::ragged::RaggedBatch;
use crate::tensor::{compute_dtype, with_f32_slice};
use crate::weights::{FACTORS, LOGIT_SCALE, NORMS, NormWeights, Parameters};

/// The norms of queries, keys and values, in order: learned, or ones for a norm without weights.
pub(super) type Norms = [Vec<NormWeights>; 3];

/// The norms that the configuration asks for, with the checked `parameters`. The projections have the dtype and device
/// of `like`.
pub(super) fn find_norms(config: &AttentionConfig, parameters: &Parameters, like: &Tensor) -> Result<Norms> {
    let side_norms = |side: usize| {
        let weights = |norm: &HeadNorm| match parameters.norm(NORMS[side]) {
            Some(learned) if norm.weighted => Ok(learned),
            _ => unit(norm, heads_of(config, side), like),
        };
        config.steps.norms(side).map(weights).collect::<Result<Vec<_>>>()
    };
    Ok([side_norms(0)?, side_norms(1)?, side_norms(2)?])
}

/// The number of heads of queries (0), keys (1) or values (2), and their size.
pub(super) fn heads_of(config: &AttentionConfig, side: usize) -> [usize; 2] {
    let h_kv = config.resolved_num_key_value_heads();
    match side {
        0 => [config.num_attention_heads, config.resolved_head_dim()],
        1 => [h_kv, config.resolved_head_dim()],
        _ => [h_kv, config.resolved_value_head_dim()],
    }
}

/// The weights with which a norm multiplies by 1.
pub(super) fn unit(norm: &HeadNorm, [h, d]: [usize; 2], like: &Tensor) -> Result<NormWeights> {
    let size = if norm.over == NormOver::AllHeads { h * d } else { d };
    let weight = match norm.kind {
        NormKind::RmsOffset => Tensor::zeros(size, like.dtype(), like.device())?,
        NormKind::Rms | NormKind::Layer => Tensor::ones(size, like.dtype(), like.device())?,
    };
    Ok(NormWeights::new(weight, None))
}

/// Steps before or after the rotation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The steps before the rotation; all, if there is none.
    Before,
    /// The steps after the rotation.
    After,
}

impl MultiHeadAttention {
    /// Queries, keys and values `(b, s, heads, d)` after their steps. Differentiable.
    pub(super) fn stepped(&self, [q, k, v]: [Tensor; 3], tokens: &TokenPositions) -> Result<[Tensor; 3]> {
        let s_kv = k.dim(1)?;
        let [q, k] = [self.run(0, Part::Before, q, tokens, s_kv)?, self.run(1, Part::Before, k, tokens, s_kv)?];
        let scheme = self.config.position.scheme();
        let [q, k] = scheme.rotate(q, k, tokens)?;
        let mut v = self.run(2, Part::Before, v, tokens, s_kv)?;
        if self.config.steps.rotate_values() {
            v = scheme.rotate_queries(v, s_kv, tokens)?;
        }
        Ok([
            self.run(0, Part::After, q, tokens, s_kv)?,
            self.run(1, Part::After, k, tokens, s_kv)?,
            self.run(2, Part::After, v, tokens, s_kv)?,
        ])
    }

    /// Queries `(b, s, h, d)` of latent attention, of which the last elements are rotated, and the key that all heads
    /// share, `(b, s, 1, rope)`, after their steps. Differentiable.
    pub(super) fn stepped_latent(&self, q: Tensor, key: Tensor, tokens: &TokenPositions) -> Result<[Tensor; 2]> {
        let s_kv = key.dim(1)?;
        let [mut q, mut key] =
            [self.run(0, Part::Before, q, tokens, s_kv)?, self.run(1, Part::Before, key, tokens, s_kv)?];
        let scheme = self.config.position.scheme();
        if scheme.traits().rotates {
            let (d, rope) = (q.dim(3)?, key.dim(3)?);
            let [rotated, rotated_key] = scheme.rotate(q.narrow(3, d - rope, rope)?, key, tokens)?;
            (q, key) = (concat_last(&q.narrow(3, 0, d - rope)?, &rotated)?, rotated_key);
        }
        Ok([self.run(0, Part::After, q, tokens, s_kv)?, self.run(1, Part::After, key, tokens, s_kv)?])
    }

    /// Queries alone, over `s_kv` keys that are there already.
    pub(super) fn stepped_queries(&self, q: Tensor, s_kv: usize, tokens: &TokenPositions) -> Result<Tensor> {
        let scheme = self.config.position.scheme();
        let q = self.run(0, Part::Before, q, tokens, s_kv)?;
        let q = if scheme.traits().rotates { scheme.rotate_queries(q, s_kv, tokens)? } else { q };
        self.run(0, Part::After, q, tokens, s_kv)
    }

    /// Keys and values alone, of a layer without positions.
    pub(super) fn stepped_memory(&self, [k, v]: [Tensor; 2]) -> Result<[Tensor; 2]> {
        let (tokens, s_kv) = (&TokenPositions::default(), k.dim(1)?);
        let k = self.run(1, Part::After, self.run(1, Part::Before, k, tokens, s_kv)?, tokens, s_kv)?;
        Ok([k, self.run(2, Part::Before, v, tokens, s_kv)?])
    }

    /// The steps of a side before or after its rotation, and how many norms come before them.
    fn steps_of(&self, side: usize, part: Part) -> (&[Step], usize) {
        let steps = self.config.steps.sides()[side];
        let mut parts = steps.splitn(2, |step| *step == Step::Rotate);
        let before = parts.next().unwrap_or(&[]);
        match part {
            Part::Before => (before, 0),
            Part::After => {
                let norms = before.iter().filter(|step| matches!(step, Step::Norm(_))).count();
                (parts.next().unwrap_or(&[]), norms)
            }
        }
    }

    fn run(&self, side: usize, part: Part, xs: Tensor, tokens: &TokenPositions, s_kv: usize) -> Result<Tensor> {
        let (steps, first_norm) = self.steps_of(side, part);
        let mut norms = self.norms[side][first_norm..].iter();
        let mut xs = xs;
        for step in steps {
            xs = match step {
                Step::Norm(norm) => match norms.next() {
                    Some(weights) => normalize(&xs, norm, weights)?,
                    None => xs,
                },
                Step::Factor(factor) => self.multiplied(side, &xs, *factor, tokens, s_kv)?,
                Step::Rotate => xs,
            };
        }
        Ok(xs)
    }

    fn multiplied(
        &self,
        side: usize,
        xs: &Tensor,
        factor: Factor,
        tokens: &TokenPositions,
        s_kv: usize,
    ) -> Result<Tensor> {
        match (factor, self.parameters.get(FACTORS[side])) {
            (Factor::Softplus { scale }, Some(weight)) => {
                Ok(xs.broadcast_mul(&softplus(weight, scale, xs.dtype())?)?)
            }
            (Factor::Exp { max }, _) => {
                let weight = self.parameters.require(LOGIT_SCALE)?;
                let factors = weight.to_dtype(compute_dtype(weight.dtype()))?.minimum(max)?.exp()?;
                Ok(xs.broadcast_mul(&factors.reshape((1, 1, (), 1))?.to_dtype(xs.dtype())?)?)
            }
            (Factor::LogPosition { .. } | Factor::PowerPosition { .. }, _) => {
                let s = xs.dim(1)?;
                let (rows, positions) = tokens.last_positions(s, s_kv)?;
                let factors: Vec<f64> = positions.into_iter().map(|position| factor.at(position)).collect();
                let factors = Tensor::from_vec(factors, (rows, s, 1, 1), &candle_core::Device::Cpu)?;
                Ok(xs.broadcast_mul(&factors.to_dtype(xs.dtype())?.to_device(xs.device())?)?)
            }
            _ => Ok(xs.affine(factor.at(0), 0.0)?),
        }
    }

    /// [`stepped`](Self::stepped) in place: `qkv` `(tokens, q k v …)` of a ragged batch.
    pub(super) fn step_in_place(&self, team: Team, qkv: &mut [f32], batch: RaggedBatch) -> Result<()> {
        let scheme = self.config.position.scheme();
        for side in 0..3 {
            self.run_in_place(team, side, Part::Before, qkv, batch)?;
        }
        let sides = 1 + usize::from(self.config.steps.rotate_values());
        let heads = self.config.num_attention_heads + sides * self.config.resolved_num_key_value_heads();
        scheme.rotate_in_place(qkv, heads, self.config.resolved_head_dim(), batch)?;
        for side in 0..3 {
            self.run_in_place(team, side, Part::After, qkv, batch)?;
        }
        Ok(())
    }

    fn run_in_place(&self, team: Team, side: usize, part: Part, qkv: &mut [f32], batch: RaggedBatch) -> Result<()> {
        let (steps, first_norm) = self.steps_of(side, part);
        let width = self.qkv.packed()?.out_features();
        let ends = [0, 1, 2].map(|side| heads_of(&self.config, side).iter().product::<usize>());
        let start = ends[..side].iter().sum();
        let side_range = start..start + ends[side];
        let mut norms = self.norms[side][first_norm..].iter();
        for step in steps {
            match step {
                Step::Rotate => {}
                Step::Norm(norm) => {
                    let Some(weights) = norms.next() else { continue };
                    let norm = norm_parameters(norm, weights);
                    norm.normalize_parts(Isa::detect()?, team, qkv, width, side_range.clone())?;
                }
                Step::Factor(factor) => {
                    let element_factors = match (factor, self.parameters.get(FACTORS[side])) {
                        (Factor::Softplus { scale }, Some(weight)) => {
                            with_f32_slice(&softplus(weight, *scale, DType::F32)?, <[f32]>::to_vec)?
                        }
                        _ => vec![1.0],
                    };
                    let positions = batch.lengths().flat_map(|length| 0..length);
                    for (token, position) in qkv.chunks_exact_mut(width).zip(positions) {
                        let token_factor = factor.at(position) as f32;
                        let elements = token[side_range.clone()].iter_mut().zip(element_factors.iter().cycle());
                        elements.for_each(|(x, element_factor)| *x *= token_factor * element_factor);
                    }
                }
            }
        }
        Ok(())
    }
}

/// `softplus(weight) · scale` in `dtype`. Differentiable.
pub(super) fn softplus(weight: &Tensor, scale: f64, dtype: DType) -> Result<Tensor> {
    let weight = weight.to_dtype(compute_dtype(weight.dtype()))?;
    // Without overflow: ln(1 + eʷ) = max(w, 0) + ln(1 + e^-|w|).
    let softplus = (weight.relu()? + (weight.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
    Ok((softplus * scale)?.to_dtype(dtype)?)
}

/// A norm as the kernels of the CPU take it.
pub(super) fn norm_parameters<'a>(norm: &HeadNorm, weights: &'a NormWeights) -> NormParameters<'a> {
    let (rms, offset) = norm.kind.rms_and_offset();
    NormParameters { weight: &weights.weight, bias: weights.bias.as_ref(), eps: norm.eps, rms, offset }
}

/// xs `(b, s, h, d)` normalized per head, or over all heads of a token.
pub(super) fn normalize(xs: &Tensor, norm: &HeadNorm, weights: &NormWeights) -> Result<Tensor> {
    let (b, s, h, d) = xs.dims4()?;
    let xs = match norm.over {
        NormOver::Head => xs.clone(),
        NormOver::AllHeads => xs.reshape((b, s, 1, h * d))?,
    };
    Ok(norm_parameters(norm, weights).forward(&xs)?.reshape((b, s, h, d))?)
}

//! What happens to queries and keys between projection and attention: limits, norms, rotations.

use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::config::{NormKind, NormOver, QkNorm};
use crate::error::Result;
use crate::ops::Norm;
use crate::position::TokenPositions;
use crate::weights::NormWeights;

impl MultiHeadAttention {
    /// Whether queries, keys and values go into attention as they are projected.
    pub(crate) fn is_untransformed(&self) -> bool {
        self.qk_norm.is_none() && self.config.clip_qkv.is_none() && !self.config.position.scheme().rotates()
    }

    /// Projected queries, keys and values `(b, s, h, d)`, clipped, normalized and rotated.
    pub(crate) fn transform(&self, [q, k, v]: [Tensor; 3], tokens: &TokenPositions) -> Result<[Tensor; 3]> {
        let (q, k) = (self.normalized(&self.clipped(q)?, 0)?, self.normalized(&self.clipped(k)?, 1)?);
        let [q, k] = self.config.position.scheme().rotate(q, k, tokens)?;
        Ok([q, k, self.clipped(v)?])
    }

    /// [`transform`](Self::transform) of queries alone, of a layer without positions.
    pub(crate) fn transform_queries(&self, q: Tensor) -> Result<Tensor> {
        self.normalized(&self.clipped(q)?, 0)
    }

    fn clipped(&self, xs: Tensor) -> Result<Tensor> {
        Ok(match self.config.clip_qkv {
            Some(limit) => xs.clamp(-limit, limit)?,
            None => xs,
        })
    }

    /// `which`: 0 for queries, 1 for keys.
    fn normalized(&self, xs: &Tensor, which: usize) -> Result<Tensor> {
        match (&self.config.qk_norm, &self.qk_norm) {
            (Some(norm), Some(weights)) => normalise(xs, norm, &weights[which]),
            _ => Ok(xs.clone()),
        }
    }
}

/// The shape that a parameter of a norm has to have, which may be one a head.
pub(crate) fn norm_shape(over: NormOver, parameter: &Tensor, h: usize, d: usize) -> Vec<usize> {
    match (over, parameter.rank()) {
        (NormOver::AllHeads, _) => vec![h * d],
        (NormOver::Head, 2) => vec![h, d],
        (NormOver::Head, _) => vec![d],
    }
}

/// xs `(b, s, h, d)`.
pub(crate) fn normalise(xs: &Tensor, norm: &QkNorm, weights: &NormWeights) -> Result<Tensor> {
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
    use candle_core::Device;

    use super::*;
    use crate::ops::on_cuda::with_mock_device;

    fn worst(got: &Tensor, want: &Tensor) -> f32 {
        let differences = (got - want).unwrap().abs().unwrap().flatten_all().unwrap();
        differences.max(0).unwrap().to_scalar().unwrap()
    }

    #[test]
    fn fused_norms_equal_tensor_operations() {
        let random = |dims: &[usize]| Tensor::randn(0f32, 1.0, dims, &Device::Cpu).unwrap();
        let (b, s, h, d) = (2, 5, 3, 8);
        // A part of a packed projection.
        let xs = random(&[b, s, 7, d]).narrow(2, 1, h).unwrap();
        for (over, dims) in [(NormOver::Head, vec![d]), (NormOver::Head, vec![h, d]), (NormOver::AllHeads, vec![h * d])]
        {
            for (kind, bias) in [(NormKind::Layer, true), (NormKind::Rms, false), (NormKind::RmsOffset, false)] {
                let norm = QkNorm { kind, over, eps: 1e-6 };
                let weights = NormWeights { weight: random(&dims), bias: bias.then(|| random(&dims)) };
                let want = normalise(&xs, &norm, &weights).unwrap();
                let (got, steps) = with_mock_device(|| normalise(&xs, &norm, &weights).unwrap());
                assert_eq!((got.dims(), steps), (want.dims(), 1));
                assert!(worst(&got, &want) < 1e-5, "{kind:?}, {over:?}, {dims:?}");
            }
        }
    }
}

//! Functions of scores as an operation of candle's graph, for scores that are a tensor.

use candle_attention_kernels::ScoreRule;
use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::mask::{AttentionMask, AttnShape, ScoreFunctionCall};
use crate::tensor::{computed, with_slice};

/// The scores `(b, h, s_q, keys)` after the functions of `mask`, in their dtype, computed in f32 on the CPU. Appended
/// keys are left as they are.
pub(super) fn apply(scores: &Tensor, mask: &AttentionMask, shape: AttnShape) -> Result<Tensor> {
    let (keys, wide) = (scores.dim(3)?, scores.dtype());
    let mut under_mask = scores.narrow(3, 0, shape.s_kv)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
    for function in mask.score_functions(shape) {
        under_mask = replaced(&under_mask, function, shape)?;
    }
    let under_mask = under_mask.to_device(scores.device())?.to_dtype(wide)?;
    if keys == shape.s_kv {
        return Ok(under_mask);
    }
    Ok(Tensor::cat(&[&under_mask, &scores.narrow(3, shape.s_kv, keys - shape.s_kv)?], 3)?)
}

/// The scores after one function. Differentiable.
fn replaced(scores: &Tensor, function: ScoreFunctionCall, shape: AttnShape) -> Result<Tensor> {
    let values = |scores: &Tensor| with_slice(&scores.contiguous()?, |scores: &[f32]| scores[..scores.len()].to_vec());
    let mut output = values(scores)?;
    for_each_row(&function, shape, &mut output, |place, row| function.apply(place, 0, row))?;
    computed("score-function", (output, scores.shape().clone()), [scores], move |[scores], _, gradient| {
        let mut slopes = values(scores)?;
        for_each_row(&function, shape, &mut slopes, |place, row| function.differentiate(place, 0, row))?;
        // Hidden keys have gradients of 0, whatever the derivative is there.
        let slopes = Tensor::from_vec(slopes, scores.shape(), &Device::Cpu)?;
        let zeros = gradient.zeros_like()?;
        Ok([Some(gradient.ne(0f64)?.where_cond(&gradient.mul(&slopes)?, &zeros)?)])
    })
}

/// Calls `row` with the place and the scores of each query.
fn for_each_row(
    function: &ScoreFunctionCall,
    AttnShape { h, s_q, s_kv, .. }: AttnShape,
    scores: &mut [f32],
    row: impl Fn((usize, usize, usize), &mut [f32]),
) -> Result<()> {
    for (n, scores) in scores.chunks_exact_mut(s_kv.max(1)).enumerate() {
        row((n / (h * s_q), n / s_q % h, n % s_q), scores);
    }
    function.failed()
}

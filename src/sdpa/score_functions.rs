//! Functions of scores as an operation of candle's graph, for scores that are a tensor.

use candle_attention_kernels::ScoreRule;
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Shape, Tensor};

use crate::error::Result;
use crate::mask::{AttentionMask, AttnShape, ScoreFunctionCall};
use crate::tensor::with_slice;

/// The scores `(b, h, s_q, keys)` after the functions of `mask`, in their dtype, computed in f32 on the CPU. Appended
/// keys are left as they are.
pub(super) fn apply(scores: &Tensor, mask: &AttentionMask, shape: AttnShape) -> Result<Tensor> {
    let (keys, wide) = (scores.dim(3)?, scores.dtype());
    let mut under_mask = scores.narrow(3, 0, shape.s_kv)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
    for function in mask.score_functions(shape) {
        under_mask = under_mask.contiguous()?.apply_op1(ScoreOp { function, shape })?;
    }
    let under_mask = under_mask.to_device(scores.device())?.to_dtype(wide)?;
    if keys == shape.s_kv {
        return Ok(under_mask);
    }
    Ok(Tensor::cat(&[&under_mask, &scores.narrow(3, shape.s_kv, keys - shape.s_kv)?], 3)?)
}

struct ScoreOp {
    function: ScoreFunctionCall,
    shape: AttnShape,
}

impl ScoreOp {
    /// Calls `row` with the place and the scores of each query.
    fn for_each_row(
        &self,
        scores: &mut [f32],
        row: impl Fn(&ScoreFunctionCall, (usize, usize, usize), &mut [f32]),
    ) -> Result<()> {
        let AttnShape { h, s_q, s_kv, .. } = self.shape;
        for (n, scores) in scores.chunks_exact_mut(s_kv.max(1)).enumerate() {
            row(&self.function, (n / (h * s_q), n / s_q % h, n % s_q), scores);
        }
        self.function.failed()
    }
}

impl CustomOp1 for ScoreOp {
    fn name(&self) -> &'static str {
        "score-function"
    }

    fn cpu_fwd(&self, scores: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (start, count) = (layout.start_offset(), layout.shape().elem_count());
        let mut scores = scores.as_slice::<f32>()?[start..start + count].to_vec();
        self.for_each_row(&mut scores, |function, place, row| function.apply(place, 0, row))?;
        Ok((CpuStorage::F32(scores), layout.shape().clone()))
    }

    fn bwd(&self, scores: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let mut slopes = with_slice(&scores.contiguous()?, |scores: &[f32]| scores[..scores.len()].to_vec())?;
        self.for_each_row(&mut slopes, |function, place, row| function.differentiate(place, 0, row))?;
        // Hidden keys have gradients of 0, whatever the derivative is there.
        let slopes = Tensor::from_vec(slopes, scores.shape(), &Device::Cpu)?;
        let zeros = gradient.zeros_like()?;
        Ok(Some(gradient.ne(0f64)?.where_cond(&gradient.mul(&slopes)?, &zeros)?))
    }
}

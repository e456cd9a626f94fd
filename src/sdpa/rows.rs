//! Attention within rows that lie one after the other, over tensors.

use candle_core::Tensor;

use super::plan::{Backend, Plan};
use super::{Call, Place, SdpaOptions, cpu, cuda, flash};
use crate::error::Result;
use crate::mask::check::CallShape;

/// [`attend`](super::attend) without padding: q `(1, tokens, h, d)`, k and v likewise → `(1, tokens, h, d_v)`; row `i` is
/// the tokens `starts[i] .. starts[i + 1]`, and the mask is that of the longest row. `None` where no backend can.
pub(crate) fn attend_rows(qkv: [&Tensor; 3], starts: &[usize], options: &SdpaOptions) -> Result<Option<Tensor>> {
    let [q, k, v] = qkv;
    let (_, tokens, h, d) = q.dims4()?;
    let (.., h_kv, d_v) = v.dims4()?;
    let longest = starts.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
    if tokens == 0 {
        return Ok(Some(Tensor::zeros((1, 0, h, d_v), q.dtype(), q.device())?));
    }
    let tracked = [q, k, v].into_iter().chain(options.sinks).any(Tensor::track_op);
    let call = Call {
        shape: CallShape { b: starts.len() - 1, h, s_q: longest, s_kv: longest },
        h_kv,
        d,
        d_v,
        dtype: q.dtype(),
        place: Place::of(q.device()),
        tracks_gradient: tracked || options.mask.tracks_gradient(),
    };
    options.mask.check(call.shape)?;
    match Plan::new(&call, options)?.backend {
        Backend::Cpu => cpu::attend(qkv, Some(starts), &call, options).map(Some),
        Backend::Cuda => cuda::attend(qkv, Some(starts), &call, options).map(Some),
        Backend::FlashAttn => flash::attend(qkv, Some(starts), &call, options).map(Some),
        Backend::Eager | Backend::Metal => Ok(None),
    }
}

//! Attention on an NVIDIA GPU.

use candle_core::Tensor;

use super::{Attended, Call, Place, SdpaOptions, eager};
use crate::error::Result;

/// Why this backend cannot run a call, `None` if it can.
pub(super) fn reason_against(call: &Call, _options: &SdpaOptions) -> Option<String> {
    let on_it = call.place == Place::Cuda;
    Some(
        if on_it { "this version of the crate has no such kernel" } else { "the tensors are not on an NVIDIA GPU" }
            .to_string(),
    )
}

pub(super) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    eager::scratch_bytes(call, options)
}

pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, call: &Call, options: &SdpaOptions) -> Result<Attended> {
    eager::attend(q, k, v, call, options)
}

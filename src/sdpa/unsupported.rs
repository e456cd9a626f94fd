//! Reasons why a backend cannot run a call.

use candle_core::DType;

use crate::sdpa::call::Call;
use crate::sdpa::options::SdpaOptions;

/// The first reason that applies.
pub(super) fn first_reason<const N: usize>(reasons: [(bool, &str); N]) -> Option<String> {
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason.to_string())
}

/// Why no fused kernel can run a call, on any device; `None` if one may.
pub(super) fn no_fused_kernel(call: &Call, options: &SdpaOptions) -> Option<String> {
    first_reason([
        (call.dtype == DType::F64, "it computes in f32, but the tensors are f64"),
        (call.tracks_gradient, "a gradient is tracked, and it has no backward pass"),
        (options.return_attention_weights, "the attention weights are asked for, and it never stores all of them"),
        (options.dropout > 0.0, "it does not drop attention weights"),
        (options.additive.is_some(), "it scores by dot product only"),
    ])
}

//! Why backends cannot run a call: the reasons that several of them share.

use candle_core::DType;

use crate::sdpa::{Call, SdpaOptions};

/// The first reason that applies.
pub(super) fn first_reason<const N: usize>(reasons: [(bool, &str); N]) -> Option<String> {
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason.to_string())
}

/// Why no fused kernel for GPUs can run a call; `None` if one may.
pub(super) fn no_fused_kernel(call: &Call, options: &SdpaOptions) -> Option<String> {
    let capped = options.softcap.is_some() && call.distance_embeddings != [0; 2];
    let elsewhere = [
        (capped, "products with embeddings of distances are capped, and it adds them to capped scores"),
        (call.tracks_gradient, "a gradient is tracked, and it has no backward pass"),
        (options.dropout > 0.0, "it does not drop attention weights"),
        (options.mask.has_score_functions(), "scores go through a function, which it cannot call"),
    ];
    first_reason(elsewhere).or_else(|| not_by_scores(call, options))
}

/// Why no fused kernel can run a call, on any device; `None` if one may.
pub(super) fn not_by_scores(call: &Call, options: &SdpaOptions) -> Option<String> {
    first_reason([
        (call.dtype == DType::F64, "it computes in f32, but the tensors are f64"),
        (options.return_attention_weights, "the attention weights are asked for, and it never stores all of them"),
        (options.additive.is_some(), "it scores by dot product only"),
        (options.value_distances.is_some(), "values depend on distances"),
    ])
}

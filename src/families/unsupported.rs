//! Families that this version cannot run as their own models do.

/// Values of `model_type`, with the reason that they share.
#[rustfmt::skip]
const UNSUPPORTED: &[(&[&str], &str)] = &[
    (&["neomme"], "a part of the context along each token's own value that is taken away"),
    (&["doge"], "a mask that is computed from the values"),
    (&["jetmoe"], "a mixture of experts in place of the projections"),
    (&["moshi", "moshi_depth"], "projections for each codebook"),
    (&["efficientloftr"], "queries and keys that are pooled by convolutions, and rotation of a grid"),
    (&["hiera"], "queries that are pooled over a sequence in which windows alternate"),
    (&["esmfold2"], "biases of pairs, and rotation by places in space"),
    (&["informer"], "attention of a part of the queries, or halved sequences"),
    (&["autoformer"], "correlation of whole sequences in place of attention"),
    (&["dinat"], "attention to neighbors on a grid"),
    (&["mobilevitv2"], "scores of single tokens in place of those of pairs"),
    (&["swiftformer"], "additive attention of a global query"),
    (&["cvt", "levit"], "convolutions in place of the projections"),
    (&["rwkv"], "a recurrent state in place of scores"),
    (&["dory"], "norms of unit length, and a learned factor on each element of queries after the rotation"),
    (&["inkling_text", "inkling2_text", "inkling2_loop_text", "zaya"], "convolutions of keys and values along the sequence"),
    (&["timm_wrapper", "timm_backbone", "gemma3n_vision"], "a model of timm: layers are read from timm's own files, as of the family `timm`"),
    (&["mra", "nystromformer", "reformer", "yoso"], "attention to a part of the tokens, or an approximation of attention"),
    (&["funnel"], "relative positions of their own, and pooled or repeated sequences"),
    (&["prophetnet"], "n-gram streams"),
    (&["lilt"], "text and layout in two streams whose scores add"),
    (&["bros"], "queries that are compared with the distances of boxes on the page"),
    (&["axk2"], "queries and gates of normalized and other latents together"),
    (&["dots3_note_text"], "a norm of the rotated key, and sizes of latents per layer"),
    (&["mistral_large4_text"], "latents of another layer, and a learned factor on the queries"),
];

/// Every `model_type` of such a family.
pub(super) fn unsupported_types() -> impl Iterator<Item = &'static str> {
    UNSUPPORTED.iter().flat_map(|(model_types, _)| *model_types).copied()
}

/// Why this version cannot run a family.
pub(super) fn unsupported_reason(model_type: &str) -> Option<&'static str> {
    UNSUPPORTED.iter().find(|(names, _)| names.contains(&model_type)).map(|(_, why)| *why)
}

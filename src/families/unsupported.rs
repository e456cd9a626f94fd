//! Families that this version cannot run as their own models do, each with the reason.

use crate::families::family::{BASE, Family};

/// A row that only says why.
const fn unsupported(model_types: &'static [&'static str], why: &'static str) -> Family {
    Family { model_types, unsupported: Some(why), ..BASE }
}

#[rustfmt::skip]
pub(crate) const UNSUPPORTED: &[Family] = &[
    unsupported(&["neomme"], "a part of the context along each token's own value that is taken away"),
    unsupported(&["doge"], "a mask that is computed from the values"),
    unsupported(&["jetmoe"], "a mixture of experts in place of the projections"),
    unsupported(&["moshi", "moshi_depth"], "projections for each codebook"),
    unsupported(&["efficientloftr"], "queries and keys that are pooled by convolutions, and rotation of a grid"),
    unsupported(&["hiera"], "queries that are pooled over a sequence in which windows alternate"),
    unsupported(&["esmfold2"], "biases of pairs, and rotation by places in space"),
    unsupported(&["informer"], "attention of a part of the queries, or halved sequences"),
    unsupported(&["autoformer"], "correlation of whole sequences in place of attention"),
    unsupported(&["dinat"], "attention to neighbors on a grid"),
    unsupported(&["mobilevitv2"], "scores of single tokens in place of those of pairs"),
    unsupported(&["swiftformer"], "additive attention of a global query"),
    unsupported(&["cvt", "levit"], "convolutions in place of the projections"),
    unsupported(&["rwkv"], "a recurrent state in place of scores"),
    unsupported(
        &["dory"],
        "norms of unit length, and a learned factor on each element of queries after the rotation",
    ),
    unsupported(
        &["inkling_text", "inkling2_text", "inkling2_loop_text", "zaya"],
        "convolutions of keys and values along the sequence",
    ),
    unsupported(
        &["timm_wrapper", "timm_backbone", "gemma3n_vision"],
        "a model of timm: layers are read from timm's own files, as of the family `timm`",
    ),
    unsupported(
        &["mra", "nystromformer", "reformer", "yoso"],
        "attention to a part of the tokens, or an approximation of attention",
    ),
    unsupported(&["funnel"], "relative positions of their own, and pooled or repeated sequences"),
    unsupported(&["prophetnet"], "n-gram streams"),
    unsupported(&["convbert"], "convolutions beside the heads"),
    unsupported(&["lilt"], "text and layout in two streams whose scores add"),
    unsupported(&["bros"], "queries that are compared with the distances of boxes on the page"),
    unsupported(&["axk2"], "queries and gates of normalized and other latents together"),
    unsupported(&["dots3_note_text"], "a norm of the rotated key, and sizes of latents per layer"),
    unsupported(&["mistral_large4_text"], "latents of another layer, and a learned factor on the queries"),
];

//! Tensor names below an attention prefix that are the same in every layout that has the tensor.

/// A learned key and value that every query sees (`torch.nn.MultiheadAttention`, fairseq).
pub(crate) const BIAS_KV: [&str; 2] = ["bias_k", "bias_v"];
/// The vector of additive scoring, `(h, head_dim)`.
pub(crate) const SCORE: &str = "score.weight";
/// A score per head that takes part in the softmax without a value, `(h)` (GPT-OSS).
pub(crate) const SINKS: &str = "sinks";
/// Norms of queries and keys, by the names in use. Below each is a `weight`, perhaps a `bias`, or a norm per head.
pub(crate) const QK_NORMS: [[&str; 2]; 3] =
    [["q_norm", "k_norm"], ["q_layernorm", "k_layernorm"], ["self.layer_norm_q", "self.layer_norm_k"]];
/// A table of biases of distances between tokens (T5).
pub(crate) const RELATIVE_BIAS: &str = "relative_attention_bias.weight";
/// A table of biases of offsets between patches (BEiT).
pub(crate) const PATCH_BIAS: &str = "relative_position_bias_table";
/// A table of biases of offsets between patches that all layers share, next to the layers (BEiT).
pub(crate) const SHARED_PATCH_BIAS: &str = "relative_position_bias.relative_position_bias_table";
/// Embeddings of distances; their norm is below (DeBERTa).
pub(crate) const DISTANCE_EMBEDDINGS: &str = "rel_embeddings";
/// The frequencies of the rotation, which ESM keeps in the layer.
pub(crate) const ROTARY_FREQUENCIES: &str = "self.rotary_embeddings.inv_freq";

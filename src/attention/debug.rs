//! What a layer prints: its configuration in short, and where and how its weights are held. Never the weights.

use std::fmt;

use crate::attention::MultiHeadAttention;

/// One line, whatever the sizes: the configuration in short, dtype and device, whether the weights are variables, and
/// whether they are packed for the CPU kernels.
impl fmt::Debug for MultiHeadAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        f.debug_struct("MultiHeadAttention")
            .field("hidden_size", &config.hidden_size)
            .field("num_attention_heads", &config.num_attention_heads)
            .field("num_key_value_heads", &config.resolved_num_key_value_heads())
            .field("head_dim", &config.resolved_head_dim())
            .field("position", &format_args!("{}", config.position))
            .field("mask", &format_args!("{}", config.mask))
            .field("dtype", &self.dtype())
            .field("device", &self.device().location())
            .field("variables", &(self.tracks_gradient() || self.o_proj.tracks_gradient()))
            .field("packed", &self.qkv.is_packed())
            .finish_non_exhaustive()
    }
}

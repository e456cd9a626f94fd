//! What a convolution of the values beside the heads goes with.

use crate::config::{AttentionConfig, KeyValueSource};
use crate::error::{Error, Result};

/// The most neighbors of a convolution: each is one product. Published models have 11.
const MAX_NEIGHBORS: usize = 1024;

impl AttentionConfig {
    /// Checks that values can be added to the output, element by element.
    pub(super) fn check_value_convolution(&self) -> Result<()> {
        let Some(neighbors) = self.value_convolution else { return Ok(()) };
        let (h, h_kv) = (self.num_attention_heads, self.resolved_num_key_value_heads());
        let (values, output) = (h_kv * self.resolved_value_head_dim(), self.resolved_output_size());
        if !(1..=MAX_NEIGHBORS).contains(&neighbors) {
            return Err(Error::config("value_convolution", neighbors, format!("1 to {MAX_NEIGHBORS}")));
        }
        if h != h_kv || values != output {
            let found = format!("{h_kv} heads with {values} elements of values");
            let expected = format!("{h} heads with {output} elements, one for each of the output");
            return Err(Error::value("a layer with a convolution of its values", found, expected));
        }
        let is_shared = matches!(self.key_value_source, KeyValueSource::Shared { .. });
        let has_other_tokens = self.reshapes() || self.global_tokens || is_shared;
        if has_other_tokens || self.latent.is_some() || self.add_bias_kv || self.add_zero_attn {
            let allowed = "none beside latents, global tokens, pooled queries, pairs of heads, extra keys or those of another layer";
            return Err(Error::config("value_convolution", neighbors, allowed));
        }
        Ok(())
    }
}

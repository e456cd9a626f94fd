//! Loading an attention layer from a checkpoint.

use crate::attention::MultiHeadAttention;
use crate::checkpoint::source::WeightSource;
use crate::config::AttentionConfig;
use crate::error::Result;
use crate::weights::AttentionWeights;

impl MultiHeadAttention {
    /// Loads a layer from a checkpoint in any supported layout, which is detected from names and shapes. `source` is a
    /// `VarBuilder` or a [`Checkpoint::at`](crate::checkpoint::Checkpoint::at) with the prefix of the layer.
    ///
    /// # Errors
    /// Those of [`AttentionWeights::read`].
    pub fn load<S: WeightSource>(config: &AttentionConfig, source: S) -> Result<Self> {
        let (weights, _) = AttentionWeights::read(config, &source)?;
        Self::from_weights(config, weights)
    }
}

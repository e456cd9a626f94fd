//! Removal of attention heads from a model in memory.

use candle_attention::Result;
use candle_attention::pruning::PrunedHeads;
use candle_attention::tensor::{Freeze, Frozen};

use crate::model::mixer::Mixer;
use crate::model::text_model::TextModel;

impl TextModel {
    /// The model without these heads, by their numbers in this model: what it computes with a mask of 0 for them, for
    /// less work. Their numbers in the unpruned model are in the configuration, under `pruned_heads`.
    ///
    /// # Errors
    /// A head that there is not; layers that share their weights (ALBERT); see
    /// [`MultiHeadAttention::prune_heads`](candle_attention::MultiHeadAttention::prune_heads).
    pub fn prune_heads(&self, heads: &PrunedHeads) -> Result<Self> {
        heads.check(&self.heads())?;
        let mut pruned = Self { frozen: Frozen::default(), ..self.clone() };
        pruned.config.pruned_heads = self.config.pruned_heads.and(heads, self.config.num_attention_heads);
        pruned.config.validate()?;
        for (index, layer) in pruned.blocks.iter_mut().enumerate() {
            let layer_heads = heads.for_layer(index);
            if !layer_heads.is_empty() {
                // A layer without attention has no heads, which is checked.
                if let Mixer::Attention(attention, _) = &mut layer.mixer {
                    **attention = attention.prune_heads(&layer_heads)?;
                }
            }
        }
        if self.frozen.is_itself() {
            pruned.freeze_in_place()?;
        }
        Ok(pruned)
    }
}

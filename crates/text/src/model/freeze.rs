//! Models with weights that cannot change.

use candle_attention::Result;
use candle_attention::ops::Linear;
use candle_attention::tensor::{Freeze, Frozen, MapTensors};
use candle_core::Tensor;

use crate::model::block::Block;
use crate::model::text_model::TextModel;

impl TextModel {
    /// The model as it is now, for inference: its weights are copies that nobody else can change, so on the CPU they
    /// are packed for the kernels at once, and the packed projections are all that the copy keeps of them. Like
    /// [`MultiHeadAttention::frozen`](candle_attention::MultiHeadAttention::frozen), it is a snapshot that does not
    /// follow the variables, and it is the copy of the last call if no weight has changed since.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn frozen(&self) -> Result<Self> {
        self.freeze(&self.frozen)
    }
}

impl Freeze for TextModel {
    fn frozen_state(&mut self) -> &mut Frozen<Self> {
        &mut self.frozen
    }

    fn pack(&mut self) -> Result<()> {
        for index in 0..self.blocks.len() {
            let (earlier, rest) = self.blocks.split_at_mut(index);
            // ALBERT's layers share their weights, and so what is packed of them.
            match earlier.iter().find(|earlier| earlier.shares_weights_with(&rest[0])) {
                Some(earlier) => rest[0] = earlier.clone(),
                None => rest[0].pack()?,
            }
        }
        self.projection.as_mut().map_or(Ok(()), Linear::pack)
    }
}

impl MapTensors for TextModel {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let mut blocks: Vec<Block> = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            // ALBERT's layers share their weights, and so what is packed of them.
            let mapped = match self.blocks[..index].iter().position(|earlier| earlier.shares_weights_with(block)) {
                Some(earlier) => blocks[earlier].clone(),
                None => block.map_tensors(f)?,
            };
            blocks.push(mapped);
        }
        Ok(Self {
            config: self.config.clone(),
            embeddings: self.embeddings.map_tensors(f)?,
            embeddings_norm: self.embeddings_norm.map_tensors(f)?,
            projection: self.projection.map_tensors(f)?,
            blocks,
            final_norm: self.final_norm.map_tensors(f)?,
            frozen: Frozen::default(),
        })
    }
}

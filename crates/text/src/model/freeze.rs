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
        self.blocks.iter_mut().try_for_each(Block::pack)?;
        [&mut self.projection, &mut self.final_projection].into_iter().flatten().try_for_each(Linear::pack)
    }
}

impl MapTensors for TextModel {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            config: self.config.clone(),
            embeddings: self.embeddings.map_tensors(f)?,
            embeddings_norm: self.embeddings_norm.map_tensors(f)?,
            projection: self.projection.map_tensors(f)?,
            blocks: self.blocks.map_tensors(f)?,
            layers: self.layers.clone(),
            final_norm: self.final_norm.map_tensors(f)?,
            final_projection: self.final_projection.map_tensors(f)?,
            frozen: Frozen::default(),
        })
    }
}

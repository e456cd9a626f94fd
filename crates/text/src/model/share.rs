//! Models with weights that cannot change, and models that hold weights once that they have in common.

use candle_attention::ops::Linear;
use candle_attention::tensor::{Freeze, Frozen, MapTensors, ShareWeights};
use candle_attention::{Result, share_fields};
use candle_core::Tensor;

use crate::model::block::Block;
use crate::model::table::Table;
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

impl TextModel {
    /// This model with the weights of `other` where they are the same, bit for bit: both then hold one copy of
    /// them. It is for models with different adapters of one base. Tables of embeddings, the query-key-value projection
    /// of a layer and each other projection are compared as a whole.
    ///
    /// # Errors
    /// A GPU cannot be read.
    pub fn with_shared_weights(mut self, other: &Self) -> Result<Self> {
        self.share_weights(other)?;
        Ok(self)
    }
}

share_fields!(TextModel { embeddings, projection, final_projection, blocks });

impl ShareWeights for Table {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        match (&mut *self, other) {
            (Self::Tensor(own), Self::Tensor(other)) => own.share_weights(other),
            (Self::Quantized(own, _), Self::Quantized(others, _)) if own.has_same_bits(others) => {
                *own = others.clone();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::model::config::TextModelConfig;
    use crate::model::table::Table;
    use candle_attention::checkpoint::Checkpoint;
    use candle_attention::lora::LoraAdapter;

    /// Weights that an adapter does not change are in memory once.
    #[test]
    fn unchanged_weights_are_shared() -> Result<()> {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let source = Checkpoint::open(format!("{fixtures}/tiny-bert"))?.at("", dtype, &Device::Cpu);
            let config = TextModelConfig::from_file(format!("{fixtures}/tiny-bert/config.json"))?;
            let base = TextModel::load(&config, source.clone())?;
            let adapter = LoraAdapter::open(format!("{fixtures}/lora/bert_layers"))?;
            let adapted = TextModel::load(&config, adapter.apply(source)?)?.with_shared_weights(&base)?;
            let words = |model: &TextModel| match &model.embeddings.words {
                Table::Tensor(table) => table.id(),
                Table::Quantized(..) => panic!("few bits"),
            };
            assert_eq!(words(&adapted), words(&base));
            for (index, (own, base_block)) in adapted.blocks.iter().zip(&base.blocks).enumerate() {
                let [own, base_block] = [own, base_block]
                    .map(|block| (block.mixer.attention().unwrap().projection_ids(), &block.feed_forward.experts[0]));
                assert_eq!(own.1.last.id(), base_block.1.last.id());
                assert_eq!(own.1.activated.id(), base_block.1.activated.id());
                // The adapter changes the values of the second layer.
                assert_eq!([own.0[0] == base_block.0[0], own.0[1] == base_block.0[1]], [index == 0, true], "{dtype:?}");
            }
        }
        Ok(())
    }
}

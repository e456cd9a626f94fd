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
    use candle_attention::ProjectionKind;
    use candle_attention::checkpoint::Checkpoint;
    use candle_attention::lora::LoraAdapter;
    use candle_attention::ops::Linear;

    /// Whether two projections are in memory once.
    fn is_shared(own: &Linear, other: &Linear) -> bool {
        match own.is_packed() {
            true => std::ptr::eq(own.packed().unwrap(), other.packed().unwrap()),
            false => own.weights().unwrap().weight.id() == other.weights().unwrap().weight.id(),
        }
    }

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
            for (index, (own, of_base)) in adapted.blocks.iter().zip(&base.blocks).enumerate() {
                let both = [own, of_base];
                let [own, base] = both.map(|block| &block.feed_forward.experts[0]);
                assert!(is_shared(&own.last, &base.last) && is_shared(&own.activated, &base.activated));
                // The adapter changes the values of the second layer.
                let are_shared = [ProjectionKind::Value, ProjectionKind::Output].map(|kind| {
                    let [own, base] = both.map(|block| block.mixer.attention().unwrap().projection(kind).unwrap());
                    is_shared(&own, &base)
                });
                assert_eq!(are_shared, [index == 0, true], "{dtype:?}");
            }
        }
        Ok(())
    }
}

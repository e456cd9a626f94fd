//! BERT over texts that lie one after the other, by operations on tensors: no padding, and between the ids and the hidden
//! states nothing that waits for the device.

use candle_core::{DType, Module, Tensor};

use crate::encoder::model::bert::BertModel;
use crate::error::Result;
use crate::position::ragged::BatchCache;

impl BertModel {
    /// What [`forward_ragged`](Self::forward_ragged) does on a GPU; its arguments are checked.
    pub(crate) fn forward_texts(&self, ids: &[u32], types: &[u32], lengths: &[usize]) -> Result<Tensor> {
        let positions = self.row_positions(ids, lengths);
        let device = self.word_embeddings.device();
        // candle's kernels for NVIDIA GPUs cannot look up nothing.
        if ids.is_empty() {
            return Ok(Tensor::zeros((0, self.config.hidden_size), DType::F32, device)?);
        }
        let rows = |table: &Tensor, rows: &[u32]| table.index_select(&Tensor::new(rows, device)?, 0);
        let mut hidden = rows(&self.word_embeddings, ids)?;
        for (table, places) in [(&self.token_type_embeddings, types), (&self.position_embeddings, &positions)] {
            if let Some(table) = table {
                hidden = (hidden + rows(table, places)?)?;
            }
        }
        hidden = self.embeddings_norm.forward(&hidden.unsqueeze(0)?)?;
        if let Some(projection) = &self.projection {
            hidden = projection.forward(&hidden, hidden.dtype())?;
        }
        let shared = BatchCache::default();
        for layer in &self.layers {
            hidden = layer.forward_texts(&hidden, lengths, &shared)?;
        }
        if let Some(norm) = &self.final_norm {
            hidden = norm.forward(&hidden)?;
        }
        Ok(hidden.squeeze(0)?.to_dtype(DType::F32)?)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::encoder::BertConfig;

    /// On the CPU both ways run: the one over tensors, which GPUs take, and the one over plain numbers.
    #[test]
    fn tensors_say_what_plain_numbers_say() {
        let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let encoders = ["albert", "distilbert", "electra", "gte", "modernbert", "mpnet", "nomic_bert", "roberta"];
        let encoders = encoders.map(|name| fixtures.join("encoders").join(name));
        for folder in encoders.into_iter().chain([fixtures.join("tiny-bert")]) {
            let config = BertConfig::from_file(folder.join("config.json")).unwrap();
            let source = Checkpoint::open(&folder).unwrap().at("", DType::F32, &Device::Cpu);
            let model = BertModel::load(&config, &source).unwrap();
            let lengths = [5, 1, 0, 13, 2];
            let tokens: usize = lengths.iter().sum();
            let ids: Vec<u32> = (0..tokens as u32).map(|i| 3 + i * 7 % (config.vocab_size as u32 - 3)).collect();
            let types: Vec<u32> = ids.iter().map(|id| id % config.type_vocab_size.max(1) as u32).collect();
            let want = model.forward_ragged(&ids, &types, &lengths).unwrap();
            let got = model.forward_texts(&ids, &types, &lengths).unwrap();
            assert_eq!((got.dims(), got.dtype()), (want.dims(), DType::F32));
            assert!(worst(&got, &want) < 1e-5, "{}", folder.display());
            // Once more with the steps between products as an NVIDIA GPU does them.
            #[cfg(not(feature = "cuda"))]
            {
                let (got, steps) =
                    crate::ops::cuda::with_mock_device(|| model.forward_texts(&ids, &types, &lengths).unwrap());
                // A norm after the embeddings, and in each layer two norms and an activation.
                assert!(steps > 3 * config.num_hidden_layers, "{}: {steps} steps", folder.display());
                assert!(worst(&got, &want) < 1e-5, "{}", folder.display());
            }
            assert_eq!(model.forward_texts(&[], &[], &[0]).unwrap().dims(), [0, config.hidden_size]);
        }
    }

    fn worst(got: &Tensor, want: &Tensor) -> f32 {
        let differences = (got - want).unwrap().abs().unwrap().flatten_all().unwrap();
        differences.max(0).unwrap().to_scalar().unwrap()
    }
}

//! Forward of a ragged batch: no padding, on the CPU over f32 rows, on NVIDIA GPUs over one tensor; elsewhere by buckets.

use std::ops::Range;

use candle_attention::ops::Linear;
use candle_attention::ragged::{CHUNK_VALUES, lengths as lengths_between, offsets, share_sequences};
use candle_attention::tensor::{compute_dtype, element_count, zeros};
use candle_attention::{Error, Result};
use candle_core::{DType, Device, Tensor};

use crate::model::bert::BertModel;
use crate::model::block::Block;
use crate::model::embeddings::check_ids;
use crate::model::row_stream::RowStream;
use crate::model::tensor_stream::{Batch, TensorStream};

impl BertModel {
    /// Whether [`forward_ragged`](Self::forward_ragged) computes nothing for padding: not in f64; on the CPU with weights
    /// that are no variables, or on an NVIDIA GPU.
    pub fn supports_ragged(&self) -> bool {
        self.supports_rows() || (self.device().is_cuda() && self.dtype() != DType::F64)
    }

    fn supports_rows(&self) -> bool {
        self.blocks.iter().all(Block::supports_rows) && self.projection.as_ref().is_none_or(Linear::can_pack)
    }

    /// A ragged batch → hidden states `(tokens, hidden_size)` in f32, or f64 for an f64 model.
    ///
    /// `ids` and `token_type_ids` are the sequences one after another, `lengths` the number of tokens of each. On the CPU
    /// the hidden states of a sequence are bitwise the same alone and in any batch.
    ///
    /// A model that does not [support ragged batches](Self::supports_ragged), as on an Apple GPU, pads sequences of like
    /// length together: padding is at most a quarter of what is computed. There the weights may be variables, and each gets
    /// its gradient.
    ///
    /// # Errors
    /// Lengths that do not add up to the number of tokens; a sequence longer than `max_position_embeddings`; an id outside
    /// its table.
    pub fn forward_ragged(&self, ids: &[u32], token_type_ids: &[u32], lengths: &[usize]) -> Result<Tensor> {
        let offsets = offsets(lengths);
        self.check_ragged(ids, token_type_ids, lengths, &offsets)?;
        if !self.supports_ragged() {
            let [ids, types] = [ids, token_type_ids].map(|all| sequences(all, &offsets));
            let hidden = self.forward_buckets(&ids, &types, None)?;
            return Ok(hidden.flat()?.to_dtype(compute_dtype(self.dtype()))?);
        }
        if !self.supports_rows() {
            return self.forward_ragged_tensor(ids, token_type_ids, lengths);
        }
        let width = self.config.hidden_size;
        let mut output = zeros("hidden states", element_count("hidden states", &[ids.len(), width])?)?;
        let part = |sequences: &Range<usize>| (offsets[sequences.end] - offsets[sequences.start]) * width;
        self.forward_chunks([ids, token_type_ids], &offsets, &mut output, part, |_, hidden, output| {
            output.copy_from_slice(hidden);
        })?;
        Ok(Tensor::from_vec(output, (ids.len(), width), &Device::Cpu)?)
    }

    /// What `reduce` makes of the hidden states `(length, hidden_size)` of each sequence: `(sequences, size)`. The hidden
    /// states of all sequences are never in memory at a time. `None` if the model does not run on f32 rows on the CPU.
    ///
    /// # Errors
    /// Those of [`forward_ragged`](Self::forward_ragged).
    pub(crate) fn reduce_ragged(
        &self,
        ids: &[u32],
        token_type_ids: &[u32],
        lengths: &[usize],
        size: usize,
        reduce: impl Fn(&[f32], &mut [f32]) + Sync,
    ) -> Result<Option<Tensor>> {
        if !self.supports_rows() {
            return Ok(None);
        }
        let (offsets, width) = (offsets(lengths), self.config.hidden_size);
        self.check_ragged(ids, token_type_ids, lengths, &offsets)?;
        let mut output = zeros("the output", element_count("the output", &[lengths.len(), size])?)?;
        let part = |sequences: &Range<usize>| sequences.len() * size;
        self.forward_chunks([ids, token_type_ids], &offsets, &mut output, part, |starts, hidden, output| {
            for (ends, output) in starts.windows(2).zip(output.chunks_exact_mut(size.max(1))) {
                reduce(&hidden[ends[0] * width..ends[1] * width], output);
            }
        })?;
        Ok(Some(Tensor::from_vec(output, (lengths.len(), size), &Device::Cpu)?))
    }

    /// Calls `finish` with the starts of sequences in a chunk, its hidden states, and its part of `output`.
    fn forward_chunks(
        &self,
        [ids, types]: [&[u32]; 2],
        offsets: &[usize],
        output: &mut [f32],
        part: impl Fn(&Range<usize>) -> usize,
        finish: impl Fn(&[usize], &[f32], &mut [f32]) + Sync,
    ) -> Result<()> {
        let limit = CHUNK_VALUES / self.config.hidden_size.max(1);
        share_sequences(offsets, limit, self.multiply_adds(offsets)?, output, part, |team, sequences, output| {
            let tokens = offsets[sequences.start]..offsets[sequences.end];
            let starts: Vec<usize> =
                offsets[sequences.start..=sequences.end].iter().map(|start| start - tokens.start).collect();
            let lengths: Vec<usize> = lengths_between(&starts).collect();
            let hidden = self.embeddings.of_rows(&ids[tokens.clone()], &types[tokens], &lengths)?;
            let mut stream = RowStream::new(team, hidden, &starts)?;
            self.run(&mut stream)?;
            finish(&starts, &stream.hidden, output);
            Ok(())
        })
    }

    /// Multiply-adds of all layers for a ragged batch.
    fn multiply_adds(&self, offsets: &[usize]) -> Result<usize> {
        self.blocks.iter().try_fold(0usize, |sum, block| Ok(sum.saturating_add(block.ragged_multiply_adds(offsets)?)))
    }

    fn check_ragged(&self, ids: &[u32], types: &[u32], lengths: &[usize], offsets: &[usize]) -> Result<()> {
        let (tokens, sum) = (ids.len(), offsets[lengths.len()]);
        if sum != tokens || types.len() != tokens {
            let found = format!("{sum} and {}", types.len());
            let expected = format!("{tokens}, the number of ids");
            return Err(Error::value("the sum of lengths and the number of types", found, expected));
        }
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest > self.config.max_tokens() {
            let allowed = format!("at most {}, by max_position_embeddings", self.config.max_tokens());
            return Err(Error::value("the length of the longest sequence", longest, allowed));
        }
        check_ids("ids", ids, self.config.vocab_size)?;
        if self.config.has_types() {
            check_ids("token_type_ids", types, self.config.type_vocab_size)?;
        }
        Ok(())
    }

    /// A ragged batch as one tensor, in the dtype of the weights: nothing between the ids and the hidden states waits for
    /// the device. The arguments are checked.
    fn forward_ragged_tensor(&self, ids: &[u32], types: &[u32], lengths: &[usize]) -> Result<Tensor> {
        // candle's kernels for NVIDIA GPUs cannot look up nothing.
        if ids.is_empty() {
            return Ok(Tensor::zeros((0, self.config.hidden_size), DType::F32, self.device())?);
        }
        let hidden = self.embeddings.of_ragged(ids, types, lengths)?;
        let mut stream = TensorStream::new(hidden, Batch::ragged(lengths), 0.0);
        self.run(&mut stream)?;
        Ok(stream.hidden.squeeze(0)?.to_dtype(DType::F32)?)
    }
}

/// The tokens of each sequence.
fn sequences<'a>(all: &'a [u32], offsets: &[usize]) -> Vec<&'a [u32]> {
    offsets.windows(2).map(|ends| &all[ends[0]..ends[1]]).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::BertConfig;
    use candle_attention::checkpoint::Checkpoint;

    /// On the CPU both streams run: the one over a tensor, which GPUs use, and the one over f32 rows.
    #[test]
    fn tensor_stream_equals_row_stream() {
        let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let encoders = [
            "albert",
            "distilbert",
            "electra",
            "gte",
            "modernbert",
            "mpnet",
            "nomic_bert",
            "roberta",
            "deberta",
            "deberta_v2",
        ];
        let decoders = ["qwen3", "mistral", "gemma3_text", "eurobert"];
        let encoders =
            encoders.into_iter().chain(decoders).chain(["t5", "umt5"]).map(|name| fixtures.join("encoders").join(name));
        for folder in encoders.chain([fixtures.join("tiny-bert")]) {
            let config = BertConfig::from_file(folder.join("config.json")).unwrap();
            // A `VarBuilder` may share its tensors, so the model keeps them, as it does on a GPU.
            let source = Checkpoint::open(&folder).unwrap().var_builder(DType::F32, &Device::Cpu);
            let model = BertModel::load(&config, source).unwrap();
            let lengths = [5, 1, 0, 13, 2];
            let tokens: usize = lengths.iter().sum();
            let ids: Vec<u32> = (0..tokens as u32).map(|i| 3 + i * 7 % (config.vocab_size as u32 - 3)).collect();
            let types: Vec<u32> = ids.iter().map(|id| id % config.type_vocab_size.max(1) as u32).collect();
            let want = model.forward_ragged(&ids, &types, &lengths).unwrap();
            let got = model.forward_ragged_tensor(&ids, &types, &lengths).unwrap();
            assert_eq!((got.dims(), got.dtype()), (want.dims(), DType::F32));
            assert!(worst(&got, &want) < 1e-5, "{}", folder.display());
            assert_eq!(model.forward_ragged_tensor(&[], &[], &[0]).unwrap().dims(), [0, config.hidden_size]);
        }
    }

    /// An activation that the kernels do not have.
    #[test]
    fn other_activations_run_between_the_products_of_rows() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-bert");
        let mut config = BertConfig::from_file(folder.join("config.json")).unwrap();
        config.hidden_act = candle_nn::Activation::Sigmoid;
        let source = Checkpoint::open(&folder).unwrap().at("", DType::F32, &Device::Cpu);
        let model = BertModel::load(&config, source).unwrap();
        let (ids, types, lengths) = ([5, 9, 7, 6], [0; 4], [3, 1]);
        let want = model.forward_ragged_tensor(&ids, &types, &lengths).unwrap();
        assert!(worst(&model.forward_ragged(&ids, &types, &lengths).unwrap(), &want) < 1e-5);
    }

    fn worst(got: &Tensor, want: &Tensor) -> f32 {
        let differences = (got - want).unwrap().abs().unwrap().flatten_all().unwrap();
        differences.max(0).unwrap().to_scalar().unwrap()
    }
}

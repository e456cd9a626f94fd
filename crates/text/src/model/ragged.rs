//! Forward of sequences of unequal length: without padding, on the CPU over f32 rows, on NVIDIA GPUs over one tensor;
//! elsewhere padded by buckets.

use std::ops::Range;

use candle_attention::ops::Linear;
use candle_attention::ragged::{Bucket, offsets, share_sequences};
use candle_attention::tensor::compute_dtype;
use candle_attention::{AttentionMask, Error, MultiHeadAttention, PaddedIds, Result};
use candle_attention_kernels::{element_count, zeros};
use candle_core::{DType, Device, Tensor};

use crate::model::block::Block;
use crate::model::embeddings::check_ids;
use crate::model::hidden_states::HiddenStates;
use crate::model::options::ForwardOptions;
use crate::model::pooling::TextPooling;
use crate::model::row_stream::RowStream;
use crate::model::tensor_stream::{Batch, TensorStream};
use crate::model::text_model::TextModel;

impl TextModel {
    /// Whether [`forward_ragged`](Self::forward_ragged) computes nothing for padding: not in f64; on the CPU with
    /// weights that are no variables, or on an NVIDIA GPU.
    pub fn supports_ragged(&self) -> bool {
        self.supports_rows() || (self.device().is_cuda() && self.dtype() != DType::F64)
    }

    fn supports_rows(&self) -> bool {
        let mut projections = [&self.projection, &self.final_projection].into_iter().flatten();
        self.blocks.iter().all(Block::supports_rows) && projections.all(Linear::can_pack)
    }

    /// A ragged batch → hidden states `(tokens, hidden_size)` in f32, or f64 for an f64 model.
    ///
    /// `ids` and `token_type_ids` are the sequences one after another, `lengths` the number of tokens of each. On the
    /// CPU the hidden states of a sequence are bitwise the same alone and in any batch.
    ///
    /// A model that does not [support ragged batches](Self::supports_ragged), as on an Apple GPU, pads sequences of
    /// like length together: padding is at most a quarter of what is computed. There the weights may be variables, and
    /// each gets its gradient.
    ///
    /// # Errors
    /// Lengths that do not add up to the number of tokens; a sequence longer than `max_position_embeddings`; an id
    /// outside its table.
    pub fn forward_ragged(&self, ids: &[u32], token_type_ids: &[u32], lengths: &[usize]) -> Result<Tensor> {
        let offsets = offsets(lengths);
        self.check_ragged(ids, token_type_ids, lengths, &offsets)?;
        if !self.supports_ragged() {
            let ends = || offsets.windows(2).map(|ends| ends[0]..ends[1]);
            let [ids, types] = [ids, token_type_ids].map(|all| ends().map(|part| &all[part]).collect::<Vec<_>>());
            let hidden = self.forward_buckets(&ids, &types, None)?;
            return Ok(hidden.flat()?.to_dtype(compute_dtype(self.dtype()))?);
        }
        if !self.supports_rows() {
            return self.forward_ragged_tensor(ids, token_type_ids, lengths);
        }
        self.forward_rows([ids, token_type_ids], &offsets, None)
    }

    /// The pooled vectors of the sequences of a ragged batch, `(sequences, size)`: pooled chunk by chunk, so that the
    /// hidden states of all sequences are never in memory at a time. `None` if the model does not run on f32 rows on
    /// the CPU.
    ///
    /// # Errors
    /// The errors of [`forward_ragged`](Self::forward_ragged).
    pub(crate) fn pool_ragged(
        &self,
        [ids, types]: [&[u32]; 2],
        lengths: &[usize],
        pooling: TextPooling,
    ) -> Result<Option<Tensor>> {
        if !self.supports_rows() {
            return Ok(None);
        }
        let offsets = offsets(lengths);
        self.check_ragged(ids, types, lengths, &offsets)?;
        self.forward_rows([ids, types], &offsets, Some(pooling)).map(Some)
    }

    /// Runs a ragged batch over f32 rows, in chunks that threads share: hidden states `(tokens, hidden_size)`, or what
    /// `pooling` makes of each sequence, `(sequences, size)`.
    fn forward_rows(&self, ids: [&[u32]; 2], offsets: &[usize], pooling: Option<TextPooling>) -> Result<Tensor> {
        let [ids, types] = ids;
        let width = self.output_size();
        let rows_of = |sequences: &Range<usize>| match pooling {
            Some(_) => sequences.len(),
            None => offsets[sequences.end] - offsets[sequences.start],
        };
        let size = pooling.map_or(width, |TextPooling { pooling, .. }| pooling.output_size(width));
        let rows = rows_of(&(0..offsets.len() - 1));
        let mut output = zeros("hidden states", element_count("hidden states", &[rows, size])?)?;
        let part = |sequences: &Range<usize>| rows_of(sequences) * size;
        share_sequences(offsets, width, self.multiply_adds(offsets)?, &mut output, part, |team, sequences, output| {
            let tokens = offsets[sequences.start]..offsets[sequences.end];
            let starts: Vec<usize> =
                offsets[sequences.start..=sequences.end].iter().map(|start| start - tokens.start).collect();
            let lengths: Vec<usize> = starts.windows(2).map(|ends| ends[1] - ends[0]).collect();
            let hidden = self.embeddings.embed_rows(&ids[tokens.clone()], &types[tokens], &lengths)?;
            let mut stream = RowStream::new(team, hidden, &starts)?;
            self.run(&mut stream)?;
            match pooling {
                Some(pooling) => pooling.pool_sequences(&stream.hidden, width, &starts, output),
                None => output.copy_from_slice(&stream.hidden),
            }
            Ok(())
        })?;
        Ok(Tensor::from_vec(output, (rows, size), &Device::Cpu)?)
    }

    /// Multiply-adds of all layers for a ragged batch.
    fn multiply_adds(&self, offsets: &[usize]) -> Result<usize> {
        self.layers().try_fold(0usize, |sum, block| Ok(sum.saturating_add(block.ragged_multiply_adds(offsets)?)))
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

    /// A ragged batch as one tensor, in the dtype of the weights: nothing between the ids and the hidden states waits
    /// for the device. The arguments are checked.
    fn forward_ragged_tensor(&self, ids: &[u32], types: &[u32], lengths: &[usize]) -> Result<Tensor> {
        // candle's kernels for NVIDIA GPUs cannot look up nothing.
        if ids.is_empty() {
            return Ok(Tensor::zeros((0, self.output_size()), DType::F32, self.device())?);
        }
        let hidden = self.embeddings.embed_ragged(ids, types, lengths)?;
        let mut stream = TensorStream::new(hidden, Batch::ragged(lengths), 0.0);
        self.run(&mut stream)?;
        Ok(stream.hidden.squeeze(0)?.to_dtype(DType::F32)?)
    }

    /// Hidden states of sequences of ids and segment types: without any work on padding, and with the same result for a
    /// sequence in any batch, where the model [supports ragged batches](Self::supports_ragged).
    pub(crate) fn forward_sequences(&self, ids: &[&[u32]], types: &[Vec<u32>]) -> Result<HiddenStates> {
        let lengths: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
        if !self.supports_ragged() {
            return self.forward_buckets(ids, types, None);
        }
        Ok(HiddenStates { tokens: self.forward_ragged(&ids.concat(), &types.concat(), &lengths)?, lengths })
    }

    /// Hidden states of sequences, those of like length padded together: in the dtype of the model, differentiable, and
    /// `(b, s, hidden_size)` if they are one bucket. The tokens of sequence `i` attend to all of it, or to its first
    /// `visible[i]` tokens.
    pub(crate) fn forward_buckets<'a>(
        &self,
        ids: &'a [&[u32]],
        types: &'a [impl AsRef<[u32]>],
        visible: Option<&[usize]>,
    ) -> Result<HiddenStates> {
        let lengths: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
        let buckets = Bucket::group_like_lengths(&lengths);
        let rotates_for_length = MultiHeadAttention::rotates_for_length;
        // A token that nobody attends to is part of a convolution nevertheless: the expansion of queries in
        // LFM2.5-ColBERT.
        let zeroed = self.config.key_flag("conv_zero_padding")?.unwrap_or(false);
        let forward = |bucket: &Bucket| {
            let pad = |row: &dyn Fn(usize) -> &'a [u32], with| {
                let rows: Vec<&[u32]> = bucket.sequences.iter().map(|&i| row(i)).collect();
                Ok::<_, Error>(PaddedIds::new(&rows, with, self.device())?.ids)
            };
            let ids = pad(&|i| ids[i], self.config.pad_token_id)?;
            let types = pad(&|i| types[i].as_ref(), 0)?;
            let in_bucket = |all: &[usize]| bucket.sequences.iter().map(|&i| all[i]).collect::<Vec<_>>();
            let mask = match visible {
                Some(visible) => AttentionMask::lengths(&in_bucket(visible)),
                None if self.blocks.iter().filter_map(|block| block.mixer.attention()).any(rotates_for_length) => {
                    AttentionMask::padding(&in_bucket(&lengths))
                }
                None => AttentionMask::lengths(&in_bucket(&lengths)),
            };
            let lengths = in_bucket(if zeroed { visible.unwrap_or(&lengths) } else { &lengths });
            let options = ForwardOptions::default();
            Ok::<_, Error>(self.forward_padded(&ids, Some(&types), &mask, Some(&lengths), &options)?.hidden)
        };
        let tokens = match buckets.as_slice() {
            [] => Tensor::zeros((0, self.output_size()), self.dtype(), self.device())?,
            [one] if one.sequences.len() == ids.len() => forward(&Bucket::group_all(&lengths))?,
            several => {
                let padded =
                    several.iter().map(|bucket| Ok(forward(bucket)?.flatten(0, 1)?)).collect::<Result<Vec<_>>>()?;
                let places = Tensor::new(Bucket::places(several, &lengths), self.device())?;
                Tensor::cat(&padded, 0)?.index_select(&places, 0)?
            }
        };
        Ok(HiddenStates { tokens, lengths })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::TextModelConfig;
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
            "nomic_moe",
        ];
        let decoders =
            ["qwen3", "mistral", "gemma3_text", "eurobert", "embedding_gemma2_text", "lfm2", "lfm2_bidirectional"];
        let encoders =
            encoders.into_iter().chain(decoders).chain(["t5", "umt5"]).map(|name| fixtures.join("encoders").join(name));
        for folder in encoders.chain([fixtures.join("tiny-bert")]) {
            let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
            // A `VarBuilder` may share its tensors, so the model keeps them, as it does on a GPU.
            let source = Checkpoint::open(&folder).unwrap().var_builder(DType::F32, &Device::Cpu);
            let model = TextModel::load(&config, source).unwrap();
            let lengths = [5, 1, 0, 13, 2];
            let tokens: usize = lengths.iter().sum();
            let ids: Vec<u32> = (0..tokens as u32).map(|i| 3 + i * 7 % (config.vocab_size as u32 - 3)).collect();
            let types: Vec<u32> = ids.iter().map(|id| id % config.type_vocab_size.max(1) as u32).collect();
            let want = model.forward_ragged(&ids, &types, &lengths).unwrap();
            let got = model.forward_ragged_tensor(&ids, &types, &lengths).unwrap();
            assert_eq!((got.dims(), got.dtype()), (want.dims(), DType::F32));
            assert!(worst(&got, &want) < 1e-5, "{}", folder.display());
            assert_eq!(model.forward_ragged_tensor(&[], &[], &[0]).unwrap().dims(), [0, model.output_size()]);
        }
    }

    /// An activation that the kernels do not have.
    #[test]
    fn other_activations_run_between_the_products_of_rows() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-bert");
        let mut config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
        config.hidden_act = candle_nn::Activation::Sigmoid;
        let source = Checkpoint::open(&folder).unwrap().at("", DType::F32, &Device::Cpu);
        let model = TextModel::load(&config, source).unwrap();
        let (ids, types, lengths) = ([5, 9, 7, 6], [0; 4], [3, 1]);
        let want = model.forward_ragged_tensor(&ids, &types, &lengths).unwrap();
        assert!(worst(&model.forward_ragged(&ids, &types, &lengths).unwrap(), &want) < 1e-5);
    }

    fn worst(got: &Tensor, want: &Tensor) -> f32 {
        let differences = (got - want).unwrap().abs().unwrap().flatten_all().unwrap();
        differences.max(0).unwrap().to_scalar().unwrap()
    }
}

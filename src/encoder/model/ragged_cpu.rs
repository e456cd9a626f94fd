//! BERT over rows that lie one after the other, on plain numbers: no padding, each step a single pass, buffers reused.

use candle_core::{DType, Device, Tensor, WithDType};

use crate::encoder::model::bert::{BertModel, in_table};
use crate::encoder::model::layer::{Layer, LayerBuffers};
use crate::error::{Error, Result};
use crate::kernels::cpu::{Element, Isa};
use crate::ops::{Activation, Linear};
use crate::position::ragged::offsets;
use crate::tensor::{for_cpu_element, with_slice};

impl BertModel {
    /// Whether [`forward_ragged`](Self::forward_ragged) can run: not in f64; on the CPU with weights that are no variables,
    /// or on an NVIDIA GPU.
    pub fn runs_ragged(&self) -> bool {
        let words = &self.word_embeddings;
        self.runs_on_rows() || (words.device().is_cuda() && words.dtype() != DType::F64)
    }

    fn runs_on_rows(&self) -> bool {
        self.layers.iter().all(Layer::runs_on_rows) && self.projection.as_ref().is_none_or(Linear::can_pack)
    }

    /// Texts one after the other, without padding: their `ids` and segment types, and the number of tokens of each →
    /// hidden states `(tokens, hidden_size)` in f32, whatever the dtype of the weights. On the CPU a text's hidden states
    /// are bitwise the same alone and in any batch.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); if the model does not [run ragged](Self::runs_ragged).
    pub fn forward_ragged(&self, ids: &[u32], token_type_ids: &[u32], lengths: &[usize]) -> Result<Tensor> {
        if !self.runs_ragged() {
            let found = "a model that is trained or f64, or on another device";
            return Err(Error::value("forward_ragged's model", found, "one on the CPU with fixed weights, or on CUDA"));
        }
        let starts = offsets(lengths);
        let tokens = ids.len();
        if starts[lengths.len()] != tokens || token_type_ids.len() != tokens {
            let found = format!("{} and {}", starts[lengths.len()], token_type_ids.len());
            return Err(Error::value(
                "the sum of lengths and the number of types",
                found,
                format!("{tokens}, the tokens"),
            ));
        }
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest > self.config.max_tokens() {
            let allowed = format!("at most {}, by max_position_embeddings", self.config.max_tokens());
            return Err(Error::value("the longest text", longest, allowed));
        }

        in_table("ids", ids, self.config.vocab_size)?;
        if self.config.has_types() {
            in_table("token_type_ids", token_type_ids, self.config.type_vocab_size)?;
        }
        if !self.runs_on_rows() {
            return self.forward_texts(ids, token_type_ids, lengths);
        }
        let mut hidden = self.embed_rows(ids, token_type_ids, lengths)?;
        let isa = Isa::detect()?;
        self.embeddings_norm.add_rows(isa, &mut hidden, None)?;
        if let Some(projection) = &self.projection {
            let mut projected = Vec::new();
            projection.packed()?.multiply(&hidden, tokens, Activation::Identity, &mut projected);
            hidden = projected;
        }
        let mut buffers = LayerBuffers::default();
        for layer in &self.layers {
            layer.forward_rows(isa, &mut hidden, &starts, &mut buffers)?;
        }
        if let Some(norm) = &self.final_norm {
            norm.add_rows(isa, &mut hidden, None)?;
        }
        Ok(Tensor::from_vec(hidden, (tokens, self.config.hidden_size), &Device::Cpu)?)
    }

    /// The sum of word, type and position embeddings.
    fn embed_rows(&self, ids: &[u32], types: &[u32], lengths: &[usize]) -> Result<Vec<f32>> {
        for_cpu_element!(self.word_embeddings.dtype(), T => self.embed_rows_of::<T>(ids, types, lengths))
    }

    fn embed_rows_of<T: Element + WithDType>(&self, ids: &[u32], types: &[u32], lengths: &[usize]) -> Result<Vec<f32>> {
        let width = self.config.embedding_size();
        let positions = self.row_positions(ids, lengths);
        let mut sums = vec![0.0; ids.len() * width];
        let none = Tensor::zeros((0, width), T::DTYPE, &Device::Cpu)?;
        let mut buffer = vec![0.0; width];
        with_slice(&self.word_embeddings, |words: &[T]| {
            with_slice(self.token_type_embeddings.as_ref().unwrap_or(&none), |of_types: &[T]| {
                with_slice(self.position_embeddings.as_ref().unwrap_or(&none), |of_positions: &[T]| {
                    let tokens = ids.iter().zip(types).zip(positions);
                    for (sum, ((&id, &kind), position)) in sums.chunks_exact_mut(width).zip(tokens) {
                        // In the order in which `BertModel::forward` adds them.
                        let tables = [(words, id), (of_types, kind), (of_positions, position)];
                        for (table, row) in tables.into_iter().filter(|(table, _)| !table.is_empty()) {
                            let row = T::as_f32(&table[row as usize * width..][..width], &mut buffer);
                            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                        }
                    }
                })
            })
        })???;
        Ok(sums)
    }

    /// The row of the position table for each token.
    pub(crate) fn row_positions(&self, ids: &[u32], lengths: &[usize]) -> Vec<u32> {
        let uncounted = self.config.uncounted();
        let mut ids = ids.iter();
        let mut positions = Vec::with_capacity(ids.len());
        for &length in lengths {
            let mut next = self.config.first_position() as u32;
            positions.extend(ids.by_ref().take(length).map(|&id| {
                if uncounted == Some(id) {
                    return id;
                }
                next += 1;
                next - 1
            }));
        }
        positions
    }
}

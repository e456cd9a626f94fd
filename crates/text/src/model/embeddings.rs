//! Token embeddings: the sum of word, segment type and position embeddings, looked up as tensors or as f32 rows.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ensure;
use candle_attention::tensor::with_slices;
use candle_attention::{Error, Result, map_fields, share_fields};
use candle_attention_kernels::{AlignedVec, Element, element_count};
use candle_core::{DType, Device, Tensor, WithDType};
use half::{bf16, f16};

use crate::model::config::TextModelConfig;
use crate::model::table::Table;

/// The embedding tables of a model. Segment types are added only where the family has them, positions only where they
/// are not part of attention.
#[derive(Debug, Clone)]
pub(crate) struct Embeddings {
    /// `(vocab_size, width)`.
    pub words: Table,
    /// The factor on the word embeddings, if the family has one.
    scale: Option<f64>,
    /// `(max_position_embeddings, width)`.
    pub positions: Option<Tensor>,
    /// `(type_vocab_size, width)`.
    pub token_types: Option<Tensor>,
    /// The position of a sequence's first token.
    first_position: u32,
    /// The id of padding, which positions skip: its own position is that id.
    padding_id: Option<u32>,
    max_tokens: usize,
}

map_fields!(Embeddings { words, positions, token_types }..);
share_fields!(Embeddings { words, positions, token_types });

impl Embeddings {
    /// Reads the tables from the body of a checkpoint, that of words by its own source and name.
    pub fn load(config: &TextModelConfig, source: &AnySource, words: (AnySource, String)) -> Result<Self> {
        let row = config.row_in(source);
        let table = |name: &str, rows: usize| source.get(&format!("{name}.weight"), &[rows, config.embedding_size()]);
        let words = Table::load(&words.0, &words.1, [config.vocab_size, config.embedding_size()])?;
        let (positions, types) = (
            || table(row.position_embeddings, config.max_position_embeddings),
            || table(row.type_embeddings, config.type_vocab_size),
        );
        let dtype = words.dtype();
        Ok(Self {
            // Gemma's factor has the dtype of the weights.
            scale: row.scales_embeddings.then(|| rounded((config.hidden_size as f64).sqrt(), dtype)).transpose()?,
            words,
            positions: config.has_position_table()?.then(positions).transpose()?,
            token_types: config.has_types().then(types).transpose()?,
            first_position: config.first_position() as u32,
            padding_id: config.padding_id(),
            max_tokens: config.max_tokens(),
        })
    }

    fn scaled(&self, words: Tensor) -> Result<Tensor> {
        match self.scale {
            Some(scale) => Ok((words * scale)?),
            None => Ok(words),
        }
    }

    /// ids `(b, s)` u32 → `(b, s, width)`. Every token has segment type 0 unless `token_type_ids` `(b, s)` is given.
    pub fn embed_padded(&self, ids: &Tensor, token_type_ids: Option<&Tensor>) -> Result<Tensor> {
        let (b, s) = ids.dims2().map_err(|_| Error::shape("ids", ids.dims(), "(b, s)"))?;
        if s > self.max_tokens {
            let expected = format!("at most {} tokens, by max_position_embeddings", self.max_tokens);
            return Err(Error::shape("ids", ids.dims(), expected));
        }
        // candle's kernels for NVIDIA GPUs cannot look up nothing.
        if ids.elem_count() == 0 {
            let table = &self.words;
            return Ok(Tensor::zeros((b, s, table.width()), table.dtype(), table.device())?);
        }
        let words = checked("ids", ids, self.words.rows())?;
        let words = self.scaled(self.words.lookup(&words)?.reshape((b, s, self.words.width()))?)?; // (b, s, width)
        let words = match (&self.token_types, token_type_ids) {
            (None, _) => words,
            (Some(_), Some(types)) if types.dims() != [b, s] => {
                return Err(Error::shape("token_type_ids", types.dims(), format!("{:?}", [b, s])));
            }
            (Some(table), Some(types)) => words.broadcast_add(&lookup("token_type_ids", table, types)?)?,
            (Some(table), None) => words.broadcast_add(&table.narrow(0, 0, 1)?.unsqueeze(0)?)?,
        };
        match &self.positions {
            Some(table) => Ok(words.broadcast_add(&self.padded_positions(table, ids)?)?),
            None => Ok(words),
        }
    }

    /// The rows of the position table: `(1, s, width)`, or `(b, s, width)` where they depend on the ids.
    fn padded_positions(&self, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (_, s) = ids.dims2()?;
        let Some(padding_id) = self.padding_id else {
            return Ok(table.narrow(0, 0, s)?.unsqueeze(0)?);
        };
        let counts = ids.ne(padding_id)?.to_dtype(DType::F32)?;
        let positions = ((counts.cumsum(1)? * counts)? + f64::from(padding_id))?.to_dtype(DType::U32)?;
        lookup("positions", table, &positions)
    }

    /// A ragged batch as one tensor, `(1, tokens, width)`: all ids reach the device in one copy per table.
    pub fn embed_ragged(&self, ids: &[u32], types: &[u32], lengths: &[usize]) -> Result<Tensor> {
        let device = self.words.device();
        let rows = |table: &Tensor, rows: &[u32]| table.index_select(&Tensor::new(rows, device)?, 0);
        let mut sum = self.scaled(self.words.lookup(&Tensor::new(ids, device)?)?)?;
        for (table, places) in [(&self.token_types, types), (&self.positions, &self.ragged_positions(ids, lengths))] {
            if let Some(table) = table {
                sum = (sum + rows(table, places)?)?;
            }
        }
        Ok(sum.unsqueeze(0)?)
    }

    /// A ragged batch as f32 rows on the CPU, `(tokens, width)`.
    pub fn embed_rows(&self, ids: &[u32], types: &[u32], lengths: &[usize]) -> Result<AlignedVec<f32>> {
        match self.words.dtype() {
            DType::F16 => self.rows_of::<f16>(ids, types, lengths),
            DType::BF16 => self.rows_of::<bf16>(ids, types, lengths),
            _ => self.rows_of::<f32>(ids, types, lengths),
        }
    }

    fn rows_of<T: Element + WithDType>(
        &self,
        ids: &[u32],
        types: &[u32],
        lengths: &[usize],
    ) -> Result<AlignedVec<f32>> {
        let width = self.words.width();
        let positions = self.ragged_positions(ids, lengths);
        let mut sums = AlignedVec::zeros("hidden states", element_count("hidden states", &[ids.len(), width])?)?;
        let none = Tensor::zeros((0, width), T::DTYPE, &Device::Cpu)?;
        let mut buffer = vec![0.0; width];
        let (words, quantized) = match &self.words {
            Table::Tensor(words) => (words, None),
            Table::Quantized(words, _) => (&none, Some(words)),
        };
        let tables = [words, self.token_types.as_ref().unwrap_or(&none), self.positions.as_ref().unwrap_or(&none)];
        with_slices(tables, |[words, types_table, positions_table]: [&[T]; 3]| {
            let tokens = ids.iter().zip(types).zip(positions);
            for (sum, ((&id, &kind), position)) in sums.chunks_exact_mut(width).zip(tokens) {
                // In the order in which `embed_padded` adds them.
                if let Some(words) = quantized {
                    words.row_into(id as usize, sum);
                    let scale = self.scale.map_or(1.0, |scale| scale as f32);
                    sum.iter_mut().for_each(|x| *x *= scale);
                }
                let tables = [(words, id, self.scale), (types_table, kind, None), (positions_table, position, None)];
                for (table, row, scale) in tables.into_iter().filter(|(table, ..)| !table.is_empty()) {
                    let row = T::as_f32(&table[row as usize * width..][..width], &mut buffer);
                    let scale = scale.map_or(1.0, |scale| scale as f32);
                    sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += scale * x);
                }
            }
        })?;
        Ok(sums)
    }

    /// The row of the position table for each token.
    fn ragged_positions(&self, ids: &[u32], lengths: &[usize]) -> Vec<u32> {
        let mut ids = ids.iter();
        let mut positions = Vec::with_capacity(ids.len());
        for &length in lengths {
            let mut next = self.first_position;
            positions.extend(ids.by_ref().take(length).map(|&id| {
                if self.padding_id == Some(id) {
                    return id;
                }
                next += 1;
                next - 1
            }));
        }
        positions
    }
}

/// `x` rounded to a float of this dtype.
fn rounded(x: f64, dtype: DType) -> Result<f64> {
    Ok(Tensor::new(x, &Device::Cpu)?.to_dtype(dtype)?.to_dtype(DType::F64)?.to_scalar()?)
}

/// ids `(b, s)` u32 → `(b, s, width)`.
fn lookup(name: &str, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (b, s) = ids.dims2()?;
    Ok(table.index_select(&checked(name, ids, table.dims()[0])?, 0)?.reshape((b, s, table.dim(1)?))?)
}

/// ids `(b, s)` u32 of a table of `rows` rows → `(b · s)`.
fn checked(name: &str, ids: &Tensor, rows: usize) -> Result<Tensor> {
    ensure!(ids.dtype() == DType::U32, Error::dtype(name, ids.dtype(), "u32"));
    if ids.device().is_cpu() {
        with_slices([ids], |[ids]| check_ids(name, ids, rows))??;
    }
    Ok(ids.flatten_all()?)
}

/// Checks that a table of `rows` rows has a row for each of `ids`.
pub(crate) fn check_ids(name: &str, ids: &[u32], rows: usize) -> Result<()> {
    match ids.iter().max() {
        Some(&largest) if largest as usize >= rows => {
            Err(Error::value(format!("the largest of {name}"), largest, format!("less than {rows}")))
        }
        _ => Ok(()),
    }
}

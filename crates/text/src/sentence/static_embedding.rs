//! Static embeddings: a vector per token of the vocabulary, and their mean for a text. No transformer.

use std::path::Path;
use std::sync::Arc;

use candle_attention::checkpoint::{Checkpoint, WeightSource};
use candle_attention::ensure;
use candle_attention::tensor::compute_dtype;
use candle_attention::{ComputeType, Error, Result};
use candle_attention_kernels::{QuantizedRows, element_count};
use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use tokenizers::parallelism::MaybeParallelRefIterator;

use crate::folder::{ModelFolder, ModelSource};
use crate::model::table::quantized_rows;
use crate::text::options::EncodeOptions;
use crate::text::tokenizer::{MAX_TOKENIZER_BYTES, Tokenizer};

/// The tensors of sentence-transformers and of model2vec.
const NAMES: [&str; 2] = ["embedding.weight", "embeddings"];

/// The number of tokens at which model2vec cuts texts where its configuration is silent.
const MODEL2VEC_MAX_LENGTH: usize = 512;

/// The mean of the vectors of a text's tokens, as the `StaticEmbedding` of sentence-transformers computes it, or, for a
/// folder with the tensor `embeddings`, the `StaticModel` of model2vec.
#[derive(Clone)]
pub(crate) struct StaticEmbedding {
    tokenizer: Tokenizer,
    table: Arc<Table>,
    /// The number of tokens at which a text is cut.
    pub max_length: Option<usize>,
    /// The steps of model2vec before and after a text is tokenized.
    model2vec: Option<Model2Vec>,
    pub dtype: DType,
    pub device: Device,
}

struct Table {
    rows: Rows,
    width: usize,
    /// The row of each token, where tokens share rows.
    mapping: Option<Vec<usize>>,
    /// The factor of each token.
    weights: Option<Vec<f32>>,
}

/// `(rows, width)`.
enum Rows {
    F32(Vec<f32>),
    Quantized(QuantizedRows),
}

#[derive(Clone, Copy)]
struct Model2Vec {
    /// The id of the token for what the vocabulary lacks, which does not count.
    unknown: Option<u32>,
    /// Characters per token at which a text is cut before it is tokenized.
    median_token_chars: usize,
}

/// `config.json` of model2vec.
#[derive(serde::Deserialize)]
struct Model2VecConfig {
    #[serde(default)]
    normalize: bool,
    #[serde(default = "model2vec_max_length")]
    max_length: Option<usize>,
}

fn model2vec_max_length() -> Option<usize> {
    Some(MODEL2VEC_MAX_LENGTH)
}

/// The part of `tokenizer.json` that names the unknown token.
#[derive(serde::Deserialize)]
struct TokenizerFile {
    model: TokenizerModel,
}

#[derive(serde::Deserialize)]
struct TokenizerModel {
    unk_token: Option<String>,
    unk_id: Option<u32>,
}

/// Without the table.
impl std::fmt::Debug for StaticEmbedding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StaticEmbedding").field("width", &self.table.width).finish_non_exhaustive()
    }
}

/// Whether a folder without `modules.json` is one of model2vec, and then whether its embeddings are normalized.
pub(crate) fn model2vec(folder: ModelFolder) -> Result<Option<bool>> {
    #[derive(serde::Deserialize)]
    struct Kind {
        model_type: Option<String>,
    }
    let file = folder.path.join("config.json");
    let is_one = match folder.optional::<Kind>(&file)? {
        Some(Kind { model_type: Some(kind) }) => kind == "model2vec",
        // Models that were not distilled have no type, and neither a transformer's tensors.
        Some(Kind { model_type: None }) => folder.checkpoint(folder.path).is_ok_and(|found| found.contains(NAMES[1])),
        None => false,
    };
    is_one.then(|| Ok(folder.json::<Model2VecConfig>(&file)?.normalize)).transpose()
}

impl StaticEmbedding {
    /// Reads `tokenizer.json` and `model.safetensors` of a folder. Its vectors are f64 for f64 and else f32, and the
    /// table is in f32, or in few bits if the compute type is.
    pub fn load(source: ModelSource, path: &Path) -> Result<Self> {
        let ModelSource { folder, compute_type, device } = source;
        let file = path.join("tokenizer.json");
        let json = folder.read(&file, MAX_TOKENIZER_BYTES)?;
        let wrong = |e: &dyn std::fmt::Display| Error::file(&file, e);
        let tokenizer = Tokenizer::from_json(&json, usize::MAX, false).map_err(|e| wrong(&e))?;
        let checkpoint = folder.checkpoint(path)?;
        let weights = path.join("model.safetensors");
        let table = Arc::new(Table::read(&checkpoint, compute_type).map_err(|e| Error::file(weights, e))?);
        let (max_length, model2vec) = if checkpoint.contains(NAMES[0]) {
            (tokenizer.stated_length(), None)
        } else {
            let config: Option<Model2VecConfig> = folder.optional(&path.join("config.json"))?;
            let TokenizerFile { model } = serde_json::from_slice(&json).map_err(|e| wrong(&e))?;
            let unknown = model.unk_id.or_else(|| tokenizer.id(&model.unk_token?));
            let median_token_chars = tokenizer.median_token_chars();
            let max_length = config.map_or_else(model2vec_max_length, |config| config.max_length);
            (max_length, Some(Model2Vec { unknown, median_token_chars }))
        };
        let dtype = compute_dtype(compute_type.dtype());
        Ok(Self { tokenizer, table, max_length, model2vec, dtype, device: device.clone() })
    }

    pub fn width(&self) -> usize {
        self.table.width
    }

    /// The tokenizer that cuts texts at `max_length` tokens, or at the model's own maximum.
    pub fn tokenizer_for(&self, max_length: Option<usize>) -> Result<Tokenizer> {
        self.tokenizer.with_max_length(max_length.or(self.max_length).unwrap_or(usize::MAX))
    }

    /// The means of the texts, each after `prompt`: `(texts, width)`. Zeros for a text without tokens.
    pub fn embed(&self, texts: &[&str], prompt: &str, options: &EncodeOptions) -> Result<Tensor> {
        let most = options.max_length.or(self.max_length);
        ensure!(most != Some(0), Error::config("max_length", 0, "at least 1"));
        let means = options.in_windows(texts, |window| {
            window.maybe_par_iter().map(|text| self.mean(text, prompt, most)).collect::<Result<Vec<_>>>()
        })?;
        let means = Tensor::from_vec(means.concat(), (texts.len(), self.table.width), &self.device)?;
        Ok(means.to_dtype(self.dtype)?)
    }

    /// The mean of one text, and whether tokens were cut off.
    fn mean(&self, text: &str, prompt: &str, most: Option<usize>) -> Result<(Vec<f32>, bool)> {
        let mut text = text;
        if let (Some(model2vec), Some(most)) = (self.model2vec, most) {
            let chars = most.saturating_mul(model2vec.median_token_chars);
            text = text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end]);
        }
        let (ids, truncated) = self.tokenizer.bare_ids(text, prompt, most)?;
        let unknown = self.model2vec.and_then(|model2vec| model2vec.unknown);
        let (mut mean, mut buffer, mut count) = (vec![0.0; self.table.width], vec![0.0; self.table.width], 0);
        for id in ids.into_iter().filter(|id| Some(*id) != unknown) {
            let mismatch = || self.tokenizer.unknown_id(id, "one that the table of vectors has");
            let (row, weight) = self.table.row(id, &mut buffer).ok_or_else(mismatch)?;
            mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * weight);
            count += 1;
        }
        mean.iter_mut().for_each(|sum| *sum /= count.max(1) as f32);
        Ok((mean, truncated))
    }
}

impl Table {
    fn read(checkpoint: &Checkpoint, compute_type: ComputeType) -> Result<Self> {
        let name = NAMES.into_iter().find(|name| checkpoint.contains(name)).unwrap_or(NAMES[0]);
        let (dtype, shape) = checkpoint.tensor_info(name)?;
        let &[count, width] = shape else { return Err(Error::shape(name, shape, "(tokens, width)")) };
        ensure!(width != 0, Error::shape(name, shape, "(tokens, width) with a width of at least 1"));
        // Half types compute in f32.
        let compute_type = if compute_type.keeps_stored() { compute_type } else { DType::F32.into() };
        let source = checkpoint.at("", compute_type, &Device::Cpu);
        // The integers of model2vec are read as they are: it does not store their scale. Quantized once more, they
        // would change.
        let integers = (dtype == Dtype::I8).then(|| stored(checkpoint, name, DType::F32)).transpose()?;
        let rows = match source.quantization(name).filter(|format| integers.is_none() && format.fits(width)) {
            Some(format) => Rows::Quantized(quantized_rows(&source, name, [count, width], format)?),
            None => {
                let rows = integers.map_or_else(|| source.get(name, &[count, width]), Ok)?;
                Rows::F32(rows.flatten_all()?.to_vec1()?)
            }
        };
        let vector = |name: &str, dtype: DType| {
            let found = checkpoint.contains(name) && !checkpoint.contains(NAMES[0]);
            found.then(|| stored(checkpoint, name, dtype)).transpose()
        };
        let mapping = match vector("mapping", DType::I64)? {
            Some(mapping) => {
                let row = |(token, row): (usize, i64)| match usize::try_from(row) {
                    Ok(row) if row < count => Ok(row),
                    _ => {
                        let expected = format!("a row of `{name}`, 0 to {}", count.saturating_sub(1));
                        Err(Error::value(format!("`mapping` of token {token}"), row, expected))
                    }
                };
                Some(mapping.to_vec1::<i64>()?.into_iter().enumerate().map(row).collect::<Result<Vec<usize>>>()?)
            }
            None => None,
        };
        let weights = vector("weights", DType::F32)?.map(|weights| weights.to_vec1::<f32>()).transpose()?;
        let tokens = mapping.as_ref().map_or(count, Vec::len);
        if let Some(found) = weights.as_ref().map(Vec::len).filter(|found| *found < tokens) {
            return Err(Error::value("the number of `weights`", found, format!("{tokens}, one for each token")));
        }
        Ok(Self { rows, width, mapping, weights })
    }

    /// The vector of a token, in the table or in the buffer, and its factor; `None` if the table lacks the token.
    fn row<'a>(&'a self, id: u32, buffer: &'a mut [f32]) -> Option<(&'a [f32], f32)> {
        let row = match &self.mapping {
            Some(mapping) => *mapping.get(id as usize)?,
            None => id as usize,
        };
        let weight = self.weights.as_ref().map_or(Some(1.0), |weights| weights.get(id as usize).copied())?;
        let vector = match &self.rows {
            Rows::F32(rows) => rows.get(row.checked_mul(self.width)?..)?.get(..self.width)?,
            Rows::Quantized(rows) if row < rows.rows() => {
                rows.row_into(row, buffer);
                &*buffer
            }
            Rows::Quantized(_) => return None,
        };
        Some((vector, weight))
    }
}

/// A stored tensor in `dtype`, also one of the integers that candle has no dtype for.
fn stored(checkpoint: &Checkpoint, name: &str, dtype: DType) -> Result<Tensor> {
    let (found, shape) = checkpoint.tensor_info(name)?;
    let count = element_count(name, shape)?;
    let bytes = |size: usize| {
        let mut bytes = vec![0; count * size];
        checkpoint.read_bytes(name, 0, &mut bytes).map(|()| bytes)
    };
    let tensor = match found {
        Dtype::I8 => {
            let numbers: Vec<f32> = bytes(1)?.into_iter().map(|byte| f32::from(byte.cast_signed())).collect();
            Tensor::from_vec(numbers, shape, &Device::Cpu)?
        }
        Dtype::U64 => {
            let numbers = bytes(8)?.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect::<Vec<_>>();
            Tensor::from_vec(numbers, shape, &Device::Cpu)?
        }
        _ => match checkpoint.tensor(name, &Device::Cpu)? {
            floats if floats.dtype().is_float() && dtype.is_int() => {
                return Err(Error::dtype(format!("`{name}`"), floats.dtype(), "whole numbers"));
            }
            tensor => tensor,
        },
    };
    Ok(tensor.to_dtype(dtype)?)
}

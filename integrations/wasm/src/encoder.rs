//! The sentence encoder.

use candle_attention::ComputeType;
use candle_attention::candle_core::{DType, Device, Tensor};
use candle_attention_text::{MapOptions, SentenceEncoder};
use wasm_bindgen::prelude::*;

use crate::attention::Attention;
use crate::error::{Result, value};
use crate::files::Files;
use crate::options::Options;

/// A `SentenceEncoder` in f32, with weights that are stored in few bits as they are.
#[wasm_bindgen]
pub struct Encoder(pub(crate) SentenceEncoder);

#[wasm_bindgen]
impl Encoder {
    /// The model that is part of the module.
    ///
    /// # Errors
    /// Those of `SentenceEncoder::embedded`.
    pub fn embedded() -> Result<Self> {
        Ok(Self(SentenceEncoder::embedded(DType::F32, &Device::Cpu)?))
    }

    /// A model from its files.
    ///
    /// # Errors
    /// Those of `SentenceEncoder::from_files`.
    #[wasm_bindgen(js_name = fromFiles)]
    pub fn from_files(files: &Files) -> Result<Self> {
        Ok(Self(SentenceEncoder::from_files(files.model(), ComputeType::default(), &Device::Cpu)?))
    }

    /// The number of features of an embedding.
    #[wasm_bindgen(getter)]
    pub fn dimension(&self) -> usize {
        self.0.embedding_size()
    }

    /// The number of tokens at which texts are cut; infinite for some static embeddings.
    #[wasm_bindgen(getter, js_name = maxSeqLength)]
    pub fn max_seq_length(&self) -> f64 {
        match self.0.max_seq_length() {
            usize::MAX => f64::INFINITY,
            length => length as f64,
        }
    }

    /// The embeddings of texts, one after another.
    ///
    /// # Errors
    /// Those of `SentenceEncoder::encode`, and of wrong options.
    pub fn encode(&self, texts: Vec<String>, options: JsValue) -> Result<Vec<f32>> {
        numbers(&self.0.encode(&borrowed(&texts), &Options::read(&options)?.encode())?)
    }

    /// The embeddings of texts that search.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    #[wasm_bindgen(js_name = encodeQuery)]
    pub fn encode_query(&self, texts: Vec<String>, options: JsValue) -> Result<Vec<f32>> {
        numbers(&self.0.encode_query(&borrowed(&texts), &Options::read(&options)?.encode())?)
    }

    /// The embeddings of texts that are searched.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    #[wasm_bindgen(js_name = encodeDocument)]
    pub fn encode_document(&self, texts: Vec<String>, options: JsValue) -> Result<Vec<f32>> {
        numbers(&self.0.encode_document(&borrowed(&texts), &Options::read(&options)?.encode())?)
    }

    /// How similar each of `rows_a` embeddings is to each of `rows_b`: `(rows_a, rows_b)`.
    ///
    /// # Errors
    /// Embeddings of different sizes.
    pub fn similarity(&self, a: Vec<f32>, rows_a: usize, b: Vec<f32>, rows_b: usize) -> Result<Vec<f32>> {
        numbers(&self.0.similarity(&matrix(a, rows_a)?, &matrix(b, rows_b)?)?)
    }

    /// The attention weights of all layers and heads for a text, which is cut at `max_length` tokens, or at the model's own
    /// maximum.
    ///
    /// # Errors
    /// Those of `SentenceEncoder::attention`, and layers with different numbers of heads.
    pub fn attention(&self, text: &str, max_length: Option<usize>) -> Result<Attention> {
        let mut options = MapOptions::default();
        options.max_length = max_length;
        Attention::new(&self.0.attention(text, &options)?)
    }
}

/// Strings as the crate takes them.
pub fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// The numbers of a tensor, row by row.
pub fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

/// Embeddings that follow one another as a tensor.
fn matrix(numbers: Vec<f32>, rows: usize) -> Result<Tensor> {
    let found = numbers.len();
    match found.checked_div(rows) {
        Some(columns) if columns * rows == found => Ok(Tensor::from_vec(numbers, (rows, columns), &Device::Cpu)?),
        _ => Err(value("the number of features", &found.to_string(), &format!("a multiple of {rows}"))),
    }
}

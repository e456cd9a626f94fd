//! `SentenceEncoder`: sentence embeddings and attention maps.

use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_attention::Result;
use candle_attention_text::{EncodeOptions, SentenceEncoder as Encoder, Text};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyList;

use crate::arrays;
use crate::inputs::{compute_type, device, texts};
use crate::maps::{Maps, map_options, to_python};
use crate::options::Options;
use crate::threads::{run, run_detached};

/// A text encoder; it never changes, and any number of threads may use it.
#[pyclass(frozen, module = "candle_attention._native")]
pub struct SentenceEncoder {
    encoder: Encoder,
}

#[pymethods]
impl SentenceEncoder {
    /// The model of a folder.
    #[staticmethod]
    fn from_folder(py: Python, folder: PathBuf, dtype: &str, device: &str) -> PyResult<Self> {
        let (compute_type, device) = (compute_type(dtype)?, self::device(device)?);
        let encoder = run_detached(py, move || Encoder::from_folder(folder, compute_type, &device))?;
        Ok(Self { encoder })
    }

    /// The model that is part of this module.
    #[staticmethod]
    fn embedded(py: Python, dtype: &str, device: &str) -> PyResult<Self> {
        let (compute_type, device) = (compute_type(dtype)?, self::device(device)?);
        let encoder = run_detached(py, move || Encoder::embedded(compute_type, &device))?;
        Ok(Self { encoder })
    }

    /// Embeddings `(texts, size)`.
    #[pyo3(signature = (inputs, options, progress=None))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<PyList>,
        options: Options,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let embeddings = self.map_texts(py, inputs, &options, progress, Encoder::encode)?;
        arrays::to_numpy(py, &embeddings)
    }

    /// The vectors of the tokens of each text, `(tokens, width)`.
    #[pyo3(signature = (inputs, options, progress=None))]
    fn encode_tokens<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<PyList>,
        options: Options,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let vectors = self.map_texts(py, inputs, &options, progress, Encoder::encode_tokens)?;
        vectors.iter().map(|vectors| arrays::to_numpy(py, vectors)).collect()
    }

    /// The ids of the tokens of each text.
    fn token_ids<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<PyList>,
        options: Options,
    ) -> PyResult<Vec<Bound<'py, numpy::PyArray1<i64>>>> {
        let ids = self.map_texts(py, inputs, &options, None, Encoder::token_ids)?;
        Ok(ids.iter().map(|ids| arrays::ids(py, ids)).collect())
    }

    /// Tokens and attention weights `(layers, heads, tokens, tokens)` of a text or a pair of texts.
    #[pyo3(signature = (text, pair, prompt, layers, heads))]
    fn attention<'py>(
        &self,
        py: Python<'py>,
        text: PyBackedStr,
        pair: Option<PyBackedStr>,
        prompt: &str,
        layers: Option<Vec<usize>>,
        heads: Option<Vec<usize>>,
    ) -> PyResult<Maps<'py>> {
        let options = map_options(layers.as_deref(), heads.as_deref()).with_prompt(prompt);
        let texts = pair.as_deref().map_or(Text::One(&text), |pair| Text::Pair(&text, pair));
        let maps = run(py, None, |_| self.encoder.attention(texts, &options))?;
        to_python(py, &maps)
    }

    /// The maximum number of tokens of a text; `None` if it has none.
    #[getter]
    fn max_seq_length(&self) -> Option<usize> {
        Some(self.encoder.max_seq_length()).filter(|length| *length < usize::MAX)
    }

    /// What the model's folder truncates embeddings to.
    #[getter]
    fn truncate_dim(&self) -> Option<usize> {
        self.encoder.truncate_dim()
    }

    /// The name of the similarity function.
    #[getter]
    fn similarity_fn_name(&self) -> String {
        self.encoder.similarity_fn().to_string()
    }

    /// The prompts of the model's folder.
    #[getter]
    fn prompts(&self) -> BTreeMap<&str, &str> {
        self.encoder.prompts().collect()
    }

    /// The name of the prompt of a call that names none.
    #[getter]
    fn default_prompt_name(&self) -> Option<&str> {
        self.encoder.default_prompt_name()
    }

    /// The names of the tasks that the checkpoint holds adapters for.
    #[getter]
    fn tasks(&self) -> Vec<&str> {
        self.encoder.tasks().collect()
    }
}

impl SentenceEncoder {
    /// What `encode` makes of the texts.
    fn map_texts<T: Send>(
        &self,
        py: Python,
        inputs: &Bound<PyList>,
        options: &Options,
        progress: Option<Py<PyAny>>,
        encode: impl Fn(&Encoder, &[&str], &EncodeOptions) -> Result<T> + Send + Sync,
    ) -> PyResult<T> {
        let held = texts(inputs)?;
        let texts: Vec<&str> = held.iter().map(|text| &**text).collect();
        run(py, progress, |watch| options.with(watch, |options| encode(&self.encoder, &texts, options)))
    }
}

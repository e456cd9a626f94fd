//! `CrossEncoder`: logits of pairs of texts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_attention_text::CrossEncoder as Encoder;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyList;

use crate::arrays;
use crate::inputs::{compute_type, device, pairs};
use crate::maps::{Maps, map_options, to_python};
use crate::options::Options;
use crate::threads::{run, run_detached};

/// An encoder of pairs of texts; it never changes, and any number of threads may use it.
#[pyclass(frozen, module = "candle_attention._native")]
pub struct CrossEncoder {
    encoder: Encoder,
}

#[pymethods]
impl CrossEncoder {
    /// The model of a folder.
    #[staticmethod]
    fn from_folder(py: Python, folder: PathBuf, dtype: &str, device: &str) -> PyResult<Self> {
        let (compute_type, device) = (compute_type(dtype)?, self::device(device)?);
        Ok(Self { encoder: run_detached(py, move || Encoder::from_folder(folder, compute_type, &device))? })
    }

    /// The logits of each pair, `(pairs, labels)`.
    #[pyo3(signature = (inputs, options, progress=None))]
    fn logits<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<PyList>,
        options: Options,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let held = pairs(inputs)?;
        let pairs: Vec<(&str, &str)> = held.iter().map(|(first, second)| (&**first, &**second)).collect();
        let logits = run(py, progress, |watch| options.with(watch, |options| self.encoder.logits(&pairs, options)))?;
        arrays::rows(py, logits.concat(), (pairs.len(), self.encoder.num_labels()))
    }

    /// Tokens and attention weights `(layers, heads, tokens, tokens)` of a pair of texts.
    #[pyo3(signature = (query, document, layers, heads))]
    fn attention<'py>(
        &self,
        py: Python<'py>,
        query: PyBackedStr,
        document: PyBackedStr,
        layers: Option<Vec<usize>>,
        heads: Option<Vec<usize>>,
    ) -> PyResult<Maps<'py>> {
        let options = map_options(layers.as_deref(), heads.as_deref());
        let maps = run(py, None, |_| self.encoder.attention(&query, &document, &options))?;
        to_python(py, &maps)
    }

    /// The number of logits of a pair.
    #[getter]
    fn num_labels(&self) -> usize {
        self.encoder.num_labels()
    }

    /// Whether a score is the sigmoid of a logit.
    #[getter]
    fn has_sigmoid(&self) -> bool {
        self.encoder.has_sigmoid()
    }

    /// The maximum number of tokens of a pair.
    #[getter]
    fn max_seq_length(&self) -> usize {
        self.encoder.max_seq_length()
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
}

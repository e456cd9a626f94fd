//! Attention maps for Python: tokens, and one array of the weights of all layers and heads.

use candle_attention_text::MapOptions;
use candle_attention_text::visualize::AttentionMaps;
use numpy::{PyArray1, PyArray4, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::python_error;

/// Tokens, and attention weights `(layers, heads, queries, keys)`.
pub type Maps<'py> = (Vec<String>, Bound<'py, PyArray4<f32>>);

/// The layers and heads that are asked for; all where none are.
pub fn map_options<'a>(layers: Option<&[usize]>, heads: Option<&[usize]>) -> MapOptions<'a> {
    let mut options = MapOptions::default();
    options.layers = layers.map(<[usize]>::to_vec);
    options.heads = heads.map(<[usize]>::to_vec);
    options
}

/// The maps as one array, which needs as many heads in each layer.
pub fn to_python<'py>(py: Python<'py>, maps: &AttentionMaps) -> PyResult<Maps<'py>> {
    let layers: Vec<(usize, &[usize])> = maps.layers().collect();
    let heads = layers.first().map_or(0, |(_, heads)| heads.len());
    if let Some((layer, found)) = layers.iter().find(|(_, found)| found.len() != heads) {
        let message =
            format!("layer {layer} has {} heads, expected {heads}: ask for it alone by `layers`", found.len());
        return Err(PyValueError::new_err(message));
    }
    let mut weights = Vec::new();
    for (layer, heads) in &layers {
        for head in *heads {
            weights.extend_from_slice(maps.weights(*layer, *head).map_err(python_error)?);
        }
    }
    let shape = [layers.len(), heads, maps.queries().len(), maps.keys().len()];
    Ok((maps.queries().to_vec(), PyArray1::from_vec(py, weights).reshape(shape)?))
}

//! Attention weights with labels for queries and keys.

use std::collections::HashSet;

use candle_core::{D, DType, Tensor};

use crate::error::{Error, Result};
use crate::visualize::label::visible;

/// Attention weights of one or more layers and heads, with labels for the queries and keys.
#[derive(Debug, Clone)]
pub struct AttentionMaps {
    pub(super) title: String,
    pub(super) queries: Vec<String>,
    pub(super) keys: Vec<String>,
    pub(super) layers: Vec<LayerMaps>,
}

/// The attention weights of one layer.
#[derive(Debug, Clone)]
pub(super) struct LayerMaps {
    pub layer: usize,
    pub heads: Vec<usize>,
    pub weights: Vec<f32>,
}

/// The largest accepted weight: rounding may take a weight slightly above 1.
const LARGEST: f32 = 1.001;

/// The most weights of a layer, 4 GiB of them: a tensor that repeats one number has any shape and no size. All heads of a
/// model with 16 heads fit for 8,192 tokens.
const MAX_WEIGHTS: usize = 1 << 30;

impl AttentionMaps {
    /// Maps without layers; `queries` and `keys` are the labels of the tokens, the same for self-attention. Invisible
    /// characters are replaced by visible ones.
    pub fn new<T: AsRef<str>>(queries: &[T], keys: &[T]) -> Self {
        let shown = |tokens: &[T]| tokens.iter().map(|token| visible(token.as_ref())).collect();
        Self { title: String::new(), queries: shown(queries), keys: shown(keys), layers: Vec::new() }
    }

    /// Sets the title of the picture, usually the text.
    #[must_use]
    pub fn with_title(mut self, title: &str) -> Self {
        self.title = visible(title);
        self
    }

    /// Adds a layer with all its heads: attention weights `(heads, queries, keys)` or `(1, heads, queries, keys)` of any float
    /// dtype, as [`attend_with`](crate::MultiHeadAttention::attend_with) returns them. An extra key needs a label too.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] for weights of another shape or dtype, [`Error::Value`] for weights that are not
    /// between 0 and 1 (NaN is not), for a layer that was added before, and for more than 2^30 weights.
    pub fn with_layer(self, layer: usize, weights: &Tensor) -> Result<Self> {
        let heads = weights.dim(D::Minus(3)).unwrap_or(0);
        self.check_shape(layer, heads, weights)?;
        self.with_heads(layer, &(0..heads).collect::<Vec<_>>(), weights)
    }

    /// Adds the `heads` of a layer, which count from 0, in this order.
    ///
    /// # Errors
    /// The errors of [`with_layer`](Self::with_layer); [`Error::Value`] for a head given twice.
    pub fn with_heads(mut self, layer: usize, heads: &[usize], weights: &Tensor) -> Result<Self> {
        if self.layers.iter().any(|known| known.layer == layer) {
            return Err(Error::value("a layer", layer, "one that was not added before"));
        }
        let mut known = HashSet::new();
        if let Some(head) = heads.iter().find(|head| !known.insert(**head)) {
            return Err(Error::value(format!("a head of layer {layer}"), head, "one that was not added before"));
        }
        if !weights.dtype().is_float() {
            return Err(Error::dtype("the weights", weights.dtype(), "a floating-point dtype"));
        }
        self.check_shape(layer, heads.len(), weights)?;
        let (q, k) = (self.queries.len(), self.keys.len());
        let weights: Vec<f32> = weights.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        if let Some(i) = weights.iter().position(|weight| !(0.0..=LARGEST).contains(weight)) {
            let (head, query, key) = (heads[i / (q * k)], i / k % q, i % k);
            let what = format!("the weight of layer {layer}, head {head}, query {query}, key {key}");
            return Err(Error::value(what, weights[i], "0 to 1"));
        }
        self.layers.push(LayerMaps { layer, heads: heads.to_vec(), weights });
        Ok(self)
    }

    fn check_shape(&self, layer: usize, heads: usize, weights: &Tensor) -> Result<()> {
        let (q, k) = (self.queries.len(), self.keys.len());
        let dims = match weights.dims() {
            [1, rest @ ..] if weights.rank() == 4 => rest,
            dims => dims,
        };
        if dims != [heads, q, k] || dims.contains(&0) {
            let expected = format!("({heads}, {q}, {k}): heads, queries and keys, at least one of each");
            return Err(Error::shape(format!("the weights of layer {layer}"), weights.dims(), expected));
        }
        let count = heads.saturating_mul(q).saturating_mul(k);
        match count > MAX_WEIGHTS {
            true => {
                let what = format!("the number of weights of layer {layer}");
                Err(Error::value(what, count, format!("at most {MAX_WEIGHTS}: pass fewer heads or tokens")))
            }
            false => Ok(()),
        }
    }

    /// The labels of the queries, as they are shown.
    pub fn queries(&self) -> &[String] {
        &self.queries
    }

    /// The labels of the keys, as they are shown.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The indices of the layers, in the order in which they were added, each with the indices of its heads.
    pub fn layers(&self) -> impl Iterator<Item = (usize, &[usize])> {
        self.layers.iter().map(|layer| (layer.layer, layer.heads.as_slice()))
    }

    /// The attention weights of a head, `(queries, keys)` in row-major order.
    ///
    /// # Errors
    /// [`Error::Value`] for a layer or head that was not added.
    pub fn weights(&self, layer: usize, head: usize) -> Result<&[f32]> {
        let layer = self.layer(layer)?;
        let Some(at) = layer.heads.iter().position(|&known| known == head) else {
            return Err(Error::value(format!("a head of layer {}", layer.layer), head, one_of(&layer.heads)));
        };
        Ok(self.of_head(layer, at))
    }

    pub(super) fn layer(&self, layer: usize) -> Result<&LayerMaps> {
        let known = self.layers.iter().find(|known| known.layer == layer);
        known.ok_or_else(|| {
            let known: Vec<usize> = self.layers.iter().map(|known| known.layer).collect();
            Error::value("a layer", layer, one_of(&known))
        })
    }

    /// The weights of the head at an index of the layer's list.
    pub(super) fn of_head<'a>(&self, layer: &'a LayerMaps, at: usize) -> &'a [f32] {
        let size = self.queries.len() * self.keys.len();
        &layer.weights[at * size..][..size]
    }
}

fn one_of(known: &[usize]) -> String {
    match known.iter().map(usize::to_string).collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none, because no layer was added".to_string(),
        known => format!("one of {known}"),
    }
}

//! Attention weights with labels for queries and keys.

use std::collections::HashSet;

use candle_attention::{Error, Result};
use candle_core::{D, DType, Tensor};

use crate::tokens::{Axis, TokenMarks, Truncation, grouped, visible};

/// Attention weights of one or more layers and heads, with labels for the queries and keys.
#[derive(Debug, Clone)]
pub struct AttentionMaps {
    pub(super) title: String,
    pub(super) model: String,
    pub(super) queries: Axis,
    pub(super) keys: Axis,
    pub(super) truncation: Option<Truncation>,
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

/// The most weights of a layer, 4 GiB of them: a tensor that repeats one number has any shape and no size. All heads of
/// a model with 16 heads fit for 8,192 tokens.
const MAX_WEIGHTS: usize = 1 << 30;

impl AttentionMaps {
    /// Maps without layers; `queries` and `keys` are the labels of the tokens, the same for self-attention. Invisible
    /// characters are replaced by visible ones.
    pub fn new<T: AsRef<str>>(queries: &[T], keys: &[T]) -> Self {
        let (queries, keys) = (Axis::new(queries), Axis::new(keys));
        Self { title: String::new(), model: String::new(), queries, keys, truncation: None, layers: Vec::new() }
    }

    /// Sets the title of the picture, usually the text.
    #[must_use]
    pub fn with_title(mut self, title: &str) -> Self {
        self.title = visible(title);
        self
    }

    /// Sets the name of the model that is shown, such as `sentence-transformers/all-MiniLM-L6-v2`.
    #[must_use]
    pub fn with_model(mut self, name: &str) -> Self {
        self.model = visible(name);
        self
    }

    /// Marks the tokens: special ones, pieces that continue a word, tokens of the second text of a pair.
    ///
    /// # Errors
    /// [`Error::Value`] unless there are as many marks as queries, and as many as keys.
    pub fn with_marks(mut self, queries: &[TokenMarks], keys: &[TokenMarks]) -> Result<Self> {
        let axes = [(&mut self.queries, queries, "queries"), (&mut self.keys, keys, "keys")];
        for (axis, marks, name) in axes {
            if marks.len() != axis.len() {
                let expected = format!("{}, one per label", axis.len());
                return Err(Error::value(format!("the number of marks of the {name}"), marks.len(), expected));
            }
            axis.marks = marks.to_vec();
        }
        Ok(self)
    }

    /// Says that the queries are only a part of `total_tokens` tokens, and what was cut: the rest of the text or, for a
    /// pair, of each of both texts. The title should not have what was cut.
    ///
    /// # Errors
    /// [`Error::Value`] if there are not more tokens than queries.
    pub fn with_truncation<T: AsRef<str>>(mut self, total_tokens: usize, cut: &[T]) -> Result<Self> {
        if total_tokens <= self.queries.len() {
            let expected = format!("more than the {} that are shown", self.queries.len());
            return Err(Error::value("the number of tokens before the cut", total_tokens, expected));
        }
        let cut = cut.iter().map(|text| visible(text.as_ref())).collect();
        self.truncation = Some(Truncation { total_tokens, cut });
        Ok(self)
    }

    /// Adds a layer with all its heads: attention weights `(heads, queries, keys)` or `(1, heads, queries, keys)` of
    /// any float dtype, as [`attend_with`](candle_attention::MultiHeadAttention::attend_with) returns them. An extra
    /// key needs a label too.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] for weights of another shape or dtype, [`Error::Value`] for weights that
    /// are not between 0 and 1 (NaN is not), for a layer that was added before, and for more than 2^30 weights.
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
        if count > MAX_WEIGHTS {
            let what = format!("the number of weights of layer {layer}");
            Err(Error::value(what, count, format!("at most {MAX_WEIGHTS}: pass fewer heads or tokens")))
        } else {
            Ok(())
        }
    }

    /// The labels of the queries, as they are shown, without the mark of a piece that continues a word.
    pub fn queries(&self) -> &[String] {
        &self.queries.names
    }

    /// The labels of the keys, as they are shown, without the mark of a piece that continues a word.
    pub fn keys(&self) -> &[String] {
        &self.keys.names
    }

    /// Number of tokens before the text was cut; `None` if nothing was cut.
    pub fn total_tokens(&self) -> Option<usize> {
        self.truncation.as_ref().map(|truncation| truncation.total_tokens)
    }

    /// A note on what was read: "first 256 of 1,014 tokens". Of a pair, not only the first tokens are left.
    pub(super) fn truncation_note(&self) -> Option<String> {
        let (shown, total) = (grouped(self.queries.len()), grouped(self.total_tokens()?));
        Some(match self.queries.border() {
            Some(_) => format!("{shown} of {total} tokens"),
            None => format!("first {shown} of {total} tokens"),
        })
    }

    /// The note on what was cut and the model's name, for a line below the title of a picture; empty if there is
    /// nothing to say. The name comes last, because a narrow picture shortens the line.
    pub(super) fn subtitle(&self) -> String {
        let model = Some(self.model.clone()).filter(|model| !model.is_empty());
        [self.truncation_note(), model].into_iter().flatten().collect::<Vec<_>>().join(" · ")
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
        Ok(self.head_weights(layer, at))
    }

    pub(super) fn layer(&self, layer: usize) -> Result<&LayerMaps> {
        let known = self.layers.iter().find(|known| known.layer == layer);
        known.ok_or_else(|| {
            let known: Vec<usize> = self.layers.iter().map(|known| known.layer).collect();
            Error::value("a layer", layer, one_of(&known))
        })
    }

    /// The weights of the head at an index of the layer's list.
    pub(super) fn head_weights<'a>(&self, layer: &'a LayerMaps, at: usize) -> &'a [f32] {
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

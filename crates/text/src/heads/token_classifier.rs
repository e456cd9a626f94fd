//! `TokenClassificationHead`: the token classification head on token ids.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::tensor::{MapTensors, compute_dtype};
use candle_attention::{AttentionMask, Error, Result};
use candle_core::Tensor;

use crate::families::task_heads::TokenClassifierFirst;
use crate::heads::classifier::labels;
use crate::heads::head_model::{Head, HeadModel, Transform};
use crate::heads::task_head::TaskHead;
use crate::model::config::TextModelConfig;
use crate::model::feed_forward::read_linear;
use crate::model::text_model::TextModel;

/// A [`TextModel`] with a head that classifies each token, `last(x)`, as the `ForTokenClassification` of its family in
/// transformers; ModernBERT's is `last(norm(activation(first(x))))`.
pub type TokenClassificationHead = HeadModel<TokenHead>;

/// The head of a [`TokenClassificationHead`].
#[derive(Clone)]
pub struct TokenHead {
    first: Option<Transform>,
    last: Linear,
    labels: Vec<String>,
}

impl MapTensors for TokenHead {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let (first, last) = (self.first.map_tensors(f)?, self.last.map_tensors(f)?);
        Ok(Self { first, last, labels: self.labels.clone() })
    }
}

impl Head for TokenHead {
    const NAME: &'static str = "TokenClassificationHead";

    fn load(
        config: &TextModelConfig,
        source: &AnySource,
        model: impl FnOnce() -> Result<TextModel>,
    ) -> Result<(Self, TextModel)> {
        config.validate()?;
        let names = config.row().token_classifier;
        let weight = format!("{}.weight", names.last);
        if !source.contains(&weight) {
            let why = "the checkpoint has no head for token classification".to_string();
            return Err(Error::MissingTensor { name: source.full_name(&weight), why });
        }
        TaskHead::TokenClassification.check(config)?;
        let hidden = config.hidden_size;
        let labels = labels(config, source.full_name(&weight), source.shape(&weight)?, hidden)?;
        let load_first = |first: TokenClassifierFirst| {
            let dense = source.child(first.dense);
            let weights = read_linear(&dense, hidden, hidden, dense.contains("bias"))?;
            let dense = Linear::new(first.dense, weights, hidden, hidden)?;
            let norm = config.norm(&config.row().block, hidden, &source.child(first.norm))?;
            Transform::new(config, dense, first.activation, Some(norm))
        };
        let first = names.first.map(load_first).transpose()?;
        let weights = read_linear(&source.child(names.last), labels.len(), hidden, true)?;
        let last = Linear::new(names.last, weights, labels.len(), hidden)?;
        Ok((Self { first, last, labels }, model()?))
    }

    fn pack(&mut self) -> Result<()> {
        self.first.as_mut().map_or(Ok(()), Transform::pack)?;
        self.last.pack()
    }

    fn labels(&self) -> Option<&[String]> {
        Some(&self.labels)
    }
}

impl TokenClassificationHead {
    /// The labels of the logits, in their order: `id2label`, or `LABEL_0`, `LABEL_1`, …
    pub fn labels(&self) -> &[String] {
        &self.head.labels
    }

    /// Token ids `(b, s)` u32 under `mask` → logits `(b, s, labels)` in f32 (f64 for an f64 model).
    ///
    /// # Errors
    /// The errors of [`TextModel::forward`].
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, mask: &AttentionMask) -> Result<Tensor> {
        self.logits(&self.model.forward(ids, token_type_ids, mask)?)
    }

    /// xs `(b, s, hidden)` → `(b, s, labels)`.
    pub(crate) fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let dtype = compute_dtype(xs.dtype());
        match &self.head.first {
            Some(first) => self.head.last.forward(&first.forward(xs)?, dtype),
            None => self.head.last.forward(xs, dtype),
        }
    }
}

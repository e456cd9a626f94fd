//! `TokenClassificationHead`: the token classification head on token ids.

use std::fmt;

use candle_attention::checkpoint::WeightSource;
use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::tensor::{Freeze, Frozen, MapTensors, compute_dtype};
use candle_attention::{AttentionMask, Error, Result};
use candle_core::{Module, Tensor};

use crate::families::task_heads::{HeadActivation, TokenClassifierFirst};
use crate::heads::classifier::{head_activation, labels};
use crate::heads::task_head::TaskHead;
use crate::model::bert::BertModel;
use crate::model::config::BertConfig;
use crate::model::feed_forward::read_linear;

/// A [`BertModel`] with a head that classifies each token, `last(x)`, as the `ForTokenClassification` of its family in
/// transformers; ModernBERT's is `last(norm(activation(first(x))))`.
#[derive(Clone)]
pub struct TokenClassificationHead {
    pub(crate) model: BertModel,
    first: Option<First>,
    last: Linear,
    labels: Vec<String>,
    frozen: Frozen<Self>,
}

/// What comes before the last projection: `norm(activation(dense(x)))`.
#[derive(Clone)]
struct First {
    dense: Linear,
    activation: HeadActivation,
    norm: Norm,
}

/// One line: the model and the number of labels.
impl fmt::Debug for TokenClassificationHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.labels.len();
        f.debug_struct("TokenClassificationHead")
            .field("model", &self.model)
            .field("labels", &labels)
            .finish_non_exhaustive()
    }
}

impl Freeze for TokenClassificationHead {
    fn frozen_state(&mut self) -> &mut Frozen<Self> {
        &mut self.frozen
    }

    fn pack(&mut self) -> Result<()> {
        if let Some(first) = &mut self.first {
            first.dense.pack()?;
        }
        self.last.pack()?;
        self.model.freeze_in_place()
    }
}

impl MapTensors for First {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { dense: self.dense.map_tensors(f)?, activation: self.activation, norm: self.norm.map_tensors(f)? })
    }
}

impl MapTensors for TokenClassificationHead {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            model: self.model.map_tensors(f)?,
            first: self.first.map_tensors(f)?,
            last: self.last.map_tensors(f)?,
            labels: self.labels.clone(),
            frozen: Frozen::default(),
        })
    }
}

impl TokenClassificationHead {
    /// Loads model and head from the root of a checkpoint.
    ///
    /// # Errors
    /// The errors of [`BertModel::load`]; a checkpoint without such a head, or whose `architectures` name a head for whole
    /// texts; a number of labels in `id2label` that differs from the head's.
    pub fn load<S: WeightSource>(config: &BertConfig, source: S) -> Result<Self> {
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
        let first = names.first.map(|first| First::load(config, first, &source)).transpose()?;
        let weights = read_linear(&source.child(names.last), labels.len(), hidden, true)?;
        let own = source.gives_own_tensors();
        let mut head = Self {
            first,
            last: Linear::new(names.last, weights, labels.len(), hidden)?,
            labels,
            frozen: Frozen::default(),
            model: BertModel::load(config, source)?,
        };
        if own {
            head.freeze_in_place()?;
        }
        Ok(head)
    }

    /// Model and head as they are now, for inference, with the copy of the last call if no weight has changed since: see
    /// [`BertModel::frozen`].
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn frozen(&self) -> Result<Self> {
        self.freeze(&self.frozen)
    }

    /// The model without the head.
    pub fn model(&self) -> &BertModel {
        &self.model
    }

    /// The labels of the logits, in their order: `id2label`, or `LABEL_0`, `LABEL_1`, …
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Token ids `(b, s)` u32 under `mask` → logits `(b, s, labels)` in f32 (f64 for an f64 model).
    ///
    /// # Errors
    /// The errors of [`BertModel::forward`].
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, mask: &AttentionMask) -> Result<Tensor> {
        self.logits(&self.model.forward(ids, token_type_ids, mask)?)
    }

    /// xs `(b, s, hidden)` → `(b, s, labels)`.
    pub(crate) fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let dtype = compute_dtype(xs.dtype());
        match &self.first {
            Some(first) => self.last.forward(&first.forward(xs)?, dtype),
            None => self.last.forward(xs, dtype),
        }
    }
}

impl First {
    fn load<S: WeightSource>(config: &BertConfig, names: TokenClassifierFirst, source: &S) -> Result<Self> {
        let (dense, hidden) = (source.child(names.dense), config.hidden_size);
        let weights = read_linear(&dense, hidden, hidden, dense.contains("bias"))?;
        Ok(Self {
            dense: Linear::new(names.dense, weights, hidden, hidden)?,
            activation: head_activation(config, names.activation)?,
            norm: config.norm(&config.row().block, hidden, &source.child(names.norm))?,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.dense.forward(xs, compute_dtype(xs.dtype()))?;
        let xs = match self.activation {
            HeadActivation::Fixed(activation) => activation.forward(&xs)?,
            _ => xs.tanh()?,
        };
        self.norm.forward(&xs)
    }
}

//! `HeadModel`: a model with a task head, on token ids.

use std::fmt;
use std::marker::PhantomData;

use candle_attention::Result;
use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::map_fields;
use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::tensor::{Freeze, Frozen, MapTensors, compute_dtype};
use candle_core::{Module, Tensor};

use crate::families::task_heads::{HeadActivation, HeadLayers};
use crate::model::config::TextModelConfig;
use crate::model::mlp::linear;
use crate::model::places::Places;
use crate::model::text_model::TextModel;

/// A [`TextModel`] with a task head: [`SequenceClassifier`](crate::SequenceClassifier),
/// [`TokenClassificationHead`](crate::TokenClassificationHead) or [`MaskedLm`](crate::MaskedLm).
#[derive(Clone)]
pub struct HeadModel<K> {
    pub(crate) model: TextModel,
    pub(super) head: Head,
    frozen: Frozen<Self>,
    kind: PhantomData<K>,
}

/// A task head on hidden states: `last(norm(activation(first(x))))`, or `last(x)` without a `first`.
#[derive(Clone)]
pub(crate) struct Head {
    pub input: HeadInput,
    pub first: Option<Transform>,
    pub last: Linear,
    /// The labels of the logits; none if these are scores of the vocabulary.
    pub labels: Vec<String>,
}

/// The hidden states that a head reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HeadInput {
    /// The hidden state of each token.
    EachToken,
    /// The hidden state of the first token.
    FirstToken,
    /// The mean of the hidden states of all tokens.
    MeanOfTokens,
    /// The hidden state of the last token that is not the padding token, if the model has one.
    LastToken { padding_id: Option<u32> },
}

/// A kind of head.
pub(crate) trait HeadKind: Clone {
    /// The name of the model with this head.
    const NAME: &'static str;

    /// Loads the head and, once the checkpoint is known to have it, the model.
    fn load(config: &TextModelConfig, places: &Places) -> Result<(Head, TextModel)>;
}

/// One line: the model and the number of labels.
impl<K: HeadKind> fmt::Debug for HeadModel<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(K::NAME);
        shown.field("model", &self.model);
        if !self.head.labels.is_empty() {
            shown.field("labels", &self.head.labels.len());
        }
        shown.finish_non_exhaustive()
    }
}

impl<K: HeadKind> Freeze for HeadModel<K> {
    fn frozen_state(&mut self) -> &mut Frozen<Self> {
        &mut self.frozen
    }

    fn pack(&mut self) -> Result<()> {
        if let Some(first) = &mut self.head.first {
            first.dense.pack()?;
        }
        // A decoder that is tied to the word embeddings is packed all the same: a lookup reads rows and a product reads
        // panels. These are the only weights that a frozen model holds twice.
        self.head.last.pack()?;
        self.model.freeze_in_place()
    }
}

impl<K: HeadKind> MapTensors for HeadModel<K> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let model = self.model.map_tensors(f)?;
        let (first, last) = (self.head.first.map_tensors(f)?, self.head.last.map_tensors(f)?);
        let head = Head { input: self.head.input, first, last, labels: self.head.labels.clone() };
        Ok(Self { model, head, frozen: Frozen::default(), kind: PhantomData })
    }
}

#[expect(private_bounds, reason = "the kinds are those of this crate")]
impl<K: HeadKind> HeadModel<K> {
    /// Loads model and head from the root of a checkpoint.
    ///
    /// # Errors
    /// The errors of [`TextModel::load`]; a family or a checkpoint without such a head; for a head that classifies,
    /// `architectures` that name one of the other kind, and a number of labels in `id2label` that differs from the
    /// head's.
    pub fn load(config: &TextModelConfig, source: impl WeightSource) -> Result<Self> {
        Self::load_from(config, &AnySource::new(&source))
    }

    pub(crate) fn load_from(config: &TextModelConfig, source: &AnySource) -> Result<Self> {
        config.validate()?;
        let source = source.watched();
        let places = Places::find(config, &source);
        let (head, model) = K::load(config, &places)?;
        places.check_read(config)?;
        let mut whole = Self { model, head, frozen: Frozen::default(), kind: PhantomData };
        if source.gives_own_tensors() {
            whole.freeze_in_place()?;
        }
        Ok(whole)
    }

    /// Model and head as they are now, for inference, with the copy of the last call if no weight has changed since:
    /// see [`TextModel::frozen`].
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn frozen(&self) -> Result<Self> {
        self.freeze(&self.frozen)
    }

    /// The model without the head.
    pub fn model(&self) -> &TextModel {
        &self.model
    }

    /// The labels of the logits, in their order: `id2label`, or `LABEL_0`, `LABEL_1`, … A [`MaskedLm`](crate::MaskedLm)
    /// has none: its logits are those of the vocabulary.
    pub fn labels(&self) -> &[String] {
        &self.head.labels
    }

    /// xs `(b, s, hidden)` → `(b, s, logits)`.
    pub(crate) fn logits(&self, xs: &Tensor) -> Result<Tensor> {
        let dtype = compute_dtype(xs.dtype());
        match &self.head.first {
            Some(first) => self.head.last.forward_in_dtype(&first.forward(xs)?, dtype),
            None => self.head.last.forward_in_dtype(xs, dtype),
        }
    }
}

/// The layers of a head before its last projection: `norm(activation(dense(x)))`.
#[derive(Clone)]
pub(crate) struct Transform {
    dense: Linear,
    activation: HeadActivation,
    norm: Option<Norm>,
}

impl Transform {
    /// Reads the layers of a row of the table of families, of `width` features.
    pub fn load(config: &TextModelConfig, row: &HeadLayers, places: &Places, width: usize) -> Result<Self> {
        let dense = if row.pooler { &places.body } else { &places.root }.child(row.dense);
        let has_bias = !row.optional_bias || dense.contains("bias");
        let norm = row.norm.map(|norm| places.root.child(norm));
        Ok(Self {
            dense: linear(&dense, "", width, config.hidden_size, has_bias)?,
            activation: match row.activation {
                HeadActivation::Stated(key) => HeadActivation::Fixed(config.stated_activation(key)?),
                HeadActivation::Hidden => HeadActivation::Fixed(config.hidden_act),
                activation => activation,
            },
            norm: norm.map(|norm| config.norm(&config.row().block, width, &norm)).transpose()?,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.dense.forward_in_dtype(xs, compute_dtype(xs.dtype()))?;
        let xs = match self.activation {
            HeadActivation::Fixed(activation) => activation.forward(&xs)?,
            _ => xs.tanh()?,
        };
        match &self.norm {
            Some(norm) => Ok(norm.forward(&xs)?),
            None => Ok(xs),
        }
    }
}

map_fields!(Transform { dense, norm }..);

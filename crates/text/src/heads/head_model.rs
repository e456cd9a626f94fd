//! `HeadModel`: a model with a task head, on token ids.

use std::fmt;

use candle_attention::Result;
use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::tensor::{Freeze, Frozen, MapTensors, compute_dtype};
use candle_core::{Module, Tensor};

use crate::families::task_heads::HeadActivation;
use crate::model::config::TextModelConfig;
use crate::model::text_model::TextModel;

/// A [`TextModel`] with a task head: [`SequenceClassifier`](crate::SequenceClassifier),
/// [`TokenClassificationHead`](crate::TokenClassificationHead) or [`MaskedLm`](crate::MaskedLm).
#[derive(Clone)]
pub struct HeadModel<H> {
    pub(crate) model: TextModel,
    pub(super) head: H,
    frozen: Frozen<Self>,
}

/// A task head on the hidden states of a [`TextModel`].
pub(crate) trait Head: MapTensors + Clone {
    /// The name of the model with this head.
    const NAME: &'static str;

    /// Loads the head from the root of a checkpoint, and the model by `model`, once the checkpoint is known to have the
    /// head.
    fn load(
        config: &TextModelConfig,
        source: &AnySource,
        model: impl FnOnce() -> Result<TextModel>,
    ) -> Result<(Self, TextModel)>;

    /// Packs the weights of the projections.
    fn pack(&mut self) -> Result<()>;

    /// The labels of the logits, if the head classifies.
    fn labels(&self) -> Option<&[String]>;
}

/// One line: the model and the number of labels.
impl<H: Head> fmt::Debug for HeadModel<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(H::NAME);
        shown.field("model", &self.model);
        if let Some(labels) = self.head.labels() {
            shown.field("labels", &labels.len());
        }
        shown.finish_non_exhaustive()
    }
}

impl<H: Head> Freeze for HeadModel<H> {
    fn frozen_state(&mut self) -> &mut Frozen<Self> {
        &mut self.frozen
    }

    fn pack(&mut self) -> Result<()> {
        self.head.pack()?;
        self.model.freeze_in_place()
    }
}

impl<H: Head> MapTensors for HeadModel<H> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { model: self.model.map_tensors(f)?, head: self.head.map_tensors(f)?, frozen: Frozen::default() })
    }
}

#[expect(private_bounds, reason = "the heads are those of this crate")]
impl<H: Head> HeadModel<H> {
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
        let (head, model) = H::load(config, source, || TextModel::load_from(config, source))?;
        let mut whole = Self { model, head, frozen: Frozen::default() };
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
}

/// What heads compute before their last projection: `norm(activation(dense(x)))`.
#[derive(Clone)]
pub(super) struct Transform {
    dense: Linear,
    activation: HeadActivation,
    norm: Option<Norm>,
}

impl Transform {
    /// The activation is that of a row of the table of families.
    pub fn new(
        config: &TextModelConfig,
        dense: Linear,
        activation: HeadActivation,
        norm: Option<Norm>,
    ) -> Result<Self> {
        let activation = match activation {
            HeadActivation::Stated(key) => HeadActivation::Fixed(config.stated_activation(key)?),
            HeadActivation::Hidden => HeadActivation::Fixed(config.hidden_act),
            activation => activation,
        };
        Ok(Self { dense, activation, norm })
    }

    pub fn pack(&mut self) -> Result<()> {
        self.dense.pack()
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.dense.forward(xs, compute_dtype(xs.dtype()))?;
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

impl MapTensors for Transform {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { dense: self.dense.map_tensors(f)?, activation: self.activation, norm: self.norm.map_tensors(f)? })
    }
}

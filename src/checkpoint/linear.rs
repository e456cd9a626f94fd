//! Loads single linear layers and norms, as loaders of whole layers load theirs.

use std::ops::Range;

use crate::checkpoint::source::{AnySource, WeightSource};
use crate::config::NormKind;
use crate::error::Result;
use crate::norm::{Norm, parameter_names};
use crate::ops::Linear;
use crate::weights::LinearWeights;

impl Linear {
    /// The linear layer that `source` holds below `name`, as attention layers load their projections: a `weight`
    /// `(out, input)` and, where one is stored, a `bias` `(out)`.
    ///
    /// As [`MultiHeadAttention::load`](crate::MultiHeadAttention::load) loads a layer, this loads the rest of a model:
    /// weights are in few bits where the source has a format for them ([`Quantization`](crate::Quantization) at
    /// [`Checkpoint::at`](crate::checkpoint::Checkpoint::at), a GGUF file), and the changes of an adapter are beside
    /// them ([`LoraAdapter::beside`](crate::lora::LoraAdapter::beside)). Weights of a checkpoint on disk are packed for
    /// the CPU kernels at once and take memory once; those that learn stay variables.
    ///
    /// ```no_run
    /// use candle_attention::Quantization;
    /// use candle_attention::checkpoint::{Checkpoint, WeightSource};
    /// use candle_attention::ops::Linear;
    /// use candle_core::{DType, Device, Module, Tensor};
    ///
    /// let source = Checkpoint::open("Qwen3-0.6B")?.at("model.layers.0.mlp", Quantization::Int8, &Device::Cpu);
    /// let up = Linear::load(&source, "up_proj", 3072, 1024)?;
    /// let xs = Tensor::zeros((1, 5, 1024), DType::F32, &Device::Cpu)?;
    /// assert_eq!(up.forward(&xs)?.dims(), [1, 5, 3072]);
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; for a format of few bits, a weight that is not finite.
    pub fn load(source: &impl WeightSource, name: &str, out: usize, input: usize) -> Result<Self> {
        let source = AnySource::new(source).child(name);
        let has_bias = source.contains("bias");
        Self::load_with_bias(&source, out, input, has_bias)
    }

    /// [`load`](Self::load) of the layer that `source` points at: with a `bias`, which has to be there, or without one,
    /// whatever is stored.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn load_with_bias(source: &impl WeightSource, out: usize, input: usize, has_bias: bool) -> Result<Self> {
        let base = AnySource::new(source).base();
        let weights = Self::read_weights(&base, out, input, has_bias)?;
        Self::load_rows(&base, weights, 0..out)
    }

    /// [`load`](Self::load) of two layers that are stored as one, such as the gate and the other projection of a
    /// feed-forward: the first `out` rows of the `weight` `(2 out, input)` below `name`, and of its `bias`, if one is
    /// stored, and the others.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn load_halves(source: &impl WeightSource, name: &str, out: usize, input: usize) -> Result<[Self; 2]> {
        let base = AnySource::new(source).child(name).base();
        let weights = Self::read_weights(&base, out.saturating_mul(2), input, base.contains("bias"))?;
        // Views, which follow the weights if these change.
        let half = |start: usize| Self::load_rows(&base, weights.narrow(start, out)?, start..start + out);
        Ok([half(0)?, half(out)?])
    }

    fn read_weights(base: &AnySource, out: usize, input: usize, has_bias: bool) -> Result<LinearWeights> {
        let bias = has_bias.then(|| base.get("bias", &[out])).transpose()?;
        Ok(LinearWeights::new(base.get("weight", &[out, input])?, bias))
    }

    /// The layer of `weights`, which are these rows of those that `base` points at.
    fn load_rows(base: &AnySource, weights: LinearWeights, rows: Range<usize>) -> Result<Self> {
        let input = weights.weight.dim(1)?;
        let mut linear = Self::new(&base.full_name(""), weights, rows.len(), input)?;
        linear.pack_for(base, "weight")?;
        base.with_changes(linear, "weight", rows)
    }

    /// Packs the weights, which were read from `source` as its `name`, or are a part of that, as [`load`](Self::load)
    /// does: in few bits where the source has a format for them, and else as they are where it
    /// [gives its tensors away](WeightSource::gives_own_tensors). In training, weights in few bits are multiplied
    /// [exactly](Self::set_exact).
    ///
    /// # Errors
    /// For a format of few bits, a weight that is not finite; not enough memory.
    pub fn pack_for(&mut self, source: &dyn WeightSource, name: &str) -> Result<()> {
        if let Some(format) = source.quantization(name) {
            self.quantize(format).map_err(|error| error.with_weight(&source.full_name(name)))?;
        }
        if source.gives_own_tensors() {
            self.pack()?;
        }
        if source.is_in_training() {
            self.set_exact();
        }
        Ok(())
    }
}

impl Norm {
    /// Reads `weight`, and `bias` if `bias` is set, or `gamma` and `beta` as early checkpoints call them.
    ///
    /// # Errors
    /// If one is missing or not of length `size`; if `eps` is negative or not finite.
    pub fn load(kind: NormKind, bias: bool, size: usize, eps: f64, source: &dyn WeightSource) -> Result<Self> {
        let [weight, bias_name] = parameter_names(|name| source.contains(name));
        let weight = source.get(weight, &[size])?;
        Self::new(kind, weight, bias.then(|| source.get(bias_name, &[size])).transpose()?, eps)
    }
}

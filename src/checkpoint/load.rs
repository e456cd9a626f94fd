//! Loads attention layers: alone, or as the model of a `config.json` runs them.

use std::fmt;
use std::ops::Deref;

use candle_core::{DType, Device, Module, Tensor};

use crate::attention::MultiHeadAttention;
use crate::checkpoint::config_json::{ModelConfig, config_from_json};
use crate::checkpoint::detect::detect;
use crate::checkpoint::open::Checkpoint;
use crate::checkpoint::shared_tables::{SharedTables, read_with_shared_tables};
use crate::checkpoint::source::{AnySource, WeightSource, join};
use crate::config::{AttentionConfig, CallInput};
use crate::error::{Error, Result};
use crate::families::layout::Layout;
use crate::mask::AttentionMask;
use crate::ops::ComputeType;
use crate::weights::AttentionWeights;

impl MultiHeadAttention {
    /// Loads a layer in any known layout ([`layouts`](crate::checkpoint::layouts)). `source` points at the layer: a
    /// `VarBuilder`, a [`Checkpoint::at`], or a [`VarMapSource`](crate::checkpoint::VarMapSource). A table of biases
    /// that layers share is read from where their models have it: in the first layer (T5), or next to the layers
    /// (MPNet, BEiT, DeBERTa).
    ///
    /// Whatever no weight shows is as `config` says: rotation and ALiBi, causal mask and window, scale, softcap. The
    /// layer of a decoder without them is another function. With the `config.json` of its model,
    /// [`Checkpoint::attention`] and [`ModelAttention::load`] have them all.
    ///
    /// # Errors
    /// The errors of [`AttentionWeights::read`]; a shared table that the source does not hold.
    pub fn load(config: &AttentionConfig, source: impl WeightSource) -> Result<Self> {
        let source = AnySource::new(&source);
        let (weights, layout) = read_with_shared_tables(config, &[], &source)?;
        Self::from_read(config, weights, layout, &source)
    }

    /// [`load`](Self::load) of a layer of a model whose layers share tables: they are read once, by
    /// [`SharedTables::read`], and take memory once. `pruned` are the heads that the layer no longer has, by their
    /// indices in the unpruned model; `config` has the number of the others.
    ///
    /// # Errors
    /// The errors of [`AttentionWeights::read`]; pruned heads and a table of more than 2^24 elements.
    pub fn load_with_tables(
        config: &AttentionConfig,
        pruned: &[usize],
        tables: &SharedTables,
        source: &impl WeightSource,
    ) -> Result<Self> {
        let source = AnySource::new(source);
        let (mut weights, layout) = AttentionWeights::read_base(config, &source)?;
        tables.insert_into(&mut weights.position, pruned)?;
        Self::from_read(config, weights, layout, &source)
    }

    /// The layer of weights that [`AttentionWeights::read_base`] has read from `source`.
    fn from_read(
        config: &AttentionConfig,
        weights: AttentionWeights,
        layout: &Layout,
        source: &AnySource,
    ) -> Result<Self> {
        let mut layer = Self::from_weights(config, weights)?;
        layer.quantize_for(source, layout)?;
        layer.with_changes(source)
    }

    /// Packs the projections of a layer that was read from `source` in the formats of few bits that the source has for
    /// them. Queries, keys, values and gate are multiplied together, so they are quantized only together.
    fn quantize_for(&mut self, source: &dyn WeightSource, layout: &Layout) -> Result<()> {
        let weights = layout.input_weights(|name| source.contains(name));
        let first = weights.first().and_then(|name| source.quantization(name));
        let qkv = first.filter(|_| weights.iter().all(|name| source.quantization(name) == first));
        let formats = [qkv, source.quantization(layout.output_weight())];
        let name = || source.full_name("");
        self.quantize_projections(formats).map_err(|error| error.with_weight(&name()))?;
        if source.is_in_training() {
            self.set_exact();
        }
        Ok(())
    }
}

/// An attention layer as its model runs it.
///
/// It is a [`Module`]: `forward` is self-attention over positions 0, 1, … under the layer's own mask. Every other
/// method of [`MultiHeadAttention`] is called on it as on its [`layer`](Self::layer).
///
/// A layer with the keys and values of another one (Gemma 3n, Gemma 4) says which in
/// [`key_value_source`](AttentionConfig::key_value_source), and takes them by
/// [`AttentionInputs::shared`](crate::AttentionInputs::shared); a call without them is an error.
///
/// A call has to say what a model does with its inputs and a layer cannot know; without it, the layer is right for
/// text alone. Tokens of images have positions of their own in models with M-RoPE
/// ([`AttentionOptions::with_positions`](crate::AttentionOptions::with_positions)). In Gemma 3, ShieldGemma 2 and GIT
/// those of one image see one another, which the layer's mask does not have: [`note`](Self::note) says so.
///
/// Where a layer is right for no call without an input of this kind, it [requires](Self::requires) it.
#[derive(Clone)]
#[non_exhaustive]
pub struct ModelAttention {
    /// The layer, with positions, norms, scale, and its built-in mask.
    pub layer: MultiHeadAttention,
    /// The layout of its weights.
    pub layout: &'static Layout,
    /// The work that the layer leaves to its caller, beyond the usual: `None` for almost all models.
    pub note: Option<&'static str>,
}

impl ModelAttention {
    /// The attention layer that `source` points at, as the model of this `config.json` runs it: with positions, window,
    /// scale, softcap and norms, and with the table of biases that it shares with other layers.
    ///
    /// `config` is the parsed `config.json`, or a [`ModelConfig`] that says which family to read it as. `source` is a
    /// `VarBuilder`, a [`Checkpoint::at`], or, for a layer that learns, a
    /// [`VarMapSource`](crate::checkpoint::VarMapSource); its prefix is that of the layer in the whole model, because
    /// layers of one model differ by their number and the part that they belong to.
    ///
    /// # Errors
    /// The errors of [`config_from_json`] and [`MultiHeadAttention::load`].
    ///
    /// # Example
    /// ```no_run
    /// use candle_attention::checkpoint::{Checkpoint, ModelAttention, VarMapSource};
    /// use candle_core::{DType, Device};
    ///
    /// let checkpoint = Checkpoint::open("Qwen3-0.6B")?;
    /// let json = checkpoint.config()?.expect("a config.json in the folder");
    /// let prefix = "model.layers.3.self_attn";
    /// // From a VarBuilder that the rest of the model reads too.
    /// let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    /// let model = ModelAttention::load(&json, vb.pp(prefix))?;
    /// // Trainable.
    /// let map = checkpoint.to_varmap(prefix, DType::F32, &Device::Cpu)?;
    /// let model = ModelAttention::load(&json, VarMapSource::new(&map).at(prefix))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load<'a>(config: impl Into<ModelConfig<'a>>, source: impl WeightSource) -> Result<Self> {
        Self::load_from(config.into(), &AnySource::new(&source))
    }

    fn load_from(config: ModelConfig, source: &AnySource) -> Result<Self> {
        let asked = config_from_json(config, source)?;
        let (weights, layout) = read_with_shared_tables(&asked.config, &asked.pruned_heads, source)?;
        let layer = MultiHeadAttention::from_read(&asked.config, weights, layout, source)?;
        Ok(Self { layer, layout, note: asked.note })
    }

    /// The inputs that each call has to give beyond its tokens. A call without it is
    /// [`Error::MissingInput`](crate::Error::MissingInput).
    pub fn requires(&self) -> &[CallInput] {
        &self.layer.config().requires
    }

    /// The layer's built-in mask: causal, sliding window, or none. The layer applies it in every call.
    pub fn mask(&self) -> &AttentionMask {
        &self.layer.config().mask
    }
}

/// One line: the layer, the name of the layout, and a note if there is one.
impl fmt::Debug for ModelAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = f.debug_struct("ModelAttention");
        line.field("layer", &self.layer).field("layout", &self.layout.name);
        self.note.iter().for_each(|note| _ = line.field("note", note));
        line.finish()
    }
}

/// The methods of the layer are methods of the model's layer.
impl Deref for ModelAttention {
    type Target = MultiHeadAttention;

    fn deref(&self) -> &MultiHeadAttention {
        &self.layer
    }
}

impl Module for ModelAttention {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        self.layer.forward(xs)
    }
}

impl Checkpoint {
    /// The attention layer at `prefix` as its model runs it, by its [`config.json`](Self::config), read onto `device`
    /// as by [`at`](Self::at).
    ///
    /// ```no_run
    /// use candle_attention::checkpoint::Checkpoint;
    /// use candle_core::{DType, Device, Module, Tensor};
    ///
    /// let checkpoint = Checkpoint::open("Qwen3-0.6B")?;
    /// let layer = checkpoint.attention("model.layers.0.self_attn", DType::F32, &Device::Cpu)?;
    /// let xs = Tensor::zeros((1, 5, 1024), DType::F32, &Device::Cpu)?; // (b, s, hidden_size)
    /// assert_eq!(layer.forward(&xs)?.dims(), [1, 5, 1024]);
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`config`](Self::config) and [`ModelAttention::load`]; no `config.json` beside the weights.
    pub fn attention(
        &self,
        prefix: &str,
        compute_type: impl Into<ComputeType>,
        device: &Device,
    ) -> Result<ModelAttention> {
        let config = self.config()?.ok_or_else(|| {
            let path = self.path().map_or("weights in memory".to_string(), |path| path.display().to_string());
            let expected = "the file in their folder; with one from elsewhere use `attention_with`, and with a \
                            configuration of your own `MultiHeadAttention::load`";
            Error::value(format!("the config.json of {path}"), "absent", expected)
        })?;
        self.attention_with(prefix, &config, compute_type, device)
    }

    /// [`attention`](Self::attention) by this `config.json`, or by a [`ModelConfig`] that says which family it is read
    /// as.
    ///
    /// # Errors
    /// The errors of [`ModelAttention::load`].
    pub fn attention_with<'a>(
        &self,
        prefix: &str,
        config: impl Into<ModelConfig<'a>>,
        compute_type: impl Into<ComputeType>,
        device: &Device,
    ) -> Result<ModelAttention> {
        ModelAttention::load(config, self.at(prefix, compute_type, device))
    }

    /// Reads a layer's weights in the dtype of its first stored projection, to write them elsewhere.
    ///
    /// # Errors
    /// The errors of [`AttentionWeights::read`].
    pub fn layer_weights(&self, prefix: &str, config: &AttentionConfig) -> Result<AttentionWeights> {
        let layout = detect(&self.at(prefix, DType::F32, &Device::Cpu))?;
        let stored = self.entry(&join(prefix.trim_end_matches('.'), layout.required()[0]))?.dtype;
        let dtype = DType::try_from(stored)?;
        Ok(AttentionWeights::read(config, &self.at(prefix, dtype, &Device::Cpu))?.0)
    }
}

//! The projections of a layer as values: read out, wrapped, put in.

use candle_core::Tensor;
use candle_nn::Module;

use crate::attention::MultiHeadAttention;
use crate::attention::build::qkv_sizes;
use crate::attention::cache::Identity;
use crate::attention::mechanism::LayerParts;
use crate::attention::mechanisms;
use crate::attention::steps::find_norms;
use crate::config::KeyValueSource;
use crate::ensure;
use crate::error::{Error, Result};
use crate::ops::{GATE, Linear, ProjectionKind};
use crate::position::PositionState;
use crate::tensor::{Frozen, MapTensors, same_dtype_and_device};

impl MultiHeadAttention {
    /// A projection of the layer, which shares its weights, packed ones included.
    ///
    /// # Errors
    /// The layer has no such projection: keys and values of a layer that takes those of another one, or that computes
    /// them from latents; one for queries, keys and values, where they are stored apart. Its weights are variables
    /// whose rows are in another order, and are reordered at each call.
    pub fn projection(&self, kind: ProjectionKind) -> Result<Linear> {
        self.projection_sizes(kind)?;
        match kind {
            ProjectionKind::Output => Ok(self.o_proj.clone()),
            ProjectionKind::QueryKeyValue => self.qkv.all_parts()?.ok_or_else(|| {
                Error::value(kind.name(), "three projections", "one: read `Query`, `Key` and `Value` instead")
            }),
            kind => self.qkv.part(part(kind)),
        }
    }

    /// A copy of the layer with another projection, of the same sizes, dtype and device: what
    /// [`projection`](Self::projection) of this layer or of another one returned, with a
    /// [low-rank change](Linear::with_low_rank) beside it, for example. All else is shared with this layer.
    ///
    /// A projection that is not weights alone runs on every path but the one over rows, which needs packed weights of
    /// all projections: padded, cached and cross-cached calls on the backend that [`plan`](Self::plan) says, ragged
    /// ones on a backend that runs them or by buckets. If it has variables, they get their gradients.
    ///
    /// A cache of the layer is one of the copy, unless keys or values have another projection. Whether the variables of
    /// a module have changed since, a cache does not know.
    ///
    /// # Errors
    /// The errors of [`projection`](Self::projection); another size, dtype or device.
    pub fn with_projection(&self, kind: ProjectionKind, projection: Linear) -> Result<Self> {
        let [out, input] = self.projection_sizes(kind)?;
        let found = [projection.out_features(), projection.in_features()];
        ensure!(found == [out, input], Error::shape(kind.name(), &found, format!("[{out}, {input}]: (out, in)")));
        same_dtype_and_device(kind.name(), projection.like(), self.qkv.like())?;
        let mut copy = Self { frozen: Frozen::default(), ..self.clone() };
        let mut bias = copy.config.bias;
        let has_bias = projection.has_bias();
        match kind {
            ProjectionKind::Query => bias.q = has_bias,
            ProjectionKind::Key => bias.k = has_bias,
            ProjectionKind::Value => bias.v = has_bias,
            ProjectionKind::QueryKeyValue => (bias.q, bias.k, bias.v) = (has_bias, has_bias, has_bias),
            ProjectionKind::Output => bias.o = has_bias,
            ProjectionKind::Gate => copy.config = copy.config.with_gate_bias(has_bias),
        }
        match kind {
            ProjectionKind::Output => copy.o_proj = projection,
            ProjectionKind::QueryKeyValue => copy.qkv = self.qkv.with_all_parts(projection)?,
            ProjectionKind::Key if self.config.key_value_source == KeyValueSource::KeysAsValues => {
                bias.v = has_bias;
                copy.qkv = self.qkv.with_parts(&[1, 2], &projection)?;
            }
            kind => copy.qkv = self.qkv.with_parts(&[part(kind)], &projection)?,
        }
        copy.config.bias = bias;
        if matches!(kind, ProjectionKind::Key | ProjectionKind::Value | ProjectionKind::QueryKeyValue) {
            copy.identity = Identity::new(copy.qkv.id());
        }
        Ok(copy)
    }

    /// [`with_projection`](Self::with_projection) of a module of the caller: a quantized product of candle, a pair of
    /// low-rank matrices, a shard of a matrix. [`Linear::from_module`] says what it gets and what it has to return.
    ///
    /// [`weights`](Self::weights) of the copy is an error that names the projection, and so is all that needs weights:
    /// writing, pruning. A [frozen](Self::frozen) copy shares a module without variables; with variables it is an
    /// error.
    ///
    /// ```
    /// use candle_attention::{AttentionConfig, MultiHeadAttention, ProjectionKind, ops::Linear};
    /// use candle_core::{DType, Device, Module, Tensor, Var};
    ///
    /// /// LoRA beside a projection, whatever that is. (`Linear::with_low_rank` is the same.)
    /// struct Lora {
    ///     base: Linear,
    ///     a: Var, // (r, in)
    ///     b: Var, // (out, r)
    /// }
    ///
    /// impl Module for Lora {
    ///     fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
    ///         let change = xs.broadcast_matmul(&self.a.t()?)?.broadcast_matmul(&self.b.t()?)?;
    ///         self.base.forward(xs)? + change
    ///     }
    /// }
    ///
    /// let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
    /// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
    /// let (a, b) = (Var::randn(0f32, 0.3, (2, 8), &Device::Cpu)?, Var::zeros((8, 2), DType::F32, &Device::Cpu)?);
    /// let lora = Lora { base: layer.projection(ProjectionKind::Query)?, a: a.clone(), b: b.clone() };
    /// let adapted = layer.with_module(ProjectionKind::Query, lora)?;
    ///
    /// let xs = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?;
    /// let gradients = adapted.forward(&xs)?.sqr()?.sum_all()?.backward()?;
    /// assert!(gradients.get(&b).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`with_projection`](Self::with_projection) and of [`Linear::from_module`].
    pub fn with_module(&self, kind: ProjectionKind, module: impl Module + Send + Sync + 'static) -> Result<Self> {
        let sizes = self.projection_sizes(kind)?;
        let projection = Linear::from_module(kind.name(), module, sizes, self.dtype(), self.device())?;
        self.with_projection(kind, projection)
    }

    /// `[out, in]` of a projection that the layer has.
    fn projection_sizes(&self, kind: ProjectionKind) -> Result<[usize; 2]> {
        let config = &self.config;
        let (rows, inputs) = qkv_sizes(config);
        let without = |why: &str, expected: &str| Err(Error::value(kind.name(), why, expected));
        let is_qkv = !matches!(kind, ProjectionKind::Gate | ProjectionKind::Output);
        if config.latent.is_some() && is_qkv {
            return without("made of latents", "`Gate` or `Output` in a layer with latent attention");
        }
        match (kind, config.key_value_source) {
            (ProjectionKind::Query, _) => Ok([rows[0], inputs[0]]),
            (ProjectionKind::Gate, _) => match config.gate_projection() {
                Some((rows, _)) => Ok([rows, inputs[0]]),
                None => without("none", "a layer with a gate of the output"),
            },
            (ProjectionKind::Output, _) => Ok([config.resolved_output_size(), config.context_size()]),
            (_, KeyValueSource::Shared { .. }) => without("that of another layer", "`Query`, `Gate` or `Output`"),
            (ProjectionKind::Key, _) => Ok([rows[1], inputs[1]]),
            (_, KeyValueSource::KeysAsValues) => without("that of the keys, which are the values, too", "`Key`"),
            (ProjectionKind::Value, _) => Ok([rows[2], inputs[2]]),
            (ProjectionKind::QueryKeyValue, _) if inputs != [inputs[0]; 3] => {
                without("one of several inputs", "one projection for each: their inputs have other sizes")
            }
            (ProjectionKind::QueryKeyValue, _) => Ok([rows.iter().sum(), inputs[0]]),
        }
    }

    /// [`MapTensors`] of a layer whose projections are not weights alone, or in few bits.
    pub(super) fn map_projections(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let (qkv, o_proj) = (self.qkv.map_parts(f)?, self.o_proj.map_tensors(f)?);
        let parameters = self.parameters.map_tensors(f)?;
        let parts = LayerParts { config: &self.config, parameters: &parameters, like: qkv.like() };
        Ok(Self {
            norms: find_norms(&self.config, &parameters, qkv.like())?,
            mechanisms: mechanisms::from_layer(parts)?,
            parameters,
            position: PositionState::new(self.position.weights.map_tensors(f)?),
            identity: Identity::new(qkv.id()),
            frozen: Frozen::default(),
            qkv,
            o_proj,
            ..self.clone()
        })
    }
}

/// The index of a projection of inputs in those of the layer.
fn part(kind: ProjectionKind) -> usize {
    match kind {
        ProjectionKind::Key => 1,
        ProjectionKind::Value => 2,
        ProjectionKind::Gate => GATE,
        _ => 0,
    }
}

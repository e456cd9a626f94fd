//! A layer with weights that cannot change.

use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::error::Result;
use crate::tensor::ShareWeights;
use crate::tensor::{Freeze, Frozen, MapTensors};
use crate::weights::{AttentionWeights, NormWeights, PositionWeights, QkvWeights, StepWeights};

impl MultiHeadAttention {
    /// The layer as it is now, for inference: its weights are copies that nobody else can change, so on the CPU they
    /// are packed for the kernels at once, and the packed projections are all that the copy keeps of them.
    ///
    /// A layer of variables runs candle's differentiable operations on their present values. Its frozen copy runs the
    /// fused kernels, and is a snapshot: it does not follow the variables. `frozen` is cheap to call before each
    /// evaluation: if no weight has changed since the last call, on this layer or a clone of it, the result is the same
    /// copy with what it has packed. The last copy is kept as long as the layer is.
    ///
    /// It also halves the memory of a layer that was loaded for inference, if the layer itself is dropped:
    /// `MultiHeadAttention::load(&config, source)?.frozen()?`.
    ///
    /// ```
    /// use candle_attention::{AttentionConfig, MultiHeadAttention};
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_nn::{Optimizer, VarBuilder, VarMap};
    ///
    /// let variables = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    /// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
    /// let mut optimizer = candle_nn::SGD::new(variables.all_vars(), 0.1)?;
    /// let xs = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?;
    /// for _epoch in 0..2 {
    ///     optimizer.backward_step(&layer.forward_t(&xs, true)?.sqr()?.mean_all()?)?;
    ///     let evaluated = layer.frozen()?; // fused kernels, and the weights of this epoch
    ///     assert_eq!(evaluated.forward(&xs)?.dims(), [2, 5, 8]);
    /// }
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn frozen(&self) -> Result<Self> {
        self.freeze(&self.frozen)
    }
}

impl Freeze for MultiHeadAttention {
    fn frozen_state(&mut self) -> &mut Frozen<Self> {
        &mut self.frozen
    }

    fn pack(&mut self) -> Result<()> {
        self.qkv.pack()?;
        self.o_proj.pack()
    }
}

impl ShareWeights for MultiHeadAttention {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        self.qkv.share_weights(&other.qkv)?;
        self.o_proj.share_weights(&other.o_proj)
    }
}

impl MapTensors for MultiHeadAttention {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let mapped = match self.qkv.is_plain() && self.o_proj.is_plain() {
            true => Self::from_weights(&self.config, self.weights()?.map_tensors(f)?)?,
            false => self.map_projections(f)?,
        };
        Ok(Self { identity: self.identity_of_copy(mapped.identity.clone())?, ..mapped })
    }
}

impl MapTensors for AttentionWeights {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let Self { qkv, o, gate, context_norm, bias_kv, score, steps, sinks, position } = self;
        let mut mapped = PositionWeights::default();
        for (name, tensor) in position.iter() {
            mapped.insert(name, f(tensor)?);
        }
        Ok(Self {
            qkv: qkv.map_tensors(f)?,
            o: o.map_tensors(f)?,
            gate: gate.map_tensors(f)?,
            context_norm: context_norm.map_tensors(f)?,
            bias_kv: bias_kv.map_tensors(f)?,
            score: score.map_tensors(f)?,
            steps: [steps[0].map_tensors(f)?, steps[1].map_tensors(f)?, steps[2].map_tensors(f)?],
            sinks: sinks.map_tensors(f)?,
            position: mapped,
        })
    }
}

impl MapTensors for QkvWeights {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(match self {
            Self::Split(parts) => {
                let [q, k, v] = &**parts;
                Self::Split(Box::new([q.map_tensors(f)?, k.map_tensors(f)?, v.map_tensors(f)?]))
            }
            Self::GatedQuery { parts, heads } => {
                let [q, k, v] = &**parts;
                let parts = Box::new([q.map_tensors(f)?, k.map_tensors(f)?, v.map_tensors(f)?]);
                Self::GatedQuery { parts, heads: *heads }
            }
            Self::Packed(all) => Self::Packed(all.map_tensors(f)?),
            Self::Ordered(all, order) => Self::Ordered(all.map_tensors(f)?, *order),
            Self::OrderedSplitBias { weight, biases: [q, k, v], order } => {
                let weight = f(weight)?;
                Self::OrderedSplitBias {
                    weight,
                    biases: [q.map_tensors(f)?, k.map_tensors(f)?, v.map_tensors(f)?],
                    order: *order,
                }
            }
            Self::KeysAsValues(parts) => Self::KeysAsValues(Box::new(parts.map_tensors(f)?)),
            Self::Query(q) => Self::Query(q.map_tensors(f)?),
            Self::Latent(weights) => Self::Latent(Box::new(weights.map_tensors(f)?)),
        })
    }
}

impl MapTensors for NormWeights {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self::new(f(&self.weight)?, self.bias.map_tensors(f)?))
    }
}

impl MapTensors for StepWeights {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { norm: self.norm.map_tensors(f)?, factor: self.factor.map_tensors(f)? })
    }
}

impl<T: MapTensors> MapTensors for [T; 2] {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok([self[0].map_tensors(f)?, self[1].map_tensors(f)?])
    }
}

impl MultiHeadAttention {
    /// Identities of the query-key-value projection and of the output projection. Layers that share a projection, such
    /// as clones, have equal ones.
    pub fn projection_ids(&self) -> [candle_core::TensorId; 2] {
        [self.qkv.id(), self.o_proj.id()]
    }
}

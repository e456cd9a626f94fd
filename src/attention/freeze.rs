//! A layer with weights that cannot change.

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::error::Result;
use crate::map_fields;
use crate::ops::Quantization;
use crate::tensor::{Freeze, Frozen, MapTensors, ShareWeights};
use crate::weights::{AttentionWeights, NormWeights, QkvWeights};

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

    /// The layer as it is now, for inference on the CPU, with its projections rounded to a format of few bits: a
    /// quarter of the memory or less, and products of integers. Like a [frozen](Self::frozen) copy it is a snapshot.
    ///
    /// The copy takes and gives f32, whatever the dtype of this layer. A projection that the format cannot take
    /// ([`Quantization::fits`]) stays in f32, and a module of the caller is what it is; Debug of the copy and
    /// [`plan`](Self::plan) show the format. [`weights`](Self::weights) of the copy are the rounded values, exactly;
    /// quantizing these again gives the same bits. A call in training ([`train`](crate::AttentionOptions::train), or
    /// with a gradient of an input or a weight) multiplies with the rounded weights in f32, in all projections, without
    /// rounding their inputs.
    ///
    /// ```
    /// use candle_attention::{AttentionConfig, MultiHeadAttention, Quantization};
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    ///
    /// let variables = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    /// let layer = MultiHeadAttention::new(&AttentionConfig::new(64, 4), vb)?;
    /// let int8 = layer.quantized(Quantization::Int8)?;
    /// let xs = Tensor::randn(0f32, 1., (2, 5, 64), &Device::Cpu)?;
    /// let difference = (layer.forward(&xs)? - int8.forward(&xs)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
    /// assert!(difference < 0.05);
    /// assert_eq!(int8.quantization(), Some(Quantization::Int8));
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// A layer on another device than the CPU; a weight that is not finite; not enough memory.
    pub fn quantized(&self, format: Quantization) -> Result<Self> {
        format.check_device(self.qkv.like())?;
        let copy = self.map_tensors(&mut |tensor| Ok(tensor.detach().force_contiguous()?.to_dtype(DType::F32)?))?;
        let mut copy = Self { identity: self.identity_with_other_weights(copy.qkv.id()), ..copy };
        copy.quantize_projections([Some(format); 2])?;
        copy.freeze_in_place()?;
        Ok(copy)
    }

    /// The format of the projections, if it has few bits: of the output projection, if the others are not quantized.
    pub fn quantization(&self) -> Option<Quantization> {
        self.qkv.quantization().or(self.o_proj.quantization())
    }

    /// Packs the projections of queries, keys, values and gate, and the output projection, in formats of few bits.
    pub(crate) fn quantize_projections(&mut self, [qkv, o]: [Option<Quantization>; 2]) -> Result<()> {
        qkv.map_or(Ok(()), |format| self.qkv.quantize(format))?;
        o.map_or(Ok(()), |format| self.o_proj.quantize(format)).map_err(|error| error.with_weight("o_proj"))
    }

    /// Makes products of projections in few bits exact, as [`Linear::set_exact`](crate::ops::Linear::set_exact) does.
    pub(crate) fn set_exact(&mut self) {
        self.qkv.set_exact();
        self.o_proj.set_exact();
    }

    /// Whether [`set_exact`](Self::set_exact) has been called.
    pub(super) fn is_exact(&self) -> bool {
        self.qkv.is_exact() || self.o_proj.is_exact()
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
        let mapped = if self.qkv.is_plain() && self.o_proj.is_plain() && self.quantization().is_none() {
            Self::from_weights(&self.config, self.weights()?.map_tensors(f)?)?
        } else {
            self.map_projections(f)?
        };
        Ok(Self { identity: self.identity_of_copy(mapped.identity.clone())?, ..mapped })
    }
}

map_fields!(AttentionWeights { qkv, o, gate, parameters, position });

impl MapTensors for QkvWeights {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(match self {
            Self::Split(parts) => Self::Split(parts.map_tensors(f)?),
            Self::GatedQuery { parts, heads } => Self::GatedQuery { parts: parts.map_tensors(f)?, heads: *heads },
            Self::Packed(all) => Self::Packed(all.map_tensors(f)?),
            Self::Ordered(all, order) => Self::Ordered(all.map_tensors(f)?, *order),
            Self::OrderedSplitBias { weight, biases, order } => {
                let weight = f(weight)?;
                Self::OrderedSplitBias { weight, biases: biases.map_tensors(f)?, order: *order }
            }
            Self::KeysAsValues(parts) => Self::KeysAsValues(parts.map_tensors(f)?),
            Self::Query(q) => Self::Query(q.map_tensors(f)?),
            Self::Latent(weights) => Self::Latent(weights.map_tensors(f)?),
        })
    }
}

map_fields!(NormWeights { weight, bias });

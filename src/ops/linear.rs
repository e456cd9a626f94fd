//! The linear layer `y = x Wᵀ + b`, on the CPU with weights that are packed once.
//!
//! A layer for inference can drop the original tensors after packing ([`Linear::pack`]). Only the owner of the tensors
//! may request that, such as a frozen copy or an encoder of a checkpoint: other holders would keep them in memory, or
//! change them without the layer noticing.
//!
//! A quantized layer ([`Linear::quantize`]) holds nothing but packed weights. A layer may also compute something else
//! in the place of the product: a module of the caller, or a product and a low-rank change beside it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_attention_kernels::{Activation, PackedWeights, QuantizedRows};
use candle_core::{DType, Device, Tensor, TensorId};
use candle_nn::Module;

use crate::error::{Error, Result};
use crate::map_fields;
use crate::ops::low_rank::LowRank;
use crate::ops::pack::{format_of, multiply, multiply_outputs, pack, pack_rows, unpack, unpack_bias};
use crate::ops::packed_product::packed_product;
use crate::ops::pending_bias::{PendingBias, add_bias};
use crate::ops::problem::{Activated, supports_fused};
use crate::ops::projection::{OfModule, Projection};
use crate::ops::quantization::Quantization;
use crate::ops::trained_product::{check_product, trained};
use crate::tensor::{MapTensors, check_allocation, element_count, same_dtype_and_device};
use crate::tensor::{ShareWeights, same_elements};
use crate::weights::{LinearWeights, LowRankChange};

/// A linear layer `y = x Wᵀ + b` with `W` `(out, in)` and `b` `(out)`, or what is in the place of one:
/// [`from_module`](Self::from_module), [`with_low_rank`](Self::with_low_rank).
#[derive(Clone)]
pub struct Linear {
    weights: Weights,
    /// The weights as the CPU kernel reads them, packed on first use.
    packed: Arc<OnceLock<PackedWeights>>,
    /// The id of the weight that the layer was made from.
    id: TensorId,
    /// `(out, in)`.
    dims: [usize; 2],
}

#[derive(Clone)]
enum Weights {
    /// Tensors, which may be variables or belong to others too.
    Tensors(LinearWeights),
    /// Packed weights only, of which these are the outputs of the layer: all, or some that are packed with others. If
    /// `exact`, products are those of the dequantized weights.
    Packed { has_bias: bool, like: Tensor, outputs: Range<usize>, exact: bool },
    /// No weights, or more than weights.
    Other(Arc<dyn Projection>),
}

/// A tensor without elements, for its dtype and its device, the CPU.
pub(super) fn empty(dtype: DType) -> Result<Tensor> {
    Ok(Tensor::zeros(0, dtype, &Device::Cpu)?)
}

impl Linear {
    /// Checks that the weight is `(out, in)` and the bias `(out)`, of one dtype and on one device. Errors use `name`.
    pub fn new(name: &str, weights: LinearWeights, out: usize, input: usize) -> Result<Self> {
        let check = |what: &str, tensor: &Tensor, want: &[usize]| {
            if tensor.dims() == want {
                return Ok(());
            }
            Err(Error::shape(format!("{name} {what}"), tensor.dims(), format!("{want:?}")))
        };
        check("weight", &weights.weight, &[out, input])?;
        if let Some(bias) = &weights.bias {
            check("bias", bias, &[out])?;
            same_dtype_and_device(&format!("{name} bias"), bias, &weights.weight)?;
        }
        let id = weights.weight.id();
        Ok(Self { weights: Weights::Tensors(weights), packed: Arc::default(), id, dims: [out, input] })
    }

    /// A layer in few bits with the rows of a table `(out, in)`, such as a language head that is tied to word
    /// embeddings, and a bias `(out)` on the CPU; another length is an error.
    pub fn from_rows(rows: &QuantizedRows, bias: Option<&Tensor>) -> Result<Self> {
        let (has_bias, dims, like) = (bias.is_some(), [rows.rows(), rows.width()], empty(DType::F32)?);
        let (id, packed) = (like.id(), Arc::new(OnceLock::from(pack_rows(rows, bias)?)));
        Ok(Self { weights: Weights::Packed { has_bias, like, outputs: 0..dims[0], exact: false }, packed, id, dims })
    }

    /// A projection `(b, s, in)` → `(b, s, out)` that `module` computes, such as a
    /// [`QMatMul`](candle_core::quantized::QMatMul) or a closure. Errors use `name`.
    ///
    /// The module gets contiguous inputs of this dtype on this device, and never an empty one. It runs here once, on a
    /// token of zeros: its output must be `(1, 1, out)`, of the same dtype and device, and if it tracks a gradient, the
    /// module counts as one with variables. [`weights`](Self::weights) of the layer is an error.
    ///
    /// # Errors
    /// An output of another shape, dtype or device, here or in a call. In a call, an output that does not track the
    /// gradient which its input tracks, or that tracks one where it did not here.
    pub fn from_module(
        name: &str,
        module: impl Module + Send + Sync + 'static,
        [out, input]: [usize; 2],
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let like = Tensor::zeros(0, dtype, device)?;
        let module = OfModule::new(name, Arc::new(module), [out, input], like)?;
        Self::other(Arc::new(module), [out, input])
    }

    /// `self(xs) + scale · xs Aᵀ Bᵀ` with `a` `(r, in)` and `b` `(out, r)`: a low-rank change of the weights that is
    /// computed beside them ([Hu 2021](https://arxiv.org/abs/2106.09685)). `a` and `b` may be variables, and of another
    /// floating dtype; [`weights`](Self::weights) has the change merged.
    ///
    /// # Errors
    /// `a` or `b` of another shape, or on another device.
    pub fn with_low_rank(&self, a: &Tensor, b: &Tensor, scale: f64) -> Result<Self> {
        Self::other(Arc::new(LowRank::new(self.clone(), a, b, scale, None)?), self.dims)
    }

    /// [`with_low_rank`](Self::with_low_rank) of a change of a weight whose rows `rows` are those of this layer; the
    /// layer itself if none of these is changed.
    pub(crate) fn with_change(&self, change: &LowRankChange, rows: &[usize]) -> Result<Self> {
        let of_change = |row: &usize| change.rows.contains(row).then(|| (row - change.rows.start) as u32);
        let chosen: Vec<u32> = rows.iter().filter_map(of_change).collect();
        if chosen.is_empty() {
            return Ok(self.clone());
        }
        if chosen.len() != self.out_features() {
            let found = format!("one of {} of {} outputs", chosen.len(), self.out_features());
            return Err(Error::value("the low-rank change of a projection", found, "one of all outputs"));
        }
        let in_order = chosen.len() == change.rows.len() && chosen.is_sorted();
        let chosen = (!in_order).then_some(chosen);
        let change = LowRank::new(self.clone(), &change.a, &change.b, change.scale, chosen)?;
        Self::other(Arc::new(change), self.dims)
    }

    fn other(weights: Arc<dyn Projection>, dims: [usize; 2]) -> Result<Self> {
        let id = Tensor::zeros(0, DType::U8, &Device::Cpu)?.id();
        Ok(Self { weights: Weights::Other(weights), packed: Arc::default(), id, dims })
    }

    /// The layer of some outputs of weights that are packed with others.
    pub(super) fn from_packed(
        packed: Arc<OnceLock<PackedWeights>>,
        outputs: Range<usize>,
        has_bias: bool,
        like: &Tensor,
        exact: bool,
    ) -> Result<Self> {
        let input = packed.get().map_or(0, PackedWeights::in_features);
        let (dims, like) = ([outputs.len(), input], empty(like.dtype())?);
        Ok(Self { id: like.id(), weights: Weights::Packed { has_bias, like, outputs, exact }, packed, dims })
    }

    /// A range of the outputs as a layer that shares the weights.
    pub(super) fn outputs(&self, range: Range<usize>) -> Result<Self> {
        let dims = [range.len(), self.dims[1]];
        match &self.weights {
            Weights::Tensors(weights) => {
                let weights = weights.narrow(range.start, range.len())?;
                Self::new("a part of a projection", weights, dims[0], dims[1])
            }
            Weights::Packed { has_bias, like, outputs, exact } => {
                let part = outputs.start + range.start..outputs.start + range.end;
                Self::from_packed(self.packed.clone(), part, *has_bias, like, *exact)
            }
            Weights::Other(other) => Self::other(other.outputs(range)?, dims),
        }
    }

    /// Elements of an output row.
    pub fn out_features(&self) -> usize {
        self.dims[0]
    }

    /// Elements of an input row.
    pub fn in_features(&self) -> usize {
        self.dims[1]
    }

    /// A tensor with the dtype and the device of the weights.
    #[doc(hidden)]
    pub fn like(&self) -> &Tensor {
        match &self.weights {
            Weights::Tensors(weights) => &weights.weight,
            Weights::Packed { like, .. } => like,
            Weights::Other(other) => other.like(),
        }
    }

    /// Identity of the weights: layers that share them have the same id.
    #[doc(hidden)]
    pub fn id(&self) -> TensorId {
        self.id
    }

    /// The weights: the tensors of the layer, or new ones if the layer holds nothing but what is packed.
    ///
    /// # Errors
    /// A module of the caller has none.
    pub fn weights(&self) -> Result<LinearWeights> {
        match &self.weights {
            Weights::Tensors(weights) => Ok(weights.clone()),
            Weights::Packed { has_bias, like, outputs, .. } => {
                unpack(self.packed()?, outputs.clone(), *has_bias, like.dtype())
            }
            Weights::Other(other) => other.weights(),
        }
    }

    /// The bias, if there is one, as [`weights`](Self::weights) has it.
    pub fn bias(&self) -> Result<Option<Tensor>> {
        match &self.weights {
            Weights::Tensors(weights) => Ok(weights.bias.clone()),
            Weights::Packed { has_bias: false, .. } => Ok(None),
            Weights::Packed { like, outputs, .. } => {
                unpack_bias(self.packed()?, outputs.clone(), like.dtype()).map(Some)
            }
            Weights::Other(other) => Ok(other.weights()?.bias),
        }
    }

    /// Whether a bias is added.
    pub fn has_bias(&self) -> bool {
        match &self.weights {
            Weights::Tensors(weights) => weights.bias.is_some(),
            Weights::Packed { has_bias, .. } => *has_bias,
            Weights::Other(other) => other.has_bias(),
        }
    }

    /// Whether a gradient of the weights is asked for.
    pub fn tracks_gradient(&self) -> bool {
        match &self.weights {
            Weights::Tensors(weights) => weights.tracks_gradient(),
            Weights::Packed { .. } => false,
            Weights::Other(other) => other.tracks_gradient(),
        }
    }

    /// Whether the layer is what [`new`](Self::new) and [`pack`](Self::pack) make: weights of its own, and nothing
    /// beside them.
    pub(crate) fn is_plain(&self) -> bool {
        match &self.weights {
            Weights::Tensors(_) => true,
            Weights::Packed { outputs, .. } => self.has_all(outputs),
            Weights::Other(_) => false,
        }
    }

    /// The weights as far as they may change, or the same of a layer with copies of them.
    pub(super) fn changing(&self) -> Result<Vec<Tensor>> {
        match &self.weights {
            Weights::Other(other) => other.changing(),
            _ if !self.is_plain() => Ok(Vec::new()),
            _ => {
                let LinearWeights { weight, bias } = self.weights()?;
                Ok([Some(weight), bias].into_iter().flatten().collect())
            }
        }
    }

    /// Whether these are all outputs of what is packed.
    fn has_all(&self, outputs: &Range<usize>) -> bool {
        self.packed.get().is_some_and(|packed| *outputs == (0..packed.out_features()))
    }

    /// The tensors of the layer, unless it holds nothing but what is packed.
    pub(super) fn tensors(&self) -> Option<&LinearWeights> {
        match &self.weights {
            Weights::Tensors(weights) => Some(weights),
            Weights::Packed { .. } | Weights::Other(_) => None,
        }
    }

    /// Whether the CPU kernel, or Accelerate or MKL in its place, can multiply with these weights. Weights that track a
    /// gradient are never packed, because they may change.
    #[doc(hidden)]
    pub fn can_pack(&self) -> bool {
        let cpu = self.like().device().is_cpu() && self.like().dtype() != DType::F64;
        cpu && self.is_plain() && !self.is_exact() && !self.tracks_gradient()
    }

    /// Packs the weights now and gives their tensors back, where they can be packed: they then take memory once. Only
    /// for tensors that nobody else holds, or nothing is won and changes of them are lost.
    #[doc(hidden)]
    pub fn pack(&mut self) -> Result<()> {
        if let Weights::Tensors(weights) = &self.weights
            && self.can_pack()
        {
            let (has_bias, like) = (weights.bias.is_some(), empty(weights.weight.dtype())?);
            self.packed()?;
            self.weights = Weights::Packed { has_bias, like, outputs: 0..self.out_features(), exact: false };
        }
        if let Weights::Packed { exact, .. } = &mut self.weights {
            *exact = false;
        }
        if let Weights::Other(other) = &self.weights
            && let Some(packed) = other.packed()?
        {
            self.weights = Weights::Other(packed);
        }
        Ok(())
    }

    /// Rounds the weights to a format of few bits, packs them, and gives their tensors back: what the layer holds
    /// after that does not follow variables. Inputs and outputs of products without a gradient are rounded to integers
    /// and back; where a gradient of the input is asked for, and in [training](Self::set_exact), the product is that of
    /// the dequantized weights, which [`weights`](Self::weights) returns as f32.
    ///
    /// Weights that the format cannot take ([`Quantization::fits`]) are packed as they are; a module of the caller, and
    /// a low-rank change beside the weights, stay what they are.
    ///
    /// # Errors
    /// A device other than the CPU; a weight that is not finite; not enough memory.
    pub fn quantize(&mut self, format: Quantization) -> Result<()> {
        if self.quantization() == Some(format) {
            return Ok(());
        }
        format.check_device(self.like())?;
        if let Weights::Other(other) = &self.weights {
            if let Some(quantized) = other.quantized(format)? {
                self.weights = Weights::Other(quantized);
            }
            return Ok(());
        }
        if !format.fits(self.in_features()) {
            return self.pack();
        }
        let packed = pack(&[&to_packable(self.weights()?)?], format.weight_format())?;
        let (like, has_bias, outputs) = (empty(DType::F32)?, self.has_bias(), 0..self.out_features());
        self.id = like.id(); // The numbers are others.
        self.weights = Weights::Packed { has_bias, like, outputs, exact: false };
        self.packed = Arc::new(OnceLock::from(packed));
        Ok(())
    }

    /// The format of the weights, if it has few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        match &self.weights {
            Weights::Tensors(_) => None,
            Weights::Packed { .. } => self.packed.get().and_then(|packed| Quantization::from_format(packed.format())),
            Weights::Other(other) => other.quantization(),
        }
    }

    /// Makes products of weights in few bits those of the dequantized weights, whatever tracks a gradient: in training
    /// all projections compute the function whose gradient follows. [`pack`](Self::pack) makes them as fast as before.
    #[doc(hidden)]
    pub fn set_exact(&mut self) {
        let is_in_few_bits = self.quantization().is_some();
        match &mut self.weights {
            Weights::Packed { exact, .. } => *exact = is_in_few_bits,
            Weights::Other(other) => *other = other.exact(),
            Weights::Tensors(_) => {}
        }
    }

    /// Whether [`set_exact`](Self::set_exact) has been called.
    pub(super) fn is_exact(&self) -> bool {
        matches!(self.weights, Weights::Packed { exact: true, .. })
    }

    /// Whether there are no tensors of the weights any more.
    #[doc(hidden)]
    pub fn is_only_packed(&self) -> bool {
        matches!(self.weights, Weights::Packed { .. })
    }

    /// Whether the weights have been packed.
    pub fn is_packed(&self) -> bool {
        self.packed.get().is_some()
    }

    /// The packed weights; call only if [`can_pack`](Self::can_pack).
    #[doc(hidden)]
    pub fn packed(&self) -> Result<&PackedWeights> {
        if let Some(packed) = self.packed.get() {
            return Ok(packed);
        }
        // Only tensors can be without a packed form.
        let packed = pack(&[&self.weights()?], format_of(self.like().dtype()))?;
        Ok(self.packed.get_or_init(|| packed))
    }

    /// `xs` `(b, s, in)` → `(b, s, out)` in `dtype`.
    pub fn forward_in_dtype(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        let weights = match &self.weights {
            _ if self.can_pack() && !xs.track_op() => return multiply(xs, self.packed()?, dtype),
            Weights::Tensors(weights) => weights,
            Weights::Packed { outputs, exact, .. } if *exact || xs.track_op() => {
                return packed_product(xs, &self.packed, outputs.clone(), dtype);
            }
            Weights::Packed { outputs, .. } => return multiply_outputs(xs, self.packed()?, outputs.clone(), dtype),
            Weights::Other(other) => return other.forward(xs, dtype),
        };
        let (b, s, _) = xs.dims3()?;
        // Round to a half type once, after the bias, as a fused `addmm` does.
        Ok(differentiable_product(xs, weights)?.to_dtype(dtype)?.reshape((b, s, self.out_features()))?)
    }

    /// [`forward_in_dtype`](Self::forward_in_dtype) of the dtype of `xs`. Where a GPU can add the bias in its next
    /// kernel, it is left out.
    #[doc(hidden)]
    pub fn forward_pending_bias(&self, xs: &Tensor) -> Result<PendingBias> {
        match self.tensors() {
            Some(LinearWeights { weight, bias: Some(bias) }) if supports_fused(xs, &[Some(weight), Some(bias)]) => {
                let (b, s, _) = xs.dims3()?;
                Ok(PendingBias { ys: product(xs, weight)?.reshape((b, s, ()))?, bias: Some(bias.clone()) })
            }
            _ => Ok(self.forward_in_dtype(xs, xs.dtype())?.into()),
        }
    }

    /// `activation(self(xs)) · gate(xs)`, `(b, s, in)` → `(b, s, out)`, with one fused kernel after the products;
    /// `None` where there is no such kernel.
    ///
    /// `both` is a layer with the outputs of `self` and of `gate`, and which half of it `self` is: one product for
    /// both.
    #[doc(hidden)]
    pub fn forward_activated(
        &self,
        xs: &Tensor,
        activation: Activation,
        gate: Option<&Self>,
        both: Option<(&Self, usize)>,
    ) -> Result<Option<Tensor>> {
        // Weights that are packed are on the CPU, which has no such kernel.
        let (Some(own), factor) = (self.tensors(), gate.map(Self::tensors)) else { return Ok(None) };
        let factor = factor.flatten();
        let parts = [Some(own), factor].into_iter().flatten();
        let tensors: Vec<_> = parts.flat_map(|part| [Some(&part.weight), part.bias.as_ref()]).collect();
        if gate.is_some() != factor.is_some() || !supports_fused(xs, &tensors) {
            return Ok(None);
        }
        let (b, s, _) = xs.dims3()?;
        let out = self.out_features();
        let (ys, factors) = match both.and_then(|(both, half)| Some((both.tensors()?, half))) {
            Some((both, half)) => {
                let all = product(xs, &both.weight)?;
                (all.narrow(1, half * out, out)?, Some(all.narrow(1, (1 - half) * out, out)?))
            }
            None => (product(xs, &own.weight)?, factor.map(|factor| product(xs, &factor.weight)).transpose()?),
        };
        let activated = Activated {
            activation,
            xs: &ys,
            bias: own.bias.as_ref(),
            gate: factors.as_ref(),
            gate_bias: factor.and_then(|factor| factor.bias.as_ref()),
        };
        let Some(ys) = activated.fused()? else { return Ok(None) };
        Ok(Some(ys.reshape((b, s, out))?))
    }
}

/// `xs` `(…, in)` → `(…, out)` in the dtype of `xs`.
impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let mut dims = xs.dims().to_vec();
        let last = dims.last_mut().filter(|last| **last == self.in_features()).map(|last| *last = self.out_features());
        if last.is_none() {
            return Err(Error::shape("the input", xs.dims(), format!("(…, {})", self.in_features())).into());
        }
        // Views have any size: it is checked before one is copied.
        let rows = element_count("the input", &dims[..dims.len() - 1]).map_err(Error::from)?;
        let elements = element_count("the input", xs.dims()).map_err(Error::from)?;
        if xs.device().is_cpu() && !xs.is_contiguous() {
            check_allocation::<f64>("a copy of the input", elements).map_err(Error::from)?;
        }
        let ys = self.forward_in_dtype(&xs.reshape((1usize, rows, self.in_features()))?, xs.dtype())?;
        ys.reshape(dims)
    }
}

impl Linear {
    /// Whether both have the same weights, bit for bit, held in the same way.
    #[doc(hidden)]
    pub fn has_same_weights(&self, other: &Self) -> Result<bool> {
        let alike = |other: &Self| self.dims == other.dims && self.has_bias() == other.has_bias();
        if !alike(other) || self.like().dtype() != other.like().dtype() {
            return Ok(false);
        }
        match (&self.weights, &other.weights) {
            (Weights::Packed { outputs: own, .. }, Weights::Packed { outputs, .. }) => {
                Ok(own == outputs && self.packed()?.has_same_bits(other.packed()?))
            }
            (Weights::Tensors(own), Weights::Tensors(other)) if !own.tracks_gradient() && !other.tracks_gradient() => {
                let same_bias = match (&own.bias, &other.bias) {
                    (Some(own), Some(other)) => same_elements(own, other)?,
                    _ => true,
                };
                Ok(same_bias && same_elements(&own.weight, &other.weight)?)
            }
            _ => Ok(false),
        }
    }
}

impl ShareWeights for Linear {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        if let Weights::Other(own) = &self.weights {
            if let Some(shared) = own.share_weights(other)? {
                self.weights = Weights::Other(shared);
            }
        } else if self.has_same_weights(other)? {
            *self = other.clone();
        }
        Ok(())
    }
}

map_fields!(LinearWeights { weight, bias });

impl MapTensors for Linear {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        if let Weights::Other(other) = &self.weights {
            return Self::other(other.map_tensors(f)?, self.dims);
        }
        // What is packed with others, or in few bits, stays so: it cannot change, and copies would take more memory.
        if !self.is_plain() || self.quantization().is_some() {
            return Ok(self.clone());
        }
        let weights = self.weights()?.map_tensors(f)?;
        let id = weights.weight.id();
        Ok(Self { weights: Weights::Tensors(weights), packed: Arc::default(), id, dims: self.dims })
    }
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bias = if self.has_bias() { ", bias" } else { "" };
        let format = self.quantization().map_or(self.like().dtype().as_str().to_string(), |format| format.to_string());
        write!(f, "Linear({:?}, {format}{bias})", self.dims)
    }
}

/// Weights in a dtype that the packer reads: f64 becomes f32.
pub(super) fn to_packable(weights: LinearWeights) -> Result<LinearWeights> {
    match weights.weight.dtype() {
        DType::F64 => weights.map_tensors(&mut |tensor| Ok(tensor.to_dtype(DType::F32)?)),
        _ => Ok(weights),
    }
}

/// `xs` `(b, s, in)` projected to `(b · s, out)` in [`accumulate_dtype`], with gradients.
pub(super) fn differentiable_product(xs: &Tensor, weights: &LinearWeights) -> Result<Tensor> {
    Ok(match (trained(xs, weights)?, &weights.bias) {
        (Some(ys), _) => ys,
        (None, Some(bias)) => add_bias(product(xs, &weights.weight)?, bias)?,
        (None, None) => product(xs, &weights.weight)?,
    })
}

/// `xs` `(b, s, in)` times `weight` `(out, in)` → `(b · s, out)`, in [`accumulate_dtype`].
fn product(xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (b, s, input) = xs.dims3()?;
    let wide = accumulate_dtype(weight);
    check_product(xs, weight)?;
    let xs = xs.to_dtype(wide)?.contiguous()?.reshape((b * s, input))?;
    Ok(xs.matmul(&weight.to_dtype(wide)?.t()?)?)
}

/// The dtype in which products are accumulated, and in which queries, keys and values are kept: on the CPU f32 for half
/// types, because candle's matmul would round each partial sum; GPUs accumulate half types in f32 themselves. `like`
/// has the dtype and the device of the weights.
pub fn accumulate_dtype(like: &Tensor) -> DType {
    match like.dtype() {
        DType::F16 | DType::BF16 if like.device().is_cpu() => DType::F32,
        dtype => dtype,
    }
}

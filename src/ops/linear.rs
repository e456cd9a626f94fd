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
use std::sync::Arc;

use candle_attention_kernels::{PackedWeights, QuantizedRows};
use candle_core::{DType, Device, Tensor, TensorId};
use candle_nn::Module;

use crate::ensure;
use crate::error::{Error, Result};
use crate::map_fields;
use crate::ops::caller_module::CallerModule;
use crate::ops::dense::Dense;
use crate::ops::low_rank::LowRank;
use crate::ops::packed::{Packed, empty};
use crate::ops::projection::{Projection, has_kernels};
use crate::ops::quantization::Quantization;
use crate::tensor::{MapTensors, check_allocation, check_shape, element_count, same_dtype_and_device};
use crate::tensor::{ShareWeights, same_elements};
use crate::weights::LinearWeights;
#[cfg(feature = "checkpoints")]
use crate::weights::LowRankChange;

/// A linear layer `y = x Wᵀ + b` with `W` `(out, in)` and `b` `(out)`, or a module that replaces it:
/// [`from_module`](Self::from_module), [`with_low_rank`](Self::with_low_rank).
#[derive(Clone)]
pub struct Linear {
    projection: Arc<dyn Projection>,
    /// The id of the weight that the layer was made from.
    id: TensorId,
    /// `(out, in)`.
    dims: [usize; 2],
}

impl Linear {
    /// Checks that the weight is `(out, in)` and the bias `(out)`, of one dtype and on one device. Errors use `name`.
    pub fn new(name: &str, weights: LinearWeights, out: usize, input: usize) -> Result<Self> {
        check_shape(&format!("{name} weight"), &weights.weight, &[out, input])?;
        if let Some(bias) = &weights.bias {
            let name = format!("{name} bias");
            check_shape(&name, bias, &[out])?;
            same_dtype_and_device(&name, bias, &weights.weight)?;
        }
        Self::from_projection(Arc::new(Dense::new(weights)), [out, input])
    }

    /// A layer in few bits with the rows of a table `(out, in)`, such as a language head that is tied to word
    /// embeddings, and a bias `(out)` on the CPU; another length is an error.
    pub fn from_rows(rows: &QuantizedRows, bias: Option<&Tensor>) -> Result<Self> {
        Self::from_projection(Arc::new(Packed::from_rows(rows, bias)?), [rows.rows(), rows.width()])
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
        let module = CallerModule::new(name, Arc::new(module), [out, input], like)?;
        Self::from_projection(Arc::new(module), [out, input])
    }

    /// `self(xs) + scale · xs Aᵀ Bᵀ` with `a` `(r, in)` and `b` `(out, r)`: a low-rank change of the weights that is
    /// computed beside them ([Hu 2021](https://arxiv.org/abs/2106.09685)). `a` and `b` may be variables, and of another
    /// floating dtype; [`weights`](Self::weights) has the change merged.
    ///
    /// # Errors
    /// `a` or `b` of another shape, or on another device.
    pub fn with_low_rank(&self, a: &Tensor, b: &Tensor, scale: f64) -> Result<Self> {
        Self::from_projection(Arc::new(LowRank::new(self.clone(), a, b, scale, None)?), self.dims)
    }

    /// [`with_low_rank`](Self::with_low_rank) of a change of a weight whose rows `rows` are those of this layer; the
    /// layer itself if none of these is changed.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn with_change(&self, change: &LowRankChange, rows: &[usize]) -> Result<Self> {
        let changed_row = |row: &usize| change.rows.contains(row).then(|| (row - change.rows.start) as u32);
        let chosen: Vec<u32> = rows.iter().filter_map(changed_row).collect();
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
        Self::from_projection(Arc::new(change), self.dims)
    }

    /// A layer of its own, whose id is that of its tensors, if it has some.
    fn from_projection(projection: Arc<dyn Projection>, dims: [usize; 2]) -> Result<Self> {
        let id = match projection.tensors() {
            Some(weights) => weights.weight.id(),
            None => empty(DType::F32)?.id(),
        };
        Ok(Self { projection, id, dims })
    }

    /// The layer of some outputs of weights that are packed with others and stand for tensors of `dtype`.
    pub(super) fn from_packed(
        packed: Arc<PackedWeights>,
        outputs: Range<usize>,
        has_bias: bool,
        dtype: DType,
    ) -> Result<Self> {
        let dims = [outputs.len(), packed.in_features()];
        Self::from_projection(Arc::new(Packed::new(packed, has_bias, dtype)?.with_outputs(outputs)), dims)
    }

    /// A range of the outputs as a layer that shares the weights.
    pub(super) fn outputs(&self, range: Range<usize>) -> Result<Self> {
        let dims = [range.len(), self.dims[1]];
        Self::from_projection(self.projection.outputs(range)?, dims)
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
    pub(crate) fn like(&self) -> &Tensor {
        self.projection.like()
    }

    /// Identity of the weights: layers that share them have the same id.
    pub(crate) fn id(&self) -> TensorId {
        self.id
    }

    /// The weights: the tensors of the layer, or new ones if the layer holds nothing but what is packed.
    ///
    /// # Errors
    /// A module of the caller has none.
    pub fn weights(&self) -> Result<LinearWeights> {
        self.projection.weights()
    }

    /// The bias, if there is one, as [`weights`](Self::weights) has it.
    pub fn bias(&self) -> Result<Option<Tensor>> {
        self.projection.bias()
    }

    /// Whether a bias is added.
    pub fn has_bias(&self) -> bool {
        self.projection.has_bias()
    }

    /// Whether a gradient of the weights is asked for.
    pub fn tracks_gradient(&self) -> bool {
        self.projection.tracks_gradient()
    }

    /// Whether the layer is what [`new`](Self::new) and [`pack`](Self::pack) make: weights of its own, and nothing
    /// beside them.
    pub(crate) fn is_plain(&self) -> bool {
        self.projection.is_plain()
    }

    /// The weights that may change, or copies of them in a copy of the layer.
    pub(super) fn changing(&self) -> Result<Vec<Tensor>> {
        self.projection.changing()
    }

    /// Whether the CPU kernel, or Accelerate or MKL in its place, can multiply with these weights: they are on the CPU,
    /// in f32, f16, bf16 or few bits, with nothing beside them. Weights that track a gradient are never packed, because
    /// they may change.
    pub fn can_pack(&self) -> bool {
        has_kernels(self.like()) && self.is_plain() && !self.is_exact() && !self.tracks_gradient()
    }

    /// Packs the weights for the CPU kernels now and drops their tensors, if [`can_pack`](Self::can_pack): they then
    /// take memory once. Other weights stay as they are. Only for tensors that nobody else holds, or nothing is won and
    /// changes of them are lost.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn pack(&mut self) -> Result<()> {
        self.projection = self.projection.to_packed()?.unwrap_or(self.projection.clone());
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
        if let Some(quantized) = self.projection.to_quantized(format)? {
            self.projection = quantized;
        }
        if self.quantization().is_some() {
            self.id = empty(DType::F32)?.id(); // The numbers are others.
        }
        Ok(())
    }

    /// The format of the weights, if it has few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        self.projection.quantization()
    }

    /// Makes products of weights in few bits those of the dequantized weights, whatever tracks a gradient: in training
    /// all projections compute the function whose gradient follows. [`pack`](Self::pack) makes them as fast as before.
    /// Other weights stay as they are.
    pub fn set_exact(&mut self) {
        self.projection = self.projection.to_exact().unwrap_or(self.projection.clone());
    }

    /// Whether [`set_exact`](Self::set_exact) has been called.
    pub(crate) fn is_exact(&self) -> bool {
        self.projection.is_exact()
    }

    /// Whether the weights have been packed.
    pub fn is_packed(&self) -> bool {
        self.projection.is_packed()
    }

    /// The packed weights of `candle-attention-kernels`, which multiply rows in buffers; they are packed on first use.
    ///
    /// # Errors
    /// The weights cannot be packed ([`can_pack`](Self::can_pack)), or there is not enough memory.
    pub fn packed(&self) -> Result<&PackedWeights> {
        self.projection.packed()
    }

    /// `xs` `(b, s, in)` → `(b, s, out)` in `dtype`.
    pub fn forward_in_dtype(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        self.projection.forward(xs, dtype)
    }

    /// Whether both have the same weights, bit for bit, held in the same way.
    pub(super) fn has_same_weights(&self, other: &Self) -> Result<bool> {
        let alike = |other: &Self| self.dims == other.dims && self.has_bias() == other.has_bias();
        if !alike(other) || self.like().dtype() != other.like().dtype() {
            return Ok(false);
        }
        let (own, other) = (&self.projection, &other.projection);
        if let (Some((own, outputs)), Some((other, others))) = (own.packed_outputs(), other.packed_outputs()) {
            return Ok(outputs == others && own.has_same_bits(other));
        }
        let (Some(own), Some(other)) = (own.tensors(), other.tensors()) else { return Ok(false) };
        if own.tracks_gradient() || other.tracks_gradient() {
            return Ok(false);
        }
        let same_bias = match (&own.bias, &other.bias) {
            (Some(own), Some(other)) => same_elements(own, other)?,
            _ => true,
        };
        Ok(same_bias && same_elements(&own.weight, &other.weight)?)
    }
}

/// `xs` `(…, in)` → `(…, out)` in the dtype of `xs`.
impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let mut dims = xs.dims().to_vec();
        let last = dims.last_mut().filter(|last| **last == self.in_features()).map(|last| *last = self.out_features());
        ensure!(last.is_some(), Error::shape("the input", xs.dims(), format!("(…, {})", self.in_features())).into());
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

impl ShareWeights for Linear {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        if let Some(shared) = self.projection.share_weights(other)? {
            self.projection = shared;
        } else if self.has_same_weights(other)? {
            *self = other.clone();
        }
        Ok(())
    }
}

map_fields!(LinearWeights { weight, bias });

impl MapTensors for Linear {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        match self.projection.map_tensors(f)? {
            Some(mapped) => Self::from_projection(mapped, self.dims),
            None => Ok(self.clone()),
        }
    }
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bias = if self.has_bias() { ", bias" } else { "" };
        let format = self.quantization().map_or(self.like().dtype().as_str().to_string(), |format| format.to_string());
        write!(f, "Linear({:?}, {format}{bias})", self.dims)
    }
}

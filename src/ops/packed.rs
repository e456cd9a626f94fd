//! A projection by weights that are packed for the CPU kernels, of which no tensors are left.

use std::ops::Range;
use std::sync::Arc;

use candle_attention_kernels::{PackedWeights, QuantizedRows};
use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::ops::dense::Dense;
use crate::ops::pack::{multiply, multiply_outputs, pack, pack_rows, unpack, unpack_bias};
use crate::ops::packed_product::packed_product;
use crate::ops::projection::Projection;
use crate::ops::quantization::Quantization;
use crate::tensor::MapTensors;
use crate::weights::LinearWeights;

/// A product with packed weights, or with some of their outputs.
#[derive(Clone)]
pub(super) struct Packed {
    weights: Arc<PackedWeights>,
    /// The outputs of the projection: all that are packed in one, or some.
    outputs: Range<usize>,
    has_bias: bool,
    /// Whether products are those of the dequantized weights.
    is_exact: bool,
    like: Tensor,
}

/// A tensor without elements, for its dtype and its device, the CPU.
pub(super) fn empty(dtype: DType) -> Result<Tensor> {
    Ok(Tensor::zeros(0, dtype, &Device::Cpu)?)
}

impl Packed {
    /// The product with all outputs of weights that stand for tensors of `dtype`.
    pub(super) fn new(weights: Arc<PackedWeights>, has_bias: bool, dtype: DType) -> Result<Self> {
        let outputs = 0..weights.out_features();
        Ok(Self { weights, outputs, has_bias, is_exact: false, like: empty(dtype)? })
    }

    /// Weights rounded to a format of few bits that [can take](Quantization::fits) them.
    pub(super) fn quantize(weights: LinearWeights, format: Quantization) -> Result<Self> {
        let has_bias = weights.bias.is_some();
        let packed = pack(&[&to_packable(weights)?], format.weight_format())?;
        Self::new(Arc::new(packed), has_bias, DType::F32)
    }

    /// The rows of a table in its format.
    pub(super) fn from_rows(rows: &QuantizedRows, bias: Option<&Tensor>) -> Result<Self> {
        Self::new(Arc::new(pack_rows(rows, bias)?), bias.is_some(), DType::F32)
    }

    /// The product with a range of the outputs.
    pub(super) fn with_outputs(self, outputs: Range<usize>) -> Self {
        Self { outputs, ..self }
    }

    fn has_all_outputs(&self) -> bool {
        self.outputs == (0..self.weights.out_features())
    }
}

impl Projection for Packed {
    fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        if self.is_exact || xs.track_op() {
            packed_product(xs, &self.weights, self.outputs.clone(), dtype)
        } else if self.has_all_outputs() {
            multiply(xs, &self.weights, dtype)
        } else {
            multiply_outputs(xs, &self.weights, self.outputs.clone(), dtype)
        }
    }

    fn like(&self) -> &Tensor {
        &self.like
    }

    fn tracks_gradient(&self) -> bool {
        false
    }

    fn has_bias(&self) -> bool {
        self.has_bias
    }

    fn weights(&self) -> Result<LinearWeights> {
        unpack(&self.weights, self.outputs.clone(), self.has_bias, self.like.dtype())
    }

    fn bias(&self) -> Result<Option<Tensor>> {
        let unpacked = || unpack_bias(&self.weights, self.outputs.clone(), self.like.dtype());
        self.has_bias.then(unpacked).transpose()
    }

    fn changing(&self) -> Result<Vec<Tensor>> {
        Ok(if self.has_all_outputs() { self.weights()?.to_tensors() } else { Vec::new() })
    }

    fn outputs(&self, outputs: Range<usize>) -> Result<Arc<dyn Projection>> {
        let start = self.outputs.start;
        Ok(Arc::new(self.clone().with_outputs(start + outputs.start..start + outputs.end)))
    }

    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Option<Arc<dyn Projection>>> {
        // Weights that are packed with others, or in few bits, stay so: they cannot change, and copies take memory.
        if !self.has_all_outputs() || self.quantization().is_some() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Dense::new(self.weights()?.map_tensors(f)?))))
    }

    fn to_packed(&self) -> Result<Option<Arc<dyn Projection>>> {
        Ok(Some(Arc::new(Self { is_exact: false, ..self.clone() })))
    }

    fn to_quantized(&self, format: Quantization) -> Result<Option<Arc<dyn Projection>>> {
        if !format.fits(self.weights.in_features()) {
            return self.to_packed();
        }
        Ok(Some(Arc::new(Self::quantize(self.weights()?, format)?)))
    }

    fn to_exact(&self) -> Option<Arc<dyn Projection>> {
        Some(Arc::new(Self { is_exact: self.quantization().is_some(), ..self.clone() }))
    }

    fn quantization(&self) -> Option<Quantization> {
        Quantization::from_format(self.weights.format())
    }

    fn packed_outputs(&self) -> Option<(&PackedWeights, Range<usize>)> {
        Some((&self.weights, self.outputs.clone()))
    }

    fn is_exact(&self) -> bool {
        self.is_exact
    }

    fn is_plain(&self) -> bool {
        self.has_all_outputs()
    }

    fn packed(&self) -> Result<&PackedWeights> {
        Ok(&self.weights)
    }
}

/// Weights in a dtype that the packer reads: f64 becomes f32.
pub(super) fn to_packable(weights: LinearWeights) -> Result<LinearWeights> {
    match weights.weight.dtype() {
        DType::F64 => weights.map_tensors(&mut |tensor| Ok(tensor.to_dtype(DType::F32)?)),
        _ => Ok(weights),
    }
}

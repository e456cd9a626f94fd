//! Projections that are computed otherwise than by one product with weights: a module of the caller, or the weights of
//! a layer and a low-rank change beside them.
//!
//! A [`Linear`] holds one behind an `Arc`, so that neither it nor attention has a type parameter.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use candle_nn::Module;

use crate::error::{Error, Result};
use crate::ops::linear::Linear;
use crate::ops::quantization::Quantization;
use crate::tensor::same_dtype_and_device;
use crate::weights::LinearWeights;

/// A projection of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProjectionKind {
    /// That of the queries, `(h · d, query_size)`.
    Query,
    /// That of the keys, `(h_kv · d, key_size)`; of the values, too, in a layer whose keys are its values.
    Key,
    /// That of the values, `(h_kv · d_v, value_size)`.
    Value,
    /// One for queries, keys and values, its outputs in this order.
    QueryKeyValue,
    /// That of the gate of the output, `(h · d_v, query_size)` or `(h, query_size)`.
    Gate,
    /// The output projection, `(output_size, h · d_v)`.
    Output,
}

impl ProjectionKind {
    /// Its name in this crate's own layout.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q_proj",
            Self::Key => "k_proj",
            Self::Value => "v_proj",
            Self::QueryKeyValue => "qkv_proj",
            Self::Gate => "gate_proj",
            Self::Output => "o_proj",
        }
    }
}

impl fmt::Display for ProjectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What computes a projection.
pub(super) trait Projection: Send + Sync {
    /// `xs` `(b, s, in)` → `(b, s, out)` in `dtype`.
    fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor>;

    /// A tensor with the dtype and the device of the projection.
    fn like(&self) -> &Tensor;

    /// Whether a gradient of something other than the input is asked for.
    fn tracks_gradient(&self) -> bool;

    fn has_bias(&self) -> bool;

    /// The weights of one product that computes the same.
    fn weights(&self) -> Result<LinearWeights>;

    /// The tensors among them that may change, as far as they are known.
    fn changing(&self) -> Result<Vec<Tensor>>;

    /// The projection to a range of the outputs alone.
    fn outputs(&self, outputs: Range<usize>) -> Result<Arc<dyn Projection>>;

    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Arc<dyn Projection>>;

    /// The same with the weights of `other` in the place of equal ones; `None` without weights.
    fn share_weights(&self, other: &Linear) -> Result<Option<Arc<dyn Projection>>>;

    /// The same with its weights packed, as [`Linear::pack`] does; `None` without weights.
    fn packed(&self) -> Result<Option<Arc<dyn Projection>>>;

    /// The same with its weights in few bits; `None` without weights.
    fn quantized(&self, format: Quantization) -> Result<Option<Arc<dyn Projection>>>;

    /// The format of its weights, if it has few bits.
    fn quantization(&self) -> Option<Quantization>;

    /// The same with products of the dequantized weights, as [`Linear::set_exact`] makes it.
    fn exact(&self) -> Arc<dyn Projection>;
}

/// A module of the caller.
#[derive(Clone)]
pub(super) struct OfModule {
    name: String,
    module: Arc<dyn Module + Send + Sync>,
    /// Those of the module that are the outputs of the projection.
    outputs: Range<usize>,
    /// `[out, in]` of the module.
    dims: [usize; 2],
    like: Tensor,
    tracks_gradient: bool,
}

impl OfModule {
    /// Runs the module on one token of zeros. What it returns shows its shape and dtype, and whether it has variables.
    pub(super) fn new(
        name: &str,
        module: Arc<dyn Module + Send + Sync>,
        dims: [usize; 2],
        like: Tensor,
    ) -> Result<Self> {
        let name = name.to_string();
        let mut new = Self { name, module, outputs: 0..dims[0], dims, like, tracks_gradient: false };
        let token = Tensor::zeros((1, 1, dims[1]), new.like.dtype(), new.like.device())?;
        new.tracks_gradient = new.run(&token)?.track_op();
        Ok(new)
    }

    /// The output of the module for `xs` `(b, s, in)`, checked.
    fn run(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, s, input) = xs.dims3()?;
        let [out, _] = self.dims;
        if b * s * input == 0 {
            return Ok(Tensor::zeros((b, s, out), xs.dtype(), xs.device())?);
        }
        let failed = |error: candle_core::Error| {
            let message = error.to_string();
            let first = message.lines().next().unwrap_or_default();
            error.context(format!("{}, a module of the caller: {first}", self.name))
        };
        let ys = self.module.forward(xs).map_err(failed)?;
        let what = format!("the output of {}, a module of the caller,", self.name);
        if ys.dims() != [b, s, out] {
            let expected = format!("[{b}, {s}, {out}] for an input {:?}", xs.dims());
            return Err(Error::shape(what, ys.dims(), expected));
        }
        same_dtype_and_device(&what, &ys, &self.like)?;
        if xs.track_op() && !ys.track_op() {
            let expected = "one that tracks the gradient which its input tracks, or a detached input";
            return Err(Error::value(what.trim_end_matches(','), "a tensor without a gradient", expected));
        }
        Ok(ys)
    }

    fn without_weights(&self) -> Error {
        let expected = "a projection of weights, which can be read, written, merged, pruned and copied";
        Error::value(&self.name, "a module of the caller", expected)
    }
}

impl Projection for OfModule {
    fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        let ys = self.run(&xs.to_dtype(self.like.dtype())?.contiguous()?)?;
        if ys.track_op() && !xs.track_op() && !self.tracks_gradient {
            let expected = "none, as when it was put into the layer: put it in again";
            return Err(Error::value(
                format!("{}, a module of the caller,", self.name),
                "one with variables",
                expected,
            ));
        }
        let ys = if self.outputs.len() == self.dims[0] {
            ys
        } else {
            ys.narrow(2, self.outputs.start, self.outputs.len())?.contiguous()?
        };
        Ok(ys.to_dtype(dtype)?)
    }

    fn like(&self) -> &Tensor {
        &self.like
    }

    fn tracks_gradient(&self) -> bool {
        self.tracks_gradient
    }

    fn has_bias(&self) -> bool {
        false
    }

    fn weights(&self) -> Result<LinearWeights> {
        Err(self.without_weights())
    }

    fn changing(&self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }

    fn outputs(&self, outputs: Range<usize>) -> Result<Arc<dyn Projection>> {
        let start = self.outputs.start;
        Ok(Arc::new(Self { outputs: start + outputs.start..start + outputs.end, ..self.clone() }))
    }

    fn map_tensors(&self, _: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Arc<dyn Projection>> {
        // Without variables it is as fixed as packed weights are.
        if self.tracks_gradient { Err(self.without_weights()) } else { Ok(Arc::new(self.clone())) }
    }

    fn share_weights(&self, _: &Linear) -> Result<Option<Arc<dyn Projection>>> {
        Ok(None)
    }

    fn packed(&self) -> Result<Option<Arc<dyn Projection>>> {
        Ok(None)
    }

    fn quantized(&self, _: Quantization) -> Result<Option<Arc<dyn Projection>>> {
        Ok(None)
    }

    fn quantization(&self) -> Option<Quantization> {
        None
    }

    fn exact(&self) -> Arc<dyn Projection> {
        Arc::new(self.clone())
    }
}

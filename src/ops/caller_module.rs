//! A projection that a module of the caller computes.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use candle_nn::Module;

use crate::error::{Error, Result};
use crate::ops::projection::Projection;
use crate::tensor::same_dtype_and_device;
use crate::weights::LinearWeights;

/// A module of the caller.
#[derive(Clone)]
pub(super) struct CallerModule {
    name: String,
    module: Arc<dyn Module + Send + Sync>,
    /// The outputs of the module that are those of the projection.
    outputs: Range<usize>,
    /// `[out, in]` of the module.
    dims: [usize; 2],
    like: Tensor,
    tracks_gradient: bool,
}

impl CallerModule {
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

impl Projection for CallerModule {
    fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        let ys = self.run(&xs.to_dtype(self.like.dtype())?.contiguous()?)?;
        if ys.track_op() && !xs.track_op() && !self.tracks_gradient {
            let expected = "none, as when it was put into the layer: put it in again";
            let what = format!("{}, a module of the caller,", self.name);
            return Err(Error::value(what, "one with variables", expected));
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

    fn outputs(&self, outputs: Range<usize>) -> Result<Arc<dyn Projection>> {
        let start = self.outputs.start;
        Ok(Arc::new(Self { outputs: start + outputs.start..start + outputs.end, ..self.clone() }))
    }

    fn map_tensors(&self, _: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Option<Arc<dyn Projection>>> {
        // Without variables it is as fixed as packed weights are.
        if self.tracks_gradient { Err(self.without_weights()) } else { Ok(None) }
    }
}

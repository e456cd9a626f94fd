//! Stand-ins for the kernels in a build without the feature `cuda`. They are never called, because no tensor is on an
//! NVIDIA GPU then.

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::ops::problem::{Activated, Norm};

fn unavailable<T>() -> Result<T> {
    let reason = "the crate was built without its feature `cuda`".to_string();
    Err(Error::Backend { backend: "cuda".into(), reason })
}

pub(crate) fn norm(_: &Norm) -> Result<(Option<Tensor>, Tensor)> {
    unavailable()
}

pub(crate) fn activated(_: &Activated) -> Result<Tensor> {
    unavailable()
}

pub(crate) fn rotate(_: &Tensor, _: [&Tensor; 2], _: bool) -> Result<Tensor> {
    unavailable()
}

//! An output that a kernel has computed, as an operation of candle's graph.
//!
//! Candle asks an operation for its output while it adds it to the graph. Here that is computed before, so that one
//! operation serves all kernels, and each of them is two functions: its output, and its gradients.

use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor};

use crate::error::{Error, Result};

/// The `output` of the operation `name` on one to three tensors of the CPU, in f32, so that a gradient flows to them.
///
/// `gradients` gives those of the arguments, from the arguments, the output and its gradient; `None` for an argument
/// that needs none.
pub(crate) fn computed<const N: usize>(
    name: &'static str,
    output: (Vec<f32>, Shape),
    arguments: [&Tensor; N],
    gradients: impl Fn([&Tensor; N], &Tensor, &Tensor) -> Result<[Option<Tensor>; N]> + Send + Sync + 'static,
) -> Result<Tensor> {
    const { assert!(1 <= N && N <= 3, "an operation of candle has one to three arguments") };
    // Candle's operation has three arguments; to those beyond `N` no gradient flows.
    let [first, second, third] = std::array::from_fn(|i| arguments[if i < N { i } else { 0 }]);
    let output = Mutex::new(Some((CpuStorage::F32(output.0), output.1)));
    Ok(first.apply_op3(second, third, Computed::<_, N> { name, output, gradients })?)
}

struct Computed<F, const N: usize> {
    name: &'static str,
    /// The output, until it becomes a tensor.
    output: Mutex<Option<(CpuStorage, Shape)>>,
    gradients: F,
}

impl<F: Fn([&Tensor; N], &Tensor, &Tensor) -> Result<[Option<Tensor>; N]>, const N: usize> CustomOp3
    for Computed<F, N>
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner).take();
        let what = || format!("the output of {}", self.name);
        output.ok_or_else(|| Error::value(what(), "taken", "one that is taken once").into())
    }

    fn bwd(
        &self,
        first: &Tensor,
        second: &Tensor,
        third: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let arguments = [first, second, third];
        let gradients = (self.gradients)(std::array::from_fn(|i| arguments[i]), output, gradient)?;
        let mut gradients = gradients.into_iter();
        let mut next = || gradients.next().flatten();
        Ok((next(), next(), next()))
    }
}

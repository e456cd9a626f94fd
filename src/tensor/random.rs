//! Random tensors for the tests of this crate, the same in every run.

use candle_core::{Device, Tensor};

pub use crate::support::Random;

impl Random {
    /// Uniform in `[-2, 2)`, as an f32 tensor on the CPU.
    pub fn tensor(&mut self, dims: &[usize]) -> Tensor {
        Tensor::from_vec(self.values::<f32>(dims.iter().product()), dims, &Device::Cpu).unwrap()
    }
}

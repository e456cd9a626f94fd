//! Random inputs and layers.

use std::collections::HashMap;

use candle_attention::{AttentionConfig, MultiHeadAttention};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

/// A random number generator with a fixed seed: the same numbers in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Uniform in `[0, 1)` (xorshift64*, Vigna 2016).
    pub fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[-1, 1)`, as a tensor.
    pub fn tensor(&mut self, dims: &[usize], dtype: DType) -> Tensor {
        let count = dims.iter().product();
        let numbers: Vec<f64> = (0..count).map(|_| self.uniform() * 2.0 - 1.0).collect();
        Tensor::from_vec(numbers, dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
    }

    /// Zeros and ones, as a u8 tensor.
    pub fn booleans(&mut self, dims: &[usize], share_of_ones: f64) -> Tensor {
        let count = dims.iter().product();
        let numbers: Vec<u8> = (0..count).map(|_| u8::from(self.uniform() < share_of_ones)).collect();
        Tensor::from_vec(numbers, dims, &Device::Cpu).unwrap()
    }
}

/// A layer with random weights, uniform in `[-scale, scale)`. They are no variables, so the fused kernels run.
pub fn random_layer(config: &AttentionConfig, scale: f64, random: &mut Random) -> MultiHeadAttention {
    let map = VarMap::new();
    MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
    let data = map.data().lock().unwrap();
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    let mut tensor = |name: &String| (random.tensor(data[name].dims(), DType::F32) * scale).unwrap();
    let tensors: HashMap<String, Tensor> = names.into_iter().map(|name| (name.clone(), tensor(name))).collect();
    MultiHeadAttention::load(config, VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)).unwrap()
}

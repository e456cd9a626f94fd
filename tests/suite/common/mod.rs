//! What the tests share: fixtures, and one way to compare tensors.

use std::path::{Path, PathBuf};

use candle_attention::checkpoint::Checkpoint;
use candle_core::{DType, Device, Tensor};

/// Largest absolute difference from an existing system in f32.
pub const SEED: f64 = 1e-6;
/// Agreement of a whole layer or encoder with the library that owns it, in f32.
pub const LAYER: f64 = 1e-5;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A fixture file, its tensors read by name.
pub struct Golden(pub Checkpoint);

impl Golden {
    pub fn open(name: &str) -> Self {
        Self(Checkpoint::open(fixture(name)).unwrap())
    }

    pub fn get(&self, name: &str) -> Tensor {
        self.0.tensor(name, &Device::Cpu).unwrap()
    }

    pub fn try_get(&self, name: &str) -> Option<Tensor> {
        self.0.contains(name).then(|| self.get(name))
    }
}

pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The largest absolute difference; shapes must agree.
pub fn max_diff(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(got.dims(), want.dims());
    let pairs = numbers(got).into_iter().zip(numbers(want));
    pairs.map(|(got, want)| if got == want { 0.0 } else { (got - want).abs() }).fold(0.0, nan_max)
}

/// The larger number; NaN wins, so that it cannot hide.
pub fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// Asserts `|got - want| <= tolerance + tolerance * |want|` everywhere.
#[track_caller]
pub fn assert_close(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!(got.dims(), want.dims(), "{what}: shape");
    let (got_numbers, want_numbers) = (numbers(got), numbers(want));
    let bad = |(got, want): (&f64, &f64)| {
        let difference = (got - want).abs();
        difference.is_nan() || difference > tolerance + tolerance * want.abs()
    };
    if let Some(i) = got_numbers.iter().zip(&want_numbers).position(bad) {
        let (got_i, want_i, worst) = (got_numbers[i], want_numbers[i], max_diff(got, want));
        panic!("{what}: element {i} is {got_i}, want {want_i}; largest difference {worst:e}, tolerance {tolerance:e}");
    }
}

/// Asserts that no number differs by more than `tolerance`.
#[track_caller]
pub fn assert_within(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    let worst = max_diff(got, want);
    assert!(worst <= tolerance, "{what}: largest difference {worst:e}, tolerance {tolerance:e}");
}

/// Asserts that a result is an error whose first line holds every part.
#[track_caller]
pub fn says<T>(result: Result<T, impl std::fmt::Display>, parts: &[&str]) {
    let error = result.err().expect("an error").to_string();
    let first = error.lines().next().unwrap_or_default();
    for part in parts {
        assert!(first.contains(part), "`{first}` does not say `{part}`");
    }
}

/// Random numbers that are the same in every run.
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

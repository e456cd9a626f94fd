//! What the tests share: fixtures, comparison of tensors, random inputs, and a naive attention.

pub mod everywhere;
pub mod loops;
pub mod naive;
pub mod programs;
mod random;

pub use random::{Random, random_layer};

use std::path::{Path, PathBuf};

use candle_attention::checkpoint::Checkpoint;
use candle_attention::{AttentionInputs, AttentionMask, AttentionOptions, MultiHeadAttention};
use candle_core::{DType, Device, Tensor};

/// Largest absolute difference in f32 from the system that a golden value comes from.
pub const SEED: f64 = 1e-6;
/// Tolerance in f32 between a whole layer or encoder and the library that it was published with.
pub const LAYER: f64 = 1e-5;

/// The root of the repository, whose packages share `tests/fixtures` and `tests/common`.
pub fn repository() -> &'static Path {
    let holds_fixtures = |folder: &&Path| folder.join("tests/fixtures").is_dir();
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(holds_fixtures).unwrap()
}

pub fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures").join(name)
}

/// A fixture file with tensors by name.
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

/// The output of a layer over a ragged batch.
pub fn attend_ragged(
    layer: &MultiHeadAttention,
    xs: &Tensor,
    lengths: &[usize],
    mask: &AttentionMask,
) -> candle_attention::Result<Tensor> {
    let inputs = AttentionInputs::ragged(xs, lengths, mask);
    layer.attend_with(&inputs, &AttentionOptions::default()).map(|attended| attended.output)
}

/// Fixture files with the bytes of many safetensors files, each a tensor by the name of its file.
pub struct Files(Vec<Checkpoint>);

impl Files {
    pub fn open(name: &str) -> Self {
        Self(vec![Checkpoint::open(fixture(name)).unwrap()])
    }

    /// All fixture files in a folder.
    pub fn open_all(folder: &str) -> Self {
        let files = std::fs::read_dir(fixture(folder)).unwrap().map(|entry| entry.unwrap().path());
        Self(files.map(|path| Checkpoint::open(path).unwrap()).collect())
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let file = self.0.iter().find(|file| file.contains(name)).unwrap_or_else(|| panic!("no fixture `{name}`"));
        file.tensor(name, &Device::Cpu).unwrap().to_vec1().unwrap()
    }

    pub fn checkpoint(&self, name: &str) -> Checkpoint {
        Checkpoint::from_bytes(self.bytes(name)).unwrap()
    }

    /// All files with their names.
    pub fn all(&self) -> impl Iterator<Item = (&str, Checkpoint)> {
        self.0.iter().flat_map(Checkpoint::names).map(|name| (name, self.checkpoint(name)))
    }
}

/// A fixture of `tests/golden/families.py`: attention layers of a tiny model, and what went into and out of them.
pub fn family(name: &str) -> Checkpoint {
    Files::open("families.safetensors").checkpoint(name)
}

/// The `config.json` in a fixture of a family. timm's checkpoints have none: what a user would have to state is beside
/// it.
pub fn family_config(checkpoint: &Checkpoint) -> serde_json::Value {
    let metadata = checkpoint.metadata();
    serde_json::from_str(metadata.get("timm").unwrap_or(&metadata["config"])).unwrap()
}

pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The largest absolute difference of two tensors of one shape.
pub fn max_diff(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(got.dims(), want.dims());
    let pairs = numbers(got).into_iter().zip(numbers(want));
    pairs.map(|(got, want)| if got == want { 0.0 } else { (got - want).abs() }).fold(0.0, nan_max)
}

/// The larger number, or NaN if one of them is NaN.
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

/// Asserts that no element differs by more than `tolerance`.
#[track_caller]
pub fn assert_within(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    let worst = max_diff(got, want);
    assert!(worst <= tolerance, "{what}: largest difference {worst:e}, tolerance {tolerance:e}");
}

/// Asserts that a result is an error whose first line contains every part.
#[track_caller]
pub fn says<T>(result: Result<T, impl std::fmt::Display>, parts: &[&str]) {
    let error = result.err().expect("an error").to_string();
    let first = error.lines().next().unwrap_or_default();
    for part in parts {
        assert!(first.contains(part), "`{first}` does not contain `{part}`");
    }
}

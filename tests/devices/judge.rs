//! Comparison of results with a reference, with one tolerance table for all tests of devices.

use candle_core::{DType, Device, Tensor};

use crate::common::{nan_max, numbers};

/// What computed a result.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// [`candle_attention::sdpa::attend_bshd`], relative to the largest value: an output is a mean of values.
    Attention,
    /// A layer, relative to its largest output.
    Layer,
    /// An encoder, relative to its largest output.
    Encoder,
}

/// The largest allowed error, relative to the scale that [`What`] documents. The reference reads the inputs after
/// rounding to the dtype, so this bounds the error of the computation. With `u` the unit roundoff of the dtype (2^-11
/// for f16, 2^-8 for bf16):
/// - f32: sums of some hundred terms, and scores up to about 100, whose last bit is 4e-6, in an exponent.
/// - attention in half types: scores and softmax are in f32. The attention weights may be rounded (tensor cores and
///   bf16 instructions need both operands in the half type), and the output is rounded: 2 u, and the error of f32. On an
///   Apple GPU candle's kernel rounds the scaled queries too, and scores here are of the size of 2: 2 u more.
/// - a layer in half types: a device may round after each product. Values, weights, heads' results and output are
///   four roundings, each by u of values no larger than the largest output here; those of queries
///   and keys change a score of about 1 by 2 u, and so the mean of values by as much: 8 u in total.
/// - an encoder of up to three layers: the same per layer, and nearly nothing for the norms between them.
fn tolerance(what: What, dtype: DType, device: &Device) -> f64 {
    let (u, f32) = match dtype {
        DType::F16 => (1.0 / 2048.0, 1e-5),
        DType::BF16 => (1.0 / 256.0, 1e-5),
        _ => (0.0, 1e-5),
    };
    match what {
        What::Attention if device.is_metal() => 4.0 * u + f32,
        What::Attention => 2.0 * u + f32,
        What::Layer => 8.0 * u + 2.0 * f32,
        What::Encoder => 24.0 * u + 2.0 * f32,
    }
}

/// A copy of the tensor on the CPU.
pub fn to_cpu(tensor: &Tensor) -> Tensor {
    tensor.to_device(&Device::Cpu).unwrap()
}

/// Collects all failures of a run, so that it reports every one.
#[derive(Debug, Default)]
pub struct Verdict {
    pub judged: usize,
    wrong: Vec<String>,
    /// The largest error relative to its tolerance, and the name of its result.
    worst: (f64, String),
}

impl Verdict {
    /// Compares `got` (of `dtype`, on any device) with `want` (f64). Errors are relative to `scale`.
    pub fn compare(&mut self, name: &str, what: What, dtype: DType, got: &Tensor, want: &Tensor, scale: f64) {
        self.judged += 1;
        if got.dims() != want.dims() || got.dtype() != dtype {
            let (dims, dtype) = (got.dims(), got.dtype());
            return self.wrong(format!("{name}: {dims:?} in {dtype:?}, want {:?}", want.dims()));
        }
        let tolerance = tolerance(what, dtype, got.device()) * scale;
        let (got, want) = (numbers(&to_cpu(got)), numbers(want));
        let differences = || got.iter().zip(&want).map(|(got, want)| (got - want).abs());
        let largest = differences().fold(0.0, nan_max);
        if let Some(i) = differences().position(|difference| difference.is_nan() || difference > tolerance) {
            let count = differences().filter(|difference| difference.is_nan() || *difference > tolerance).count();
            self.wrong(format!(
                "{name}: element {i} is {}, want {}; {count} of {} are wrong, the largest difference is {largest:e}, \
                 {tolerance:e} is allowed",
                got[i],
                want[i],
                got.len()
            ));
        } else if largest > self.worst.0 * tolerance {
            self.worst = (largest / tolerance, name.to_string());
        }
    }

    /// Fails unless `a` and `b` are bitwise equal.
    pub fn same(&mut self, name: &str, a: &Tensor, b: &Tensor) {
        let bits = |t: &Tensor| numbers(&to_cpu(t)).into_iter().map(f64::to_bits).collect::<Vec<_>>();
        if a.dims() != b.dims() || bits(a) != bits(b) {
            self.wrong(format!("{name}: not bitwise equal"));
        }
    }

    pub fn wrong(&mut self, message: String) {
        self.wrong.push(message);
    }

    /// Reports the results.
    ///
    /// # Panics
    /// If any comparison failed.
    pub fn end(self, device: &Device) {
        let place = device.location();
        let (share, name) = self.worst;
        println!("{place:?}: {} results, largest error {share:.2} of its tolerance: {name}", self.judged);
        let count = self.wrong.len();
        assert!(count == 0, "{count} wrong on {place:?}:\n{}", self.wrong.join("\n"));
    }
}

/// The largest magnitude in a tensor.
pub fn largest(tensor: &Tensor) -> f64 {
    numbers(&to_cpu(tensor)).into_iter().map(f64::abs).fold(0.0, nan_max)
}

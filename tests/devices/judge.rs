//! Who decides whether a result is right.

use candle_core::{DType, Device, Tensor};

use crate::common::{nan_max, numbers};

/// What a result is of.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// [`candle_attention::sdpa::attend_bshd`], against the largest value, of which an output is a mean.
    Attention,
    /// A layer, against its largest output.
    Layer,
    /// An encoder, likewise.
    #[cfg_attr(not(feature = "encoder"), expect(dead_code, reason = "there is none"))]
    Encoder,
}

/// The largest error, as a share of what [`What`] says. The reference reads the inputs as the dtype rounded them, so this
/// is what computing adds. With `u` the share by which rounding to a dtype can change a number (2^-11 in f16, 2^-8 in
/// bf16):
/// - f32: sums of some hundred terms, and scores up to about 100, whose last bit is 4e-6, in an exponent.
/// - attention in half types: scores and softmax are in f32. The weights may be rounded (tensor cores and bf16
///   instructions want both operands in the narrow dtype), and the output is: 2 u, and what f32 adds.
/// - a layer in half types: a device may round after each product. Values, weights, heads' results and output are
///   four roundings, each of u of numbers not larger than the largest output is here; those of queries and keys
///   change a score of about 1 by 2 u and so the mean of values by as much: 8 u for all.
/// - an encoder of up to three layers: as much for each, and nearly nothing for the norms between.
const fn tolerance(what: What, dtype: DType) -> f64 {
    let (u, f32) = match dtype {
        DType::F16 => (1.0 / 2048.0, 1e-5),
        DType::BF16 => (1.0 / 256.0, 1e-5),
        _ => (0.0, 1e-5),
    };
    match what {
        What::Attention => 2.0 * u + f32,
        What::Layer => 8.0 * u + 2.0 * f32,
        What::Encoder => 24.0 * u + 2.0 * f32,
    }
}

/// A tensor's numbers, wherever it is.
pub fn at_home(tensor: &Tensor) -> Tensor {
    tensor.to_device(&Device::Cpu).unwrap()
}

/// Collects what is wrong, so that a run tells all of it.
#[derive(Debug, Default)]
pub struct Verdict {
    pub judged: usize,
    wrong: Vec<String>,
    /// The largest share of its tolerance that a result has used, and which.
    worst: (f64, String),
}

impl Verdict {
    /// Judges `got` (of `dtype`, on any device) against `want` (f64), whose errors count as shares of `scale`.
    pub fn compare(&mut self, name: &str, what: What, dtype: DType, got: &Tensor, want: &Tensor, scale: f64) {
        self.judged += 1;
        if got.dims() != want.dims() || got.dtype() != dtype {
            let (dims, dtype) = (got.dims(), got.dtype());
            return self.wrong(format!("{name}: {dims:?} in {dtype:?}, want {:?}", want.dims()));
        }
        let tolerance = tolerance(what, dtype) * scale;
        let (got, want) = (numbers(&at_home(got)), numbers(want));
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

    /// `a` and `b` are to be the same to the bit.
    pub fn same(&mut self, name: &str, a: &Tensor, b: &Tensor) {
        let bits = |t: &Tensor| numbers(&at_home(t)).into_iter().map(f64::to_bits).collect::<Vec<_>>();
        if a.dims() != b.dims() || bits(a) != bits(b) {
            self.wrong(format!("{name}: not the same bits"));
        }
    }

    pub fn wrong(&mut self, message: String) {
        self.wrong.push(message);
    }

    /// # Panics
    /// If anything was wrong.
    pub fn end(self, device: &Device) {
        let place = device.location();
        let (share, name) = self.worst;
        println!("{place:?}: {} results, at worst {share:.2} of what is allowed: {name}", self.judged);
        let count = self.wrong.len();
        assert!(count == 0, "{count} wrong on {place:?}:\n{}", self.wrong.join("\n"));
    }
}

/// The largest magnitude in a tensor.
pub fn largest(tensor: &Tensor) -> f64 {
    numbers(&at_home(tensor)).into_iter().map(f64::abs).fold(0.0, nan_max)
}

//! Weights in few bits: the formats that projections are packed in, and what a model computes in.
//!
//! A quantized weight is a value that its packed format holds exactly. Everything above the packed weights sees plain
//! f32 tensors of these values: writing, pruning and merging need not know the format, and packing them again gives the
//! same bits.

use std::fmt;
use std::str::FromStr;

use candle_attention_kernels::WeightFormat;
use candle_core::{DType, Tensor};

use crate::error::{Error, Result};

/// A format of weights in few bits, for products of integers on the CPU.
///
/// Products take f32 inputs, which are rounded to integers where they are multiplied, and give f32. Norms, softmaxes,
/// biases and sums between layers stay in f32, and so do scores; where the processor multiplies bf16 faster than f32,
/// self-attention rounds queries, keys, values and attention weights to bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Quantization {
    /// 8 bits, one scale for each output of a projection; an input row gets its scale at run time. Sums are exact, in
    /// int32. Any checkpoint, up to 131,072 inputs.
    Int8,
    /// llama.cpp's `Q8_0`: 8 bits, one f16 scale for each 32 inputs of an output.
    Q8_0,
    /// llama.cpp's `Q4_0`: 4 bits, one f16 scale for each 32 inputs of an output.
    Q4_0,
}

impl Quantization {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Int8, Self::Q8_0, Self::Q4_0];

    /// Whether a projection of this many inputs can have the format: `Q8_0` and `Q4_0` take multiples of 32, `Int8` up
    /// to 131,072. A projection that cannot have it stays in f32, as llama.cpp leaves such tensors in a float type.
    pub fn fits(self, in_features: usize) -> bool {
        match self {
            Self::Int8 => in_features <= 1 << 17,
            Self::Q8_0 | Self::Q4_0 => in_features.is_multiple_of(32),
        }
    }

    /// The format of packed weights, if it has few bits.
    pub(crate) fn from_format(format: WeightFormat) -> Option<Self> {
        match format {
            WeightFormat::Int8 => Some(Self::Int8),
            WeightFormat::Q8_0 => Some(Self::Q8_0),
            WeightFormat::Q4_0 => Some(Self::Q4_0),
            _ => None,
        }
    }

    /// The format of the kernels.
    pub fn weight_format(self) -> WeightFormat {
        match self {
            Self::Int8 => WeightFormat::Int8,
            Self::Q8_0 => WeightFormat::Q8_0,
            Self::Q4_0 => WeightFormat::Q4_0,
        }
    }

    /// Checks that weights on the device of `like` can have the format.
    pub(crate) fn check_device(self, like: &Tensor) -> Result<()> {
        if like.device().is_cpu() {
            return Ok(());
        }
        let (what, found) = (format!("the device of {self} weights"), format!("{:?}", like.device().location()));
        Err(Error::value(what, found, "the CPU: other devices run f32, f16 or bf16"))
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int8 => "int8",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        })
    }
}

/// The numbers that a model computes in: a float dtype, or f32 with projections and tables of embeddings in few bits.
///
/// Loaders take `impl Into<ComputeType>`:
///
/// - a [`DType`]: weights that a checkpoint holds in few bits are dequantized;
/// - a [`Quantization`]: all projections and tables are in it; of a checkpoint that holds some in it, these;
/// - `ComputeType::default()`: f32, and on the CPU what a checkpoint holds in few bits stays so.
///
/// ```
/// use candle_attention::{ComputeType, Quantization};
/// use candle_core::DType;
///
/// let int8 = ComputeType::from(Quantization::Int8);
/// assert_eq!((int8.dtype(), int8.quantization()), (DType::F32, Some(Quantization::Int8)));
/// assert_eq!("int8".parse::<ComputeType>()?, int8);
/// assert_eq!(ComputeType::from(DType::BF16).to_string(), "bf16");
/// assert_eq!("auto".parse::<ComputeType>()?, ComputeType::default());
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeType {
    dtype: DType,
    quantization: Option<Quantization>,
    keeps_stored: bool,
}

impl ComputeType {
    /// The names, for messages.
    pub const NAMES: &str = "auto, f32, f64, f16, bf16, int8, q8_0 or q4_0";

    /// The dtype of hidden states, and of the weights that are not quantized: f32 where others are.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The format of projections and tables of embeddings that is asked for, if it has few bits.
    pub fn quantization(self) -> Option<Quantization> {
        self.quantization
    }

    /// Whether weights that a checkpoint holds in few bits stay so, on the CPU.
    pub fn keeps_stored(self) -> bool {
        self.keeps_stored
    }
}

/// f32, and on the CPU what a checkpoint holds in few bits stays so.
impl Default for ComputeType {
    fn default() -> Self {
        Self { dtype: DType::F32, quantization: None, keeps_stored: true }
    }
}

impl From<DType> for ComputeType {
    fn from(dtype: DType) -> Self {
        Self { dtype, quantization: None, keeps_stored: false }
    }
}

impl From<Quantization> for ComputeType {
    fn from(quantization: Quantization) -> Self {
        Self { dtype: DType::F32, quantization: Some(quantization), keeps_stored: true }
    }
}

/// The name of the default.
const AUTO: &str = "auto";

/// The name that [`FromStr`] takes.
impl fmt::Display for ComputeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quantization {
            Some(quantization) => write!(f, "{quantization}"),
            None if self.keeps_stored => f.write_str(AUTO),
            None => f.write_str(self.dtype.as_str()),
        }
    }
}

impl FromStr for ComputeType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16].into_iter().find(|dtype| dtype.as_str() == name);
        let quantization = Quantization::ALL.into_iter().find(|quantization| quantization.to_string() == name);
        let default = (name == AUTO).then(Self::default);
        let found = dtype.map(Self::from).or(quantization.map(Self::from)).or(default);
        found.ok_or_else(|| Error::value("the compute type", format!("`{name}`"), Self::NAMES))
    }
}

//! Embeddings in fewer bits, as `quantize_embeddings` of sentence-transformers computes them.

use std::fmt;
use std::str::FromStr;

use candle_attention::ensure;
use candle_attention::{Error, Result};
use candle_core::{DType, Device, Tensor};

use crate::model::hidden_states::first_not_finite;

/// The precision of the numbers of an embedding; the names are those of sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Precision {
    /// As computed, in f32.
    #[default]
    Float32,
    /// 256 steps between the least and the largest value of each feature, from -128.
    Int8,
    /// 256 steps between the least and the largest value of each feature, from 0.
    Uint8,
    /// One bit per feature, whether it is above 0: eight in an `i8`, the first feature in the highest bit; 128 is
    /// subtracted from the byte.
    Binary,
    /// One bit per feature, eight in a `u8`, without the subtraction.
    Ubinary,
}

impl Precision {
    /// All of them, with their names.
    const ALL: [(&'static str, Self); 5] = [
        ("float32", Self::Float32),
        ("int8", Self::Int8),
        ("uint8", Self::Uint8),
        ("binary", Self::Binary),
        ("ubinary", Self::Ubinary),
    ];

    /// Whether it needs the range of each feature.
    pub fn has_ranges(self) -> bool {
        matches!(self, Self::Int8 | Self::Uint8)
    }
}

/// From the names of sentence-transformers: `float32`, `int8`, `uint8`, `binary`, `ubinary`.
impl FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, precision)| precision).ok_or_else(|| {
            Error::value("the precision", name, format!("one of {}", Self::ALL.map(|(known, _)| known).join(", ")))
        })
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.into_iter().find(|(_, precision)| precision == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// The least and the largest value of each feature, between which [`Precision::Int8`] and [`Precision::Uint8`] have
/// their steps. Values outside become the first or the last step.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizationRanges {
    least: Vec<f32>,
    largest: Vec<f32>,
}

impl QuantizationRanges {
    /// The ranges from the least to the largest value of each feature.
    ///
    /// # Errors
    /// If the numbers of features differ, a bound is not finite, or one is below its other.
    pub fn new(least: Vec<f32>, largest: Vec<f32>) -> Result<Self> {
        if least.len() != largest.len() {
            let expected = format!("{}, one for each least value", least.len());
            return Err(Error::value("the number of largest values", largest.len(), expected));
        }
        let is_wrong = |(a, b): (&f32, &f32)| !(a.is_finite() && b.is_finite() && a <= b);
        match least.iter().zip(&largest).position(is_wrong) {
            Some(i) => {
                let found = format!("{} to {}", least[i], largest[i]);
                Err(Error::value(format!("the range of feature {i}"), found, "finite numbers, the least first"))
            }
            None => Ok(Self { least, largest }),
        }
    }

    /// The ranges of calibration embeddings `(n, d)`.
    ///
    /// # Errors
    /// If there are fewer than two of them, or a value is not finite.
    pub fn from_embeddings(embeddings: &Tensor) -> Result<Self> {
        Self::from_matrix(&Matrix::read(embeddings)?)
    }

    fn from_matrix(Matrix { values, rows, d }: &Matrix) -> Result<Self> {
        if values.len() < 2 * d.max(&1) {
            let expected = "at least 2; give the ranges, or those of other embeddings";
            return Err(Error::value("the number of embeddings to take ranges from", rows, expected));
        }
        let fold = |better: fn(f32, f32) -> f32| {
            let mut folded = values[..*d].to_vec();
            for row in values.chunks_exact(*d.max(&1)) {
                folded.iter_mut().zip(row).for_each(|(folded, x)| *folded = better(*folded, *x));
            }
            folded
        };
        Self::new(fold(f32::min), fold(f32::max))
    }
}

/// Embeddings after [`quantize_embeddings`]: a row of equally many numbers for each.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedEmbeddings {
    rows: usize,
    columns: usize,
    values: QuantizedValues,
}

/// The numbers of [`QuantizedEmbeddings`], row by row.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum QuantizedValues {
    /// Of [`Precision::Float32`].
    Float32(Vec<f32>),
    /// Of [`Precision::Int8`] and [`Precision::Binary`].
    Int8(Vec<i8>),
    /// Of [`Precision::Uint8`] and [`Precision::Ubinary`].
    Uint8(Vec<u8>),
}

impl QuantizedEmbeddings {
    /// The number of embeddings, and of numbers in each: an eighth of the features, rounded up, for bits.
    pub fn dims(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// The numbers, row by row.
    pub fn values(&self) -> &QuantizedValues {
        &self.values
    }

    /// The numbers, row by row.
    pub fn into_values(self) -> QuantizedValues {
        self.values
    }
}

/// Embeddings `(n, d)` in another precision, bit for bit as `sentence_transformers.util.quantize_embeddings` gives
/// them.
///
/// [`Precision::Int8`] and [`Precision::Uint8`] divide the range of each feature into 256 steps: `ranges`, or else
/// those of the embeddings themselves, so that texts of another call are not comparable with these. Take the ranges of
/// many embeddings once, with [`QuantizationRanges::from_embeddings`], and give them to every call. The other
/// precisions ignore them.
///
/// ```
/// use candle_attention_text::{Precision, QuantizedValues, quantize_embeddings};
/// use candle_core::{Device, Tensor};
/// let embeddings = Tensor::new(&[[0.5f32, -0.1, 0.2], [-0.5, 0.3, 0.1]], &Device::Cpu)?;
/// let bits = quantize_embeddings(&embeddings, Precision::Ubinary, None)?;
/// assert_eq!(bits.dims(), (2, 1));
/// assert_eq!(bits.values(), &QuantizedValues::Uint8(vec![0b1010_0000, 0b0110_0000]));
/// # Ok::<(), candle_attention::Error>(())
/// ```
///
/// # Errors
/// A number that is not finite; ranges of another number of features; a single embedding and no ranges, where they are
/// needed.
pub fn quantize_embeddings(
    embeddings: &Tensor,
    precision: Precision,
    ranges: Option<&QuantizationRanges>,
) -> Result<QuantizedEmbeddings> {
    let matrix = Matrix::read(embeddings)?;
    let (rows, d) = (matrix.rows, matrix.d);
    let columns = if matches!(precision, Precision::Binary | Precision::Ubinary) { d.div_ceil(8) } else { d };
    // 128 less than a byte, as a signed byte: its highest bit changes.
    let signed = |bytes: Vec<u8>| QuantizedValues::Int8(bytes.into_iter().map(|byte| (byte ^ 0x80) as i8).collect());
    let values = match precision {
        Precision::Float32 => QuantizedValues::Float32(matrix.values),
        Precision::Int8 => signed(steps(&matrix, ranges)?),
        Precision::Uint8 => QuantizedValues::Uint8(steps(&matrix, ranges)?),
        Precision::Binary => signed(bits(&matrix)),
        Precision::Ubinary => QuantizedValues::Uint8(bits(&matrix)),
    };
    Ok(QuantizedEmbeddings { rows, columns, values })
}

/// The step of each value in the range of its feature.
fn steps(matrix: &Matrix, ranges: Option<&QuantizationRanges>) -> Result<Vec<u8>> {
    let &Matrix { ref values, rows, d } = matrix;
    if rows == 0 {
        return Ok(Vec::new());
    }
    let ranges = match ranges {
        Some(ranges) => ranges,
        None => &QuantizationRanges::from_matrix(matrix)?,
    };
    if ranges.least.len() != d {
        return Err(Error::value("the number of features of the ranges", ranges.least.len(), d.to_string()));
    }
    let size = |(least, largest): (&f32, &f32)| match (largest - least) / 255.0 {
        0.0 => 1.0,
        size => size,
    };
    let sizes: Vec<f32> = ranges.least.iter().zip(&ranges.largest).map(size).collect();
    let step = |(i, x): (usize, &f32)| ((x - ranges.least[i % d]) / sizes[i % d]).floor().clamp(0.0, 255.0) as u8;
    Ok(values.iter().enumerate().map(step).collect())
}

/// Whether each value is above 0, eight in a byte.
fn bits(Matrix { values, d, .. }: &Matrix) -> Vec<u8> {
    let byte = |xs: &[f32]| xs.iter().enumerate().fold(0, |byte, (i, x)| byte | (u8::from(*x > 0.0) << (7 - i)));
    values.chunks_exact(*d.max(&1)).flat_map(|row| row.chunks(8).map(byte)).collect()
}

/// Embeddings `(rows, d)` in f32, row by row.
struct Matrix {
    values: Vec<f32>,
    rows: usize,
    d: usize,
}

impl Matrix {
    fn read(embeddings: &Tensor) -> Result<Self> {
        let (rows, d) = embeddings.dims2().map_err(|_| Error::shape("embeddings", embeddings.dims(), "(n, d)"))?;
        ensure!(embeddings.dtype().is_float(), Error::dtype("embeddings", embeddings.dtype(), "a float"));
        let embeddings = embeddings.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        if let Some(i) = first_not_finite(&embeddings)? {
            return Err(Error::NotFinite { what: format!("embedding {i}") });
        }
        Ok(Self { values: embeddings.flatten_all()?.to_vec1()?, rows, d })
    }
}

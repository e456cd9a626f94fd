//! The precision of the numbers of an embedding.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use candle_attention_text::{Precision, QuantizationRanges};
use datafusion::arrow::datatypes::{DataType, Field};

use crate::error::{Error, Result};

/// The precision of the numbers of an embedding: those of sentence-transformers, and `float16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum EmbeddingPrecision {
    /// As computed.
    #[default]
    Float32,
    /// Rounded to 16 bits.
    Float16,
    /// 256 steps in the range of each feature, from -128.
    Int8,
    /// The same from 0.
    Uint8,
    /// One bit per feature, eight in an `i8`.
    Binary,
    /// One bit per feature, eight in a `u8`.
    Ubinary,
}

impl EmbeddingPrecision {
    const ALL: [(&'static str, Self); 6] = [
        ("float32", Self::Float32),
        ("float16", Self::Float16),
        ("int8", Self::Int8),
        ("uint8", Self::Uint8),
        ("binary", Self::Binary),
        ("ubinary", Self::Ubinary),
    ];

    /// The precision in which candle-attention gives the numbers, before [`Float16`](Self::Float16) is rounded.
    pub(crate) fn quantized(self) -> Precision {
        match self {
            Self::Float32 | Self::Float16 => Precision::Float32,
            Self::Int8 => Precision::Int8,
            Self::Uint8 => Precision::Uint8,
            Self::Binary => Precision::Binary,
            Self::Ubinary => Precision::Ubinary,
        }
    }

    /// Whether it needs the range of each feature.
    pub fn has_ranges(self) -> bool {
        self.quantized().has_ranges()
    }

    /// The type of an embedding of `size` features.
    pub fn data_type(self, size: usize) -> DataType {
        let (number, width) = match self {
            Self::Float32 => (DataType::Float32, size),
            Self::Float16 => (DataType::Float16, size),
            Self::Int8 => (DataType::Int8, size),
            Self::Uint8 => (DataType::UInt8, size),
            Self::Binary => (DataType::Int8, size.div_ceil(8)),
            Self::Ubinary => (DataType::UInt8, size.div_ceil(8)),
        };
        DataType::FixedSizeList(Arc::new(Field::new_list_field(number, true)), width as i32)
    }
}

impl FromStr for EmbeddingPrecision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, precision)| precision).ok_or_else(|| {
            let known = Self::ALL.map(|(known, _)| known).join(", ");
            Error::value("the precision", format!("`{name}`"), format!("one of {known}"))
        })
    }
}

impl fmt::Display for EmbeddingPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.into_iter().find(|(_, precision)| precision == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// Ranges for `int8` and `uint8` from a JSON file: the least value of each feature, then the largest,
/// `[[-0.2, …], [0.3, …]]`, as the array `ranges` of sentence-transformers.
///
/// # Errors
/// A file that cannot be read or is something else; ranges that are not finite or have no width of their own.
pub fn read_ranges(path: impl AsRef<Path>) -> Result<QuantizationRanges> {
    let path = path.as_ref();
    let wrong = |reason: String| Error::File { path: path.to_path_buf(), reason };
    let content = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
    let [least, largest]: [Vec<f32>; 2] =
        serde_json::from_slice(&content).map_err(|e| wrong(format!("expected [[least, …], [largest, …]]: {e}")))?;
    QuantizationRanges::new(least, largest).map_err(|e| wrong(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_sentence_transformers() {
        for (name, precision) in EmbeddingPrecision::ALL {
            assert_eq!(name.parse::<EmbeddingPrecision>().unwrap(), precision);
            assert_eq!(precision.to_string(), name);
        }
        let error = "int4".parse::<EmbeddingPrecision>().unwrap_err().to_string();
        assert_eq!(error, "the precision is `int4`, expected one of float32, float16, int8, uint8, binary, ubinary");
    }

    #[test]
    fn bits_are_eight_in_a_number() {
        let width = |precision: EmbeddingPrecision| match precision.data_type(21) {
            DataType::FixedSizeList(field, width) => (field.data_type().clone(), width),
            other => panic!("{other}"),
        };
        assert_eq!(width(EmbeddingPrecision::Ubinary), (DataType::UInt8, 3));
        assert_eq!(width(EmbeddingPrecision::Float16), (DataType::Float16, 21));
    }

    #[test]
    fn ranges_are_two_lists() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ranges.json");
        std::fs::write(&file, "[[-1, 0.5], [1, 0.75]]").unwrap();
        assert_eq!(read_ranges(&file).unwrap(), QuantizationRanges::new(vec![-1.0, 0.5], vec![1.0, 0.75]).unwrap());
        std::fs::write(&file, "[[-1, 0.5]]").unwrap();
        assert!(read_ranges(&file).unwrap_err().to_string().contains("ranges.json: expected [[least"));
    }
}

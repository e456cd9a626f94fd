//! The numbers that all formats are read into, and how integers of few bits are packed.

use std::fmt;

use safetensors::Dtype;

/// The sizes of a quantized weight.
#[derive(Clone)]
pub(crate) struct Plan {
    /// `(out, in)`.
    pub shape: [usize; 2],
    /// Bits per number.
    pub bits: usize,
    /// The rows and columns that share a scale.
    pub block: [usize; 2],
    /// The number that is added to each stored zero point.
    pub zero_offset: i32,
}

impl Plan {
    /// Rows and columns of the table of scales.
    pub fn grid(&self) -> [usize; 2] {
        [self.shape[0].div_ceil(self.block[0]), self.shape[1].div_ceil(self.block[1])]
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { shape, bits, block, .. } = self;
        write!(f, "{bits} bits ")?;
        match block {
            block if block == shape => f.write_str("per tensor"),
            [1, columns] if *columns == shape[1] => f.write_str("per channel"),
            [1, columns] => write!(f, "in groups of {columns}"),
            [rows, columns] => write!(f, "in blocks of {rows}×{columns}"),
        }
    }
}

/// The numbers of a quantized weight, in the rows and columns of the weight, which is
/// `(values - zeros) · scales + biases`.
pub(crate) struct Codes {
    /// `(out, in)`. Integers, or numbers of 8 bits.
    pub values: Vec<f32>,
    /// A number per block, as [`Plan::grid`] has them.
    pub scales: Vec<f32>,
    pub zeros: Option<Vec<f32>>,
    pub biases: Option<Vec<f32>>,
    /// The group of each column, where that is not a run of columns.
    pub groups: Option<Vec<usize>>,
}

/// Unpacks a row of unsigned integers of `bits` bits, the first in the lowest bits of the first word. They may cross
/// words.
fn unpack_row(words: &[u32], bits: usize, into: &mut [f32]) {
    let mask = (1u32 << bits) - 1;
    for (i, value) in into.iter_mut().enumerate() {
        let (word, shift) = (i * bits / 32, i * bits % 32);
        let mut code = words[word] >> shift;
        if shift + bits > 32 {
            code |= words[word + 1] << (32 - shift);
        }
        *value = (code & mask) as f32;
    }
}

/// Unpacks rows of `columns` integers, each of which begins with a word.
pub(super) fn unpack_rows(words: &[u32], bits: usize, columns: usize, into: &mut [f32]) {
    let width = (columns * bits).div_ceil(32).max(1);
    let rows = into.chunks_exact_mut(columns.max(1)).zip(words.chunks_exact(width));
    rows.for_each(|(values, words)| unpack_row(words, bits, values));
}

/// The transpose of a matrix `(rows, columns)`.
pub(super) fn transpose<T: Copy + Default>(matrix: &[T], [rows, columns]: [usize; 2]) -> Vec<T> {
    let mut transposed = vec![T::default(); matrix.len()];
    // One of the sizes may be any number if the other is 0.
    let rows = if matrix.is_empty() { 0 } else { rows };
    for row in 0..rows {
        for column in 0..columns {
            transposed[column * rows + row] = matrix[row * columns + column];
        }
    }
    transposed
}

/// The 256 numbers of a float format of 8 bits: E5M2 is the upper half of f16, E4M3 has no infinities.
pub(super) fn float8_values(dtype: Dtype) -> [f32; 256] {
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if dtype == Dtype::F8_E5M2 {
            return half::f16::from_bits(u16::from(byte) << 8).to_f32();
        }
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
        let magnitude = match (exponent, byte & 7) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa * 2f32.powi(-9),
            _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
        };
        if byte & 0x80 == 0 { magnitude } else { -magnitude }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number that is not NaN is candle's.
    #[test]
    fn float8_is_that_of_candle() {
        use candle_core::{DType, Device, Tensor};
        let all: Vec<u8> = (0..=255).collect();
        let tensor = Tensor::from_raw_buffer(&all, DType::F8E4M3, &[256], &Device::Cpu).unwrap();
        let expected = tensor.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
        for (found, expected) in float8_values(Dtype::F8_E4M3).iter().zip(&expected) {
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{found} {expected}");
        }
        assert_eq!(float8_values(Dtype::F8_E4M3)[0x7e], 448.0);
        let e5m2 = float8_values(Dtype::F8_E5M2);
        assert_eq!((e5m2[0x7b], e5m2[0x7c], e5m2[0x81]), (57344.0, f32::INFINITY, -(2f32.powi(-16))));
    }

    #[test]
    fn integers_cross_words() {
        // Eleven numbers of 3 bits are 33 bits.
        let codes: Vec<u32> = (0..11).map(|i| i * 5 % 8).collect();
        let stream: u64 = codes.iter().enumerate().map(|(i, code)| u64::from(*code) << (3 * i)).sum();
        let mut unpacked = [0.0; 11];
        unpack_row(&[stream as u32, (stream >> 32) as u32], 3, &mut unpacked);
        assert_eq!(unpacked.to_vec(), codes.iter().map(|code| *code as f32).collect::<Vec<_>>());
    }
}

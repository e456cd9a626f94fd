//! Tables of rows in few bits, such as embeddings: a row is looked up, not multiplied.

use super::encode::{BLOCK, WeightFormat};
use crate::elements::Element;
use crate::error::{Error, Result};
use crate::memory::AlignedVec;

/// Rows `(rows, width)` in [`Int8`](WeightFormat::Int8), [`Q8_0`](WeightFormat::Q8_0) or [`Q4_0`](WeightFormat::Q4_0),
/// with the integers and scales that [`Packer`](crate::Packer) finds for a row of weights.
pub struct QuantizedRows {
    format: WeightFormat,
    width: usize,
    /// Rows that have been pushed.
    rows: usize,
    /// `(rows, width)`: one byte per value, or per two of Q4_0. Byte `j` of a block of Q4_0 has value `j` in the low
    /// nibble and value `j + 16` in the high one, each plus 8, as in GGUF.
    values: AlignedVec<u8>,
    /// `(rows, groups)`, in the format's numbers.
    pub(crate) scales: AlignedVec<u8>,
}

impl QuantizedRows {
    /// Makes room for `rows` rows of `width` values.
    ///
    /// # Errors
    /// If the format has no integers, if `width` does not fit it (blocks need a multiple of 32), and if there is not
    /// enough memory.
    pub fn new(format: WeightFormat, rows: usize, width: usize) -> Result<Self> {
        const WHAT: &str = "a table";
        if !format.is_quantized() {
            return Err(Error::value("the format of a table", format!("{format:?}"), "Int8, Q8_0 or Q4_0"));
        }
        format.check_width(width)?;
        let values = AlignedVec::zeros_with_dims(WHAT, &[rows, bytes_per_row(format, width)])?;
        let scales = format.zero_scales(WHAT, &[rows, format.groups(width)])?;
        Ok(Self { format, width, rows: 0, values, scales })
    }

    /// Appends rows, `(any number, width)`.
    ///
    /// # Errors
    /// If these are no whole rows, or more than there is room for, and if a value is not finite.
    pub fn push<T: Element>(&mut self, rows: &[T]) -> Result<()> {
        let (bytes, groups) = (bytes_per_row(self.format, self.width), self.format.groups(self.width));
        let room = self.capacity() - self.rows;
        if self.width == 0 || !rows.len().is_multiple_of(self.width) || rows.len() / self.width > room {
            let expected = format!("at most {room} rows of {}", self.width);
            return Err(Error::shape("rows of a table", &[rows.len()], expected));
        }
        // A table of no rows may have any width.
        if rows.is_empty() {
            return Ok(());
        }
        let (mut upcast, mut values, mut scales) = (vec![0.0; self.width], vec![0; self.width], vec![0.0; groups]);
        for row in rows.chunks_exact(self.width) {
            self.format.encode(self.rows, T::as_f32(row, &mut upcast), &mut values, &mut scales)?;
            let to = &mut self.values[self.rows * bytes..][..bytes];
            if self.format == WeightFormat::Q4_0 {
                let blocks = to.chunks_exact_mut(BLOCK / 2).zip(values.chunks_exact(BLOCK));
                for (to, values) in blocks {
                    let (low, high) = values.split_at(BLOCK / 2);
                    let nibble = |value: i8| (value + 8).cast_unsigned();
                    to.iter_mut().zip(low.iter().zip(high)).for_each(|(to, (l, h))| *to = nibble(*l) | nibble(*h) << 4);
                }
            } else {
                to.copy_from_slice(bytemuck::cast_slice(&values));
            }
            for (group, scale) in scales.iter().enumerate() {
                self.format.set_scale(&mut self.scales, self.rows * groups + group, *scale);
            }
            self.rows += 1;
        }
        Ok(())
    }

    /// The number of rows that have been pushed.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The format.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// The bytes of values and scales.
    pub fn bytes(&self) -> usize {
        self.values.len() + self.scales.len()
    }

    /// Writes row `index` to `to`, which has `width` values: each integer times its scale, which is exact.
    ///
    /// # Panics
    /// If there is no such row, or `to` has another length.
    pub fn row_into(&self, index: usize, to: &mut [f32]) {
        assert!(index < self.rows && to.len() == self.width);
        let (bytes, groups) = (bytes_per_row(self.format, self.width), self.format.groups(self.width));
        let values = &self.values[index * bytes..][..bytes];
        let group = self.format.group(self.width);
        let blocks = to.chunks_exact_mut(group.max(1)).zip(values.chunks_exact((bytes / groups.max(1)).max(1)));
        for (i, (to, values)) in blocks.enumerate() {
            let scale = self.format.scale(&self.scales, index * groups + i);
            if self.format == WeightFormat::Q4_0 {
                let (low, high) = to.split_at_mut(BLOCK / 2);
                for ((low, high), byte) in low.iter_mut().zip(high).zip(values) {
                    let value = |nibble: u8| f32::from(nibble.cast_signed() - 8) * scale;
                    (*low, *high) = (value(byte & 0xf), value(byte >> 4));
                }
            } else {
                to.iter_mut().zip(values).for_each(|(to, value)| *to = f32::from(value.cast_signed()) * scale);
            }
        }
    }

    /// Whether both hold the same bits.
    pub fn has_same_bits(&self, other: &Self) -> bool {
        let sizes = |table: &Self| (table.format, table.width, table.rows);
        sizes(self) == sizes(other) && self.values[..] == other.values[..] && self.scales[..] == other.scales[..]
    }

    /// The integers and the scale of row `index` in [`WeightFormat::Int8`]; `None` in other formats.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn int8_row(&self, index: usize) -> Option<(&[i8], f32)> {
        assert!(index < self.rows);
        let integers = || bytemuck::cast_slice(&self.values[index * self.width..][..self.width]);
        (self.format == WeightFormat::Int8).then(|| (integers(), self.format.scale(&self.scales, index)))
    }

    /// Rows that there is room for.
    fn capacity(&self) -> usize {
        self.values.len() / bytes_per_row(self.format, self.width).max(1)
    }
}

impl std::fmt::Debug for QuantizedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QuantizedRows({} x {}, {:?})", self.rows, self.width, self.format)
    }
}

fn bytes_per_row(format: WeightFormat, width: usize) -> usize {
    if format == WeightFormat::Q4_0 { width / 2 } else { width }
}

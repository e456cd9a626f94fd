//! Arrow arrays of texts and of embeddings.

use std::sync::Arc;

use candle_attention_text::QuantizedValues;
use datafusion::arrow::array::types::{Float16Type, Float32Type, Int8Type, UInt8Type};
use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, PrimitiveArray};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err};
use half::f16;

use crate::precision::EmbeddingPrecision;

/// The texts of an array, with its nulls.
pub(crate) fn texts(array: &dyn Array) -> Result<Vec<Option<&str>>> {
    Ok(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().collect(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().collect(),
        DataType::Utf8View => array.as_string_view().iter().collect(),
        DataType::Null => vec![None; array.len()],
        other => return exec_err!("a column of texts is of type {other}, expected text"),
    })
}

/// Embeddings as lists of `width` numbers; the rows that are not `present` are null.
pub(crate) fn embeddings(
    values: QuantizedValues,
    precision: EmbeddingPrecision,
    width: usize,
    present: &[bool],
) -> Result<ArrayRef> {
    match values {
        QuantizedValues::Float32(values) if precision == EmbeddingPrecision::Float16 => {
            let halves: Vec<f16> = values.iter().copied().map(f16::from_f32).collect();
            match halves.iter().position(|half| !half.is_finite()) {
                Some(i) => exec_err!("an embedding has the number {}, which float16 cannot hold", values[i]),
                None => lists::<Float16Type>(halves, width, present),
            }
        }
        QuantizedValues::Float32(values) => lists::<Float32Type>(values, width, present),
        QuantizedValues::Int8(values) => lists::<Int8Type>(values, width, present),
        QuantizedValues::Uint8(values) => lists::<UInt8Type>(values, width, present),
        other => exec_err!("embeddings of an unknown kind: {other:?}"),
    }
}

fn lists<T: ArrowPrimitiveType>(values: Vec<T::Native>, width: usize, present: &[bool]) -> Result<ArrayRef> {
    let all = present.iter().all(|present| *present);
    let values = if all { values } else { with_gaps::<T>(&values, width, present) };
    let field = Arc::new(Field::new_list_field(T::DATA_TYPE, true));
    let numbers = Arc::new(PrimitiveArray::<T>::new(values.into(), None));
    let nulls = (!all).then(|| NullBuffer::from(present));
    Ok(Arc::new(FixedSizeListArray::try_new(field, width as i32, numbers, nulls)?))
}

/// Rows of `width` numbers with a row of zeros wherever one is not present.
fn with_gaps<T: ArrowPrimitiveType>(values: &[T::Native], width: usize, present: &[bool]) -> Vec<T::Native> {
    let mut spread = vec![T::default_value(); width * present.len()];
    let rows = present.iter().enumerate().filter_map(|(row, present)| present.then_some(row));
    for (row, numbers) in rows.zip(values.chunks_exact(width.max(1))) {
        spread[row * width..][..width].copy_from_slice(numbers);
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rows_are_null() {
        let values = QuantizedValues::Float32(vec![1.0, 2.0, 3.0, 4.0]);
        let array = embeddings(values, EmbeddingPrecision::Float32, 2, &[false, true, false, true]).unwrap();
        let lists = array.as_fixed_size_list();
        assert_eq!(lists.nulls().unwrap().iter().collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(lists.value(3).as_primitive::<Float32Type>().values(), &[3.0, 4.0]);
        assert_eq!(array.data_type(), &EmbeddingPrecision::Float32.data_type(2));
    }

    #[test]
    fn number_beyond_float16_is_an_error() {
        let values = QuantizedValues::Float32(vec![1.0, 70_000.0]);
        let error = embeddings(values, EmbeddingPrecision::Float16, 2, &[true]).unwrap_err().to_string();
        assert!(error.contains("70000, which float16 cannot hold"), "{error}");
    }
}

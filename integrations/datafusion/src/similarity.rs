//! The function `similarity`.

use std::sync::Arc;

use candle_attention::candle_core::{Device, Tensor};
use candle_attention_text::SimilarityFunction;
use datafusion::arrow::array::types::Float32Type;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float32Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use crate::arguments::{literal, scalars, text_type};

/// `similarity(a, b [, function])`: two lists of floats → f32, null → null. The function is `cosine` unless named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Similarity {
    signature: Signature,
}

impl Similarity {
    pub fn new() -> Self {
        Self { signature: Signature::user_defined(Volatility::Immutable) }
    }
}

/// Checks that a type is a list of floats; a null is one.
fn list_type(found: &DataType) -> Result<DataType> {
    let floats = |field: &Field| field.data_type().is_floating();
    match found {
        DataType::FixedSizeList(field, _) | DataType::List(field) | DataType::LargeList(field) if floats(field) => {
            Ok(found.clone())
        }
        DataType::Null => Ok(DataType::new_list(DataType::Float32, true)),
        other => plan_err!("an embedding of `similarity` is of type {other}, expected a list of floats"),
    }
}

/// The numbers of each row, or `None` for a null, as f32.
fn rows(array: &ArrayRef) -> Result<Vec<Option<ArrayRef>>> {
    let field = Arc::new(Field::new_list_field(DataType::Float32, true));
    let lists = cast(array, &DataType::LargeList(field))?;
    Ok(lists.as_list::<i64>().iter().collect())
}

fn numbers(row: &ArrayRef) -> Result<&[f32]> {
    match row.null_count() {
        0 => Ok(row.as_primitive::<Float32Type>().values()),
        _ => exec_err!("an embedding of `similarity` has a null among its numbers"),
    }
}

/// The similarity of the embeddings of each row.
fn pairwise(function: SimilarityFunction, a: &ArrayRef, b: &ArrayRef) -> Result<Float32Array> {
    let (a, b) = (rows(a)?, rows(b)?);
    let pairs: Vec<Option<(&ArrayRef, &ArrayRef)>> =
        a.iter().zip(&b).map(|(a, b)| Some((a.as_ref()?, b.as_ref()?))).collect();
    let Some((first, _)) = pairs.iter().flatten().next() else {
        return Ok(Float32Array::new_null(pairs.len()));
    };
    let size = first.len();
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (i, pair) in pairs.iter().enumerate() {
        let Some((a, b)) = pair else { continue };
        if (a.len(), b.len()) != (size, size) {
            let (a, b) = (a.len(), b.len());
            return exec_err!(
                "row {i} of a batch: the embeddings of `similarity` have {a} and {b} numbers, expected {size}"
            );
        }
        left.extend_from_slice(numbers(a)?);
        right.extend_from_slice(numbers(b)?);
    }
    let n = left.len() / size.max(1);
    let similarities = || -> candle_attention::Result<Vec<f32>> {
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, (n, size), &Device::Cpu);
        Ok(function.similarity_pairwise(&tensor(left)?, &tensor(right)?)?.to_vec1()?)
    };
    let mut similarities = match (size, similarities()) {
        (0, _) => return exec_err!("the embeddings of `similarity` have no numbers"),
        (_, Ok(similarities)) => similarities.into_iter(),
        (_, Err(error)) => return exec_err!("`similarity`: {error}"),
    };
    Ok(pairs.iter().map(|pair| pair.and_then(|_| similarities.next())).collect())
}

impl ScalarUDFImpl for Similarity {
    fn name(&self) -> &str {
        "similarity"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let [a, b, function @ ..] = found else {
            return plan_err!("`similarity` has {} arguments, expected two embeddings", found.len());
        };
        if function.len() > 1 {
            return plan_err!("`similarity` has {} arguments, expected two embeddings and a function", found.len());
        }
        let (a, b) = (list_type(a)?, list_type(b)?);
        if let (DataType::FixedSizeList(_, n), DataType::FixedSizeList(_, m)) = (&a, &b)
            && n != m
        {
            return plan_err!("the embeddings of `similarity` have {n} and {m} numbers, expected equally many");
        }
        let function = function.iter().map(|found| text_type(self.name(), "function", found));
        [Ok(a), Ok(b)].into_iter().chain(function).collect()
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float32)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let function = match literal(self.name(), "function", &scalars(&args.args), 2)? {
            None => SimilarityFunction::default(),
            Some(name) => match name.parse() {
                Ok(function) => function,
                Err(error) => return plan_err!("{error}"),
            },
        };
        let both = ColumnarValue::values_to_arrays(&args.args[..2])?;
        let similarities = pairwise(function, &both[0], &both[1])?;
        let is_scalar = args.args[..2].iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        Ok(if is_scalar {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&similarities, 0)?)
        } else {
            ColumnarValue::Array(Arc::new(similarities))
        })
    }
}

//! Arguments of the functions: columns of text, and literals.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{ColumnarValue, Expr};

/// The type in which a column of text is read; an argument `what` of another type is an error.
pub(crate) fn text_type(function: &str, what: &str, found: &DataType) -> Result<DataType> {
    match found {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(found.clone()),
        DataType::Null => Ok(DataType::Utf8),
        DataType::Dictionary(_, values) => text_type(function, what, values),
        other => plan_err!("the {what} of `{function}` is of type {other}, expected text"),
    }
}

/// The types of all arguments of a function: first columns of text, then optional literals, which are text too. `names`
/// are those of all arguments.
pub(crate) fn text_types(function: &str, names: &[&str], required: usize, found: &[DataType]) -> Result<Vec<DataType>> {
    if found.len() < required || found.len() > names.len() {
        let (required, optional) = (names[..required].join(", "), names[required..].join(", "));
        return plan_err!("`{function}` has {} arguments, expected {required} and, if any, {optional}", found.len());
    }
    found.iter().zip(names).map(|(found, name)| text_type(function, name, found)).collect()
}

/// The text of an argument that must be a literal; `None` if the call does not have it.
pub(crate) fn literal<'a>(
    function: &str,
    what: &str,
    arguments: &[Option<&'a ScalarValue>],
    i: usize,
) -> Result<Option<&'a str>> {
    match arguments.get(i) {
        None => Ok(None),
        Some(None) => plan_err!("the {what} of `{function}` is computed, expected a literal such as 'name'"),
        Some(Some(value)) => match value.try_as_str() {
            Some(Some(text)) => Ok(Some(text)),
            _ => plan_err!("the {what} of `{function}` is {value}, expected a literal such as 'name'"),
        },
    }
}

/// The literals among the arguments of a running call.
pub(crate) fn scalars(arguments: &[ColumnarValue]) -> Vec<Option<&ScalarValue>> {
    arguments.iter().map(scalar).collect()
}

fn scalar(argument: &ColumnarValue) -> Option<&ScalarValue> {
    match argument {
        ColumnarValue::Scalar(value) => Some(value),
        ColumnarValue::Array(_) => None,
    }
}

/// The literals among the arguments of a planned call.
pub(crate) fn literals(arguments: &[Expr]) -> Vec<Option<&ScalarValue>> {
    arguments.iter().map(Expr::as_literal).collect()
}

/// A literal of text as an expression.
pub(crate) fn text_literal(text: impl Into<String>) -> Expr {
    Expr::Literal(ScalarValue::Utf8(Some(text.into())), None)
}

//! Errors: operands that contradict each other, and memory that cannot be allocated.

/// The reason why a kernel refuses to compute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An operand has a size that contradicts the others.
    #[error("{operand} has shape {found:?}, expected {expected}")]
    Shape {
        /// Name of the operand.
        operand: String,
        /// Its shape.
        found: Vec<usize>,
        /// The expected shape, in words or numbers.
        expected: String,
    },

    /// A number, a list, an amount of memory or the name of an instruction set cannot be used.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Name of the value.
        what: String,
        /// The value, as text.
        found: String,
        /// The values that can be used, in words.
        expected: String,
    },
}

/// The result of a kernel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn shape(operand: impl Into<String>, found: &[usize], expected: impl Into<String>) -> Self {
        Self::Shape { operand: operand.into(), found: found.to_vec(), expected: expected.into() }
    }

    pub(crate) fn value(what: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Value { what: what.into(), found: found.to_string(), expected: expected.into() }
    }
}

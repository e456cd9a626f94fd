//! The setters of configurations and options, `with_<field>` for every field; and checks that return an error.

/// `with_x, x: Type = expression;` defines a method `with_x(self, x: Type)` that sets the field `x` to the expression.
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $with:ident, $field:ident: $ty:ty = $value:expr;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $with(mut self, $field: $ty) -> Self {
            self.$field = $value;
            self
        }
    )*};
}

/// `ensure!(condition, error);` returns the error from the function if the condition does not hold.
///
/// ```
/// use candle_attention::{Error, Result, ensure};
///
/// fn half(dim: usize) -> Result<usize> {
///     ensure!(dim.is_multiple_of(2), Error::value("dim", dim, "an even number"));
///     Ok(dim / 2)
/// }
/// assert_eq!(half(3).unwrap_err().to_string(), "dim is 3, expected an even number");
/// ```
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $error:expr) => {
        if !$condition {
            return Err($error);
        }
    };
}

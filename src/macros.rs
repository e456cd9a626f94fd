//! The setters of configurations and options: `with_<field>` for every field.

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

/// `MapTensors` of a struct, field by field. After the braces, `..` stands for all other fields, which are copied.
#[macro_export]
#[doc(hidden)]
macro_rules! map_fields {
    ($type:ident { $($field:ident),* } $($rest:tt)?) => {
        impl $crate::tensor::MapTensors for $type {
            fn map_tensors(
                &self,
                f: &mut dyn FnMut(&::candle_core::Tensor) -> $crate::Result<::candle_core::Tensor>,
            ) -> $crate::Result<Self> {
                Ok(Self { $($field: $crate::tensor::MapTensors::map_tensors(&self.$field, f)?,)* $($rest *self)? })
            }
        }
    };
}

/// `ShareWeights` of a struct, field by field. Small tensors, such as those of norms, are left out.
#[macro_export]
#[doc(hidden)]
macro_rules! share_fields {
    ($type:ident { $($field:ident),* }) => {
        impl $crate::tensor::ShareWeights for $type {
            fn share_weights(&mut self, other: &Self) -> $crate::Result<()> {
                $($crate::tensor::ShareWeights::share_weights(&mut self.$field, &other.$field)?;)*
                Ok(())
            }
        }
    };
}

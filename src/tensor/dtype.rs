//! The dtype to compute in, and dispatch from a dtype to a Rust type.

use candle_core::DType;

/// The dtype in which norms, softmaxes and means are computed: f64 for f64, f32 for every other float.
pub fn compute_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// `for_cpu_element!(dtype, T => expression)` evaluates the expression with `T` as the element type that the CPU
/// kernels use for the dtype: `f16`, `bf16`, and `f32` for every other.
macro_rules! for_cpu_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F16 => {
                type $element = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $element = half::bf16;
                $body
            }
            _ => {
                type $element = f32;
                $body
            }
        }
    };
}
pub(crate) use for_cpu_element;

//! The dtypes that kernels read and write; they compute in f32.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A stored number.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// 0.
    const ZERO: Self;

    /// Both slices are of one length.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Both slices are of one length. Rounds to nearest, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

macro_rules! half_element {
    ($ty:ty) => {
        impl Element for $ty {
            const ZERO: Self = <$ty>::ZERO;

            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        }
    };
}

half_element!(f16);
half_element!(bf16);

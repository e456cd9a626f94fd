//! What follows the sums of a product: bias, activation, and the dtype of the output.

use super::activation::{Activation, activate_bf16};
use super::elements::ElementsOut;
use super::isa::simd::{Simd, VectorKernel};

/// The sums of some rows by one panel of outputs, which become results.
pub(super) struct Epilogue<'a> {
    /// Rows as long as `bias`.
    pub sums: &'a mut [f32],
    /// One value for each output of the panel, whole vectors.
    pub bias: &'a [f32],
    pub activation: Activation,
    /// The outputs that there are; the others of the panel fill it.
    pub columns: usize,
    pub out: ElementsOut,
    /// The first result of the first row in the output, and the number of elements from one row to the next.
    pub start: usize,
    pub stride: usize,
}

impl VectorKernel for Epilogue<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // A loop for each, which keeps its constants in registers.
        match self.activation {
            Activation::Identity => self.finish(s, Activation::Identity),
            Activation::Gelu => self.finish(s, Activation::Gelu),
            Activation::GeluTanh => self.finish(s, Activation::GeluTanh),
            Activation::Silu => self.finish(s, Activation::Silu),
            Activation::Relu => self.finish(s, Activation::Relu),
        }
    }
}

impl Epilogue<'_> {
    #[inline(always)]
    fn finish<S: Simd>(self, s: S, activation: Activation) {
        let Self { sums, bias, columns, out, start, stride, .. } = self;
        let (width, rounds_to_bf16) = (bias.len(), out.is_bf16());
        assert!(width.is_multiple_of(S::LANES) && sums.len().is_multiple_of(width) && columns <= width);
        let rows = sums.len() / width;
        // Whole rows of f32 go to the output at once, others first back to where the sums were.
        let sums = sums.as_mut_ptr();
        let (to, to_stride, direct) = match out {
            ElementsOut::F32(out) if columns == width => (out.start().wrapping_add(start), stride, true),
            _ => (sums, width, false),
        };
        // SAFETY: there are `rows` rows of `width` sums, and the bias has as many values, whole vectors. The callers of
        // `GemmTask::store` promise that `columns` elements of each row of the output are theirs.
        unsafe {
            for at in (0..width).step_by(S::LANES) {
                let bias = s.load(bias.as_ptr().add(at));
                for row in 0..rows {
                    let sum = s.add(s.load(sums.add(row * width + at)), bias);
                    let result =
                        if rounds_to_bf16 { activate_bf16(s, activation, sum) } else { activation.apply(s, sum) };
                    s.store(to.add(row * to_stride + at), result);
                }
            }
            if !direct {
                for row in 0..rows {
                    let results = std::slice::from_raw_parts(sums.add(row * width), columns);
                    out.store(s, start + row * stride, results);
                }
            }
        }
    }
}

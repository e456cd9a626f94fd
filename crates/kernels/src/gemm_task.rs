//! The part of a product that one thread computes, and its epilogue: bias, activation, rounding, storing.

use super::activation::Activation;
use super::convert::Convert;
use super::isa::simd::Simd;
use super::packing::PackedWeights;
use super::scratch::ScratchPool;
use super::shared_out::SharedOut;

/// The part of a product that one thread computes: rows `from .. to`, panels `first .. last`.
#[derive(Clone, Copy)]
pub(super) struct GemmTask<'a, A, O> {
    pub weights: &'a PackedWeights,
    pub a: &'a [A],
    pub out: SharedOut<O>,
    pub pool: &'a ScratchPool,
    pub from: usize,
    pub to: usize,
    pub first: usize,
    pub last: usize,
    pub activation: Activation,
}

/// The most columns that a register tile has.
pub(super) const MAX_COLUMNS: usize = 48;

impl<A, O: Convert> GemmTask<'_, A, O> {
    /// Adds the bias to `sums`, one row of one panel, applies the activation and stores the result.
    ///
    /// # Safety
    /// The row is one of this task, no other thread writes its panel, and `sums` has `panel_width` values.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, s: S, panel: usize, row: usize, sums: &[S::V]) {
        let PackedWeights { out_features, panel_width, bias, .. } = self.weights;
        let bias = &bias[panel * panel_width..][..*panel_width];
        let columns = (*panel_width).min(out_features - panel * panel_width);
        let at = row * out_features + panel * panel_width;
        let mut buffer = [0.0f32; MAX_COLUMNS];
        let direct = O::IS_F32 && columns == *panel_width;
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: `bias` has `panel_width` values. So has the row of the output, which `multiply` has reserved, if
            // the panel is full; if not, or if the output is not f32, the values are stored in `buffer` first.
            unsafe {
                let sum = self.activation.apply(s, s.add(*sum, s.load(bias.as_ptr().add(v * S::LANES))));
                let to = if direct { self.out.0.cast::<f32>().add(at) } else { buffer.as_mut_ptr() };
                s.store(to.add(v * S::LANES), sum);
            }
        }
        if !direct {
            // SAFETY: `columns` values are left in this row of the output, which only this task writes.
            O::downcast(&buffer[..columns], unsafe { self.out.part(at, columns) });
        }
    }
}

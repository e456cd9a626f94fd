//! Packed weights as they were, and some of their outputs.
//!
//! f32 panels hold f32, f16 and bf16 weights exactly, and pairs hold bf16 weights exactly. So where weights are packed,
//! the matrix they came from need not be kept: what still asks for it gets it from here, bit for bit. (A NaN stays a
//! NaN but may become a quiet one.)

use std::ops::Range;

use half::bf16;

use super::aligned::AlignedVec;
use super::convert::Convert;
use super::error::Result;
use super::packing::{PackedWeights, Panels, place_in_panel};
use super::size::{element_count, try_reserve};

impl PackedWeights {
    /// [`unpack`](Self::unpack) for one dtype.
    pub(crate) fn unpack_elements<T: Convert>(&self, outputs: Range<usize>) -> Result<Vec<T>> {
        let size = element_count("a weight", &[outputs.len(), self.in_features])?;
        let mut weights = Vec::<T>::new();
        try_reserve("a weight", &mut weights, size)?;
        let mut row = vec![0.0; self.in_features];
        let unpacked = &mut weights.spare_capacity_mut()[..size];
        for (output, to) in outputs.zip(unpacked.chunks_exact_mut(self.in_features.max(1))) {
            self.unpack_row(output, &mut row);
            T::downcast(&row, to);
        }
        // SAFETY: there are `size` values: as many rows as outputs, each written by `downcast` in its whole length.
        unsafe { weights.set_len(size) };
        Ok(weights)
    }

    /// The bias of a range of outputs.
    ///
    /// # Panics
    /// If there are fewer outputs.
    pub fn bias(&self, outputs: Range<usize>) -> &[f32] {
        &self.bias[outputs]
    }

    /// The outputs in a range as weights of their own, in the same memory, and the number of outputs before the range
    /// that they have too: those at the beginning of its first panel.
    ///
    /// # Errors
    /// There is not enough memory.
    ///
    /// # Panics
    /// If there are fewer outputs.
    pub fn outputs(&self, outputs: Range<usize>) -> Result<(Self, usize)> {
        let (width, panels) = (self.panel_width, self.panels());
        let (first, last) = (outputs.start / width, outputs.end.div_ceil(width));
        let memory = match &self.panels {
            Panels::F32(memory) => Panels::F32(memory.panels(first, last, panels)),
            Panels::Bf16(memory) => Panels::Bf16(memory.panels(first, last, panels)),
        };
        let part = Self {
            out_features: outputs.end - first * width,
            panels: memory,
            bias: AlignedVec::copy_of("a bias", &self.bias[first * width..last * width])?,
            ..*self
        };
        Ok((part, outputs.start - first * width))
    }

    fn panels(&self) -> usize {
        self.bias.len() / self.panel_width
    }

    fn unpack_row(&self, output: usize, row: &mut [f32]) {
        let width = self.panel_width;
        let (index, column, panels) = (output / width, output % width, self.panels());
        match &self.panels {
            Panels::F32(memory) => {
                let panel = memory.panel(index, panels);
                for (term, weight) in row.iter_mut().enumerate() {
                    *weight = panel[place_in_panel(false, term, column, width)];
                }
            }
            Panels::Bf16(memory) => {
                let (panel, blocks) = (memory.panel(index, panels), self.isa.bf16_tiles().blocks);
                for (term, weights) in row.chunks_mut(2).enumerate() {
                    let pair = panel[place_in_panel(blocks, term, column, width)];
                    let halves = [pair as u16, (pair >> 16) as u16];
                    weights.iter_mut().zip(halves).for_each(|(weight, half)| *weight = bf16::from_bits(half).to_f32());
                }
            }
        }
    }
}

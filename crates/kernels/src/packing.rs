//! Weights of a projection, packed once for the products of one instruction set.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::Pod;

use super::aligned::AlignedVec;
use super::isa::Isa;
use super::isa::bf16_dot::{Bf16x2, place_in_blocks};

/// Weights `(out_features, in_features)` and a bias, packed for one instruction set.
///
/// The packing is panels of as many output features as a register tile has columns. A panel holds the first input
/// feature of each of its output features, then the second, and so on: the order in which the microkernel reads them.
/// bf16 weights are packed in pairs of input features. [`Packer`](crate::Packer) makes them.
#[derive(Clone)]
pub struct PackedWeights {
    pub(super) isa: Isa,
    pub(super) in_features: usize,
    pub(super) out_features: usize,
    /// Output features per panel.
    pub(super) panel_width: usize,
    pub(super) panels: Panels,
    /// One value per output feature, padded to whole panels.
    pub(super) bias: AlignedVec<f32>,
}

#[derive(Clone)]
pub(super) enum Panels {
    F32(SharedPanels<f32>),
    /// For inputs that are rounded to bf16, with f32 sums. Where the instructions take them, in blocks of 16 pairs by
    /// 16 output features.
    Bf16(SharedPanels<Bf16x2>),
}

/// Whole panels of a matrix, in memory that clones and ranges of its outputs share.
#[derive(Clone)]
pub(super) struct SharedPanels<T> {
    memory: Arc<AlignedVec<T>>,
    range: Range<usize>,
}

impl<T: Pod> SharedPanels<T> {
    pub(super) fn new(memory: AlignedVec<T>) -> Self {
        Self { range: 0..memory.len(), memory: Arc::new(memory) }
    }

    /// Panels `first .. last` of all `panels`, in the same memory.
    pub(super) fn panels(&self, first: usize, last: usize, panels: usize) -> Self {
        let size = self.range.len() / panels.max(1);
        let at = |panel: usize| self.range.start + panel * size;
        Self { memory: self.memory.clone(), range: at(first)..at(last) }
    }

    /// Panel `index` of all `panels`.
    pub(super) fn panel(&self, index: usize, panels: usize) -> &[T] {
        let size = self.range.len() / panels;
        &self[index * size..][..size]
    }
}

impl<T: Pod> Deref for SharedPanels<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[self.range.clone()]
    }
}

/// Where a panel holds `term`, an input feature or a pair of them, of its output feature `column`: in rows of
/// `panel_width`, one for each term, or in `blocks` of 16 terms by 16 outputs. Packing and unpacking know the order
/// inside a panel from here only.
#[inline(always)]
pub(super) fn place_in_panel(blocks: bool, term: usize, column: usize, panel_width: usize) -> usize {
    match blocks {
        true => place_in_blocks(term, column, panel_width),
        false => term * panel_width + column,
    }
}

fn bytes<T: Pod>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

impl PackedWeights {
    /// Values per row of the input.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Values per row of the output.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Whether both hold the same bits in the same order.
    pub fn has_same_bits(&self, other: &Self) -> bool {
        let sizes = |weights: &Self| (weights.in_features, weights.out_features, weights.panel_width);
        let panels = match (&self.panels, &other.panels) {
            (Panels::F32(own), Panels::F32(other)) => bytes(own) == bytes(other),
            (Panels::Bf16(own), Panels::Bf16(other)) => bytes(own) == bytes(other),
            _ => false,
        };
        sizes(self) == sizes(other) && bytes(&self.bias) == bytes(&other.bias) && panels
    }

    /// Whether products round their inputs to bf16.
    pub fn rounds_to_bf16(&self) -> bool {
        matches!(self.panels, Panels::Bf16(_))
    }
}

/// The sizes: the weights themselves are megabytes.
impl fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedWeights({} x {}, {})", self.out_features, self.in_features, self.isa.name())
    }
}

//! Panels of quantized weights: the order of their bytes, and back.
//!
//! A step is some consecutive inputs of each output of a panel, the outputs side by side: 4 inputs for instructions
//! that add four products to a 32-bit sum. A vector of 64 bytes is then 16 outputs. The nibbles of Q4_0 are two steps
//! in the bytes of one: the earlier step in the low nibbles.

use super::dot::Int8Dot;
use super::encode::WeightFormat;
use super::kernel::{Int8Kernel, TILE_COLUMNS, TILE_STEP};
use crate::isa::simd::Simd;
use crate::registry::Isa;

/// The order of the bytes in panels, which depends on the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PanelLayout {
    pub format: WeightFormat,
    /// Output features per panel.
    pub width: usize,
    /// Input features, filled up with zeros to whole steps.
    pub inputs: usize,
    /// Inputs per step.
    pub step: usize,
    /// Bytes of an input that was rounded.
    pub input_size: usize,
    /// The number that is added to an integer, so that instructions that take unsigned weights can have it.
    pub offset: u8,
    /// Scales per output feature.
    pub groups: usize,
}

impl PanelLayout {
    /// The layout of weights with `in_features` inputs for an instruction set.
    pub fn new(isa: Isa, format: WeightFormat, in_features: usize) -> Self {
        let groups = format.groups(in_features);
        if format == WeightFormat::Int8 && isa.has_int8_tiles() {
            let inputs = in_features.next_multiple_of(TILE_STEP);
            return Self { format, width: TILE_COLUMNS, inputs, step: 4, input_size: 1, offset: 0, groups };
        }
        let mut layout = Self { format, width: 0, inputs: in_features, step: 1, input_size: 1, offset: 0, groups };
        isa.run_int8(FitLayout(&mut layout));
        layout
    }

    fn is_nibbles(self) -> bool {
        self.format == WeightFormat::Q4_0
    }

    /// Bytes of a row of inputs that were rounded.
    pub fn input_row_bytes(self) -> usize {
        self.inputs * self.input_size
    }

    /// Bytes of a panel.
    pub fn panel_bytes(self) -> usize {
        self.bytes_of(self.inputs)
    }

    /// Bytes of a panel that hold `inputs` inputs from its beginning, or any such range between steps.
    pub fn bytes_of(self, inputs: usize) -> usize {
        self.width * inputs / if self.is_nibbles() { 2 } else { 1 }
    }

    /// The first byte of a step of an output feature, and by how many bits its weights are shifted there.
    #[inline(always)]
    fn place(self, step: usize, column: usize) -> (usize, u32) {
        let (row, shift) = if self.is_nibbles() { (step / 2, 4 * (step as u32 % 2)) } else { (step, 0) };
        ((row * self.width + column) * self.step, shift)
    }

    /// Writes the integers of an output feature into its panel, which was all zeros there.
    pub fn write(self, panel: &mut [u8], column: usize, values: &[i8]) {
        let mask = if self.is_nibbles() { 0xf } else { 0xff };
        for (step, values) in values.chunks(self.step).enumerate() {
            let (at, shift) = self.place(step, column);
            for (to, value) in panel[at..].iter_mut().zip(values) {
                *to |= (value.cast_unsigned().wrapping_add(self.offset) & mask) << shift;
            }
        }
    }

    /// The place of a scale of an output feature among those of its panel: those of the first group of all outputs,
    /// then those of the second.
    pub fn scale_at(self, group: usize, column: usize) -> usize {
        group * self.width + column
    }

    /// The integer of one weight.
    pub fn read(self, panel: &[u8], column: usize, input: usize) -> i8 {
        let (at, shift) = self.place(input / self.step, column);
        let at = at + input % self.step;
        let value = match self.is_nibbles() {
            // A signed nibble is extended by its sign.
            true if self.offset == 0 => return (panel[at] >> shift << 4).cast_signed() >> 4,
            true => panel[at] >> shift & 0xf,
            false => panel[at],
        };
        value.wrapping_sub(self.offset).cast_signed()
    }
}

/// Fits a layout to the instructions.
struct FitLayout<'a>(&'a mut PanelLayout);

impl Int8Kernel for FitLayout<'_> {
    #[inline(always)]
    fn run<D: Int8Dot, const MR: usize, const NR: usize, const BLOCK_MR: usize>(self, _: D) {
        let layout = self.0;
        layout.width = NR * D::S::LANES;
        layout.inputs = layout.inputs.next_multiple_of(D::STEP);
        layout.step = D::STEP;
        layout.input_size = size_of::<D::Input>();
        layout.offset = if layout.is_nibbles() { D::NIBBLE_OFFSET } else { D::OFFSET };
    }
}

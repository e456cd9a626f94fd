//! Panels of quantized weights: the order of their bytes, and back.
//!
//! A step is some consecutive inputs of each output of a panel, the outputs side by side: 4 inputs for instructions
//! that add four products to a 32-bit sum. A vector of 64 bytes is then 16 outputs. The nibbles of Q4_0 are two steps
//! in the bytes of one: the earlier step in the low nibbles.

use half::f16;

use super::encode::WeightFormat;
use crate::error::Result;
use crate::memory::{AlignedVec, element_count, try_reserve};
use crate::packing::{SharedPanels, bytes, zeros};

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
    /// What is added to an integer, so that instructions that take unsigned weights can have it.
    pub offset: u8,
    /// Scales per output feature.
    pub groups: usize,
}

/// Quantized weights in whole panels.
#[derive(Clone)]
pub(crate) struct QuantizedPanels {
    pub layout: PanelLayout,
    pub values: SharedPanels<u8>,
    pub scales: PanelScales,
}

/// The scales of panels: those of the first group of all outputs of a panel, then those of the second.
#[derive(Clone)]
pub(crate) enum PanelScales {
    F32(SharedPanels<f32>),
    F16(SharedPanels<f16>),
}

impl PanelLayout {
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

impl PanelScales {
    fn panels(&self, first: usize, last: usize, panels: usize) -> Self {
        match self {
            Self::F32(scales) => Self::F32(scales.panels(first, last, panels)),
            Self::F16(scales) => Self::F16(scales.panels(first, last, panels)),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(scales) => bytes(scales),
            Self::F16(scales) => bytes(scales),
        }
    }
}

impl QuantizedPanels {
    /// Panels `first .. last` of all `panels`, in the same memory.
    pub fn panels(&self, first: usize, last: usize, panels: usize) -> Self {
        Self {
            layout: self.layout,
            values: self.values.panels(first, last, panels),
            scales: self.scales.panels(first, last, panels),
        }
    }

    /// The bytes of values and scales.
    pub fn bytes(&self) -> usize {
        self.values.len() + self.scales.bytes().len()
    }

    pub fn has_same_bits(&self, other: &Self) -> bool {
        self.layout == other.layout && *self.values == *other.values && self.scales.bytes() == other.scales.bytes()
    }

    /// The weights of an output feature, at `column` of panel `index` of all `panels`: each integer times its scale,
    /// which is exact.
    pub fn unpack_row(&self, index: usize, column: usize, panels: usize, row: &mut [f32]) {
        let panel = self.values.panel(index, panels);
        let (layout, group) = (self.layout, self.layout.format.group(row.len()));
        for (input, weight) in row.iter_mut().enumerate() {
            let at = input / group * layout.width + column;
            let scale = match &self.scales {
                PanelScales::F32(scales) => scales.panel(index, panels)[at],
                PanelScales::F16(scales) => scales.panel(index, panels)[at].to_f32(),
            };
            *weight = f32::from(layout.read(panel, column, input)) * scale;
        }
    }
}

/// Panels of quantized weights that are being filled.
pub(crate) struct QuantizedPacker {
    layout: PanelLayout,
    values: AlignedVec<u8>,
    scales: ScaleMemory,
    /// The integers and scales of one output feature.
    row: (Vec<i8>, Vec<f32>),
}

enum ScaleMemory {
    F32(AlignedVec<f32>),
    F16(AlignedVec<f16>),
}

impl QuantizedPacker {
    /// Makes room for `outputs` output features, which fill panels.
    pub fn new(layout: PanelLayout, in_features: usize, outputs: usize) -> Result<Self> {
        let values = element_count("packed weights", &[outputs, layout.inputs])?;
        let values = zeros(&[values / layout.width.max(1) / layout.inputs.max(1), layout.panel_bytes()])?;
        let scales = match layout.format {
            WeightFormat::Int8 => ScaleMemory::F32(zeros(&[outputs, layout.groups])?),
            _ => ScaleMemory::F16(zeros(&[outputs, layout.groups])?),
        };
        let (mut row, mut row_scales) = (Vec::new(), Vec::new());
        try_reserve("a row of weights", &mut row, in_features)?;
        row.resize(in_features, 0);
        try_reserve("the scales of a row", &mut row_scales, layout.groups)?;
        row_scales.resize(layout.groups, 0.0);
        Ok(Self { layout, values, scales, row: (row, row_scales) })
    }

    /// Packs the weights of output feature `index`.
    pub fn push(&mut self, index: usize, weights: &[f32]) -> Result<()> {
        let (layout, (values, scales)) = (self.layout, &mut self.row);
        layout.format.encode(index, weights, values, scales)?;
        let (panel, column) = (index / layout.width, index % layout.width);
        layout.write(&mut self.values[panel * layout.panel_bytes()..][..layout.panel_bytes()], column, values);
        for (group, scale) in scales.iter().enumerate() {
            let at = (panel * layout.groups + group) * layout.width + column;
            match &mut self.scales {
                ScaleMemory::F32(to) => to[at] = *scale,
                ScaleMemory::F16(to) => to[at] = f16::from_f32(*scale),
            }
        }
        Ok(())
    }

    pub fn finish(self) -> QuantizedPanels {
        let scales = match self.scales {
            ScaleMemory::F32(scales) => PanelScales::F32(SharedPanels::new(scales)),
            ScaleMemory::F16(scales) => PanelScales::F16(SharedPanels::new(scales)),
        };
        QuantizedPanels { layout: self.layout, values: SharedPanels::new(self.values), scales }
    }
}

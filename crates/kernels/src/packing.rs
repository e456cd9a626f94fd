//! Weights of a projection, packed once for the products of one instruction set; and back.
//!
//! The rows come as slices of any dtype, from one layer or from several with the same input. Nothing is concatenated or
//! converted before: beside the panels, packing takes the memory of one row.
//!
//! Panels hold f32, f16 and bf16 weights exactly, each in its own dtype. So where weights are packed, the matrix they
//! came from need not be kept: what still asks for it gets it from here, bit for bit. (A NaN stays a NaN but may become
//! a quiet one.) Formats of few bits give what they stand for, which packs to the same.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::blas::{Blas, MAX_SIZE, MIN_OUTPUTS};
use super::convert::Convert;
use super::error::{Error, Result};
use super::int8::encode::WeightFormat;
use super::int8::panels::{QuantizedPacker, QuantizedPanels};
use super::isa::Isa;
use super::isa::pair_dot::{Pair, PairFormat, PairOrder};
use super::memory::{AlignedVec, element_count, try_reserve};
use bytemuck::Pod;

/// Weights `(out_features, in_features)` and a bias, packed for one instruction set.
///
/// The packing is panels of as many output features as a register tile has columns. A panel holds the first input
/// feature of each of its output features, then the second, and so on: the order in which the microkernel reads them.
/// f16 and bf16 weights are packed in pairs of input features. [`Packer`](crate::Packer) makes them. Weights that a
/// library multiplies are panels of one output feature: row-major.
#[derive(Clone)]
pub struct PackedWeights {
    pub(super) isa: Isa,
    /// The library that multiplies, if this crate does not.
    pub(super) blas: Option<Blas>,
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
    /// Values of 16 bits, which become f32 when they are multiplied.
    Halves(PairFormat, SharedPanels<u16>),
    /// For inputs that are rounded to the format of the pairs, with f32 sums.
    Pairs(PairFormat, SharedPanels<Pair>),
    /// Integers with scales, for inputs that are rounded to int8.
    Quantized(QuantizedPanels),
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

pub(super) fn bytes<T: Pod>(values: &[T]) -> &[u8] {
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

    /// The bytes of weights, scales and bias.
    pub fn bytes(&self) -> usize {
        let panels = match &self.panels {
            Panels::F32(panels) => bytes(panels).len(),
            Panels::Halves(_, panels) => bytes(panels).len(),
            Panels::Pairs(_, panels) => bytes(panels).len(),
            Panels::Quantized(panels) => panels.bytes(),
        };
        panels + bytes(&self.bias).len()
    }

    /// Whether both hold the same bits in the same order.
    pub fn has_same_bits(&self, other: &Self) -> bool {
        let sizes = |weights: &Self| (weights.in_features, weights.out_features, weights.panel_width);
        let panels = match (&self.panels, &other.panels) {
            (Panels::F32(own), Panels::F32(other)) => bytes(own) == bytes(other),
            (Panels::Halves(a, own), Panels::Halves(b, other)) => a == b && bytes(own) == bytes(other),
            (Panels::Pairs(a, own), Panels::Pairs(b, other)) => a == b && bytes(own) == bytes(other),
            (Panels::Quantized(own), Panels::Quantized(other)) => own.has_same_bits(other),
            _ => false,
        };
        sizes(self) == sizes(other) && bytes(&self.bias) == bytes(&other.bias) && panels
    }

    /// The numbers that the weights are held in: the format that they were packed for.
    pub fn format(&self) -> WeightFormat {
        match &self.panels {
            Panels::F32(_) => WeightFormat::F32,
            Panels::Halves(PairFormat::Bf16, _) | Panels::Pairs(PairFormat::Bf16, _) => WeightFormat::Bf16,
            Panels::Halves(PairFormat::F16, _) | Panels::Pairs(PairFormat::F16, _) => WeightFormat::F16,
            Panels::Quantized(panels) => panels.layout.format,
        }
    }

    /// Whether products round their inputs to bf16.
    pub fn rounds_to_bf16(&self) -> bool {
        matches!(self.panels, Panels::Pairs(PairFormat::Bf16, _))
    }

    /// Whether products round their inputs to bf16 or to integers, so that bf16 between two of them costs little.
    pub fn rounds_coarsely(&self) -> bool {
        self.rounds_to_bf16() || matches!(self.panels, Panels::Quantized(_))
    }
}

/// The sizes: the weights themselves are megabytes.
impl fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedWeights({} x {}, {})", self.out_features, self.in_features, self.isa.name())
    }
}

/// Panels that are being filled.
pub struct Packer {
    isa: Isa,
    blas: Option<Blas>,
    in_features: usize,
    out_features: usize,
    panel_width: usize,
    /// Input features of an output feature, or pairs of them.
    terms: usize,
    /// The order inside a panel.
    order: PairOrder,
    panels: Memory,
    bias: AlignedVec<f32>,
    /// Output features that have been packed.
    packed: usize,
    /// One row in f32.
    row: AlignedVec<f32>,
}

enum Memory {
    F32(AlignedVec<f32>),
    Halves(PairFormat, AlignedVec<u16>),
    Pairs(PairFormat, AlignedVec<Pair>),
    Quantized(QuantizedPacker),
}

impl Packer {
    /// Makes room for weights `(out_features, in_features)` that will be held in a format.
    ///
    /// In [`WeightFormat::Bf16`], if there are instructions for bf16 products, inputs will be rounded to bf16 and sums
    /// are f32; weights must be bf16 values, or they are rounded. In the same way in [`WeightFormat::F16`]: see there.
    /// Without such instructions weights are held in 16 bits, and products are those of f32 weights, bit for bit. In
    /// the other formats inputs will be rounded to int8.
    ///
    /// # Errors
    /// The format cannot have so many input features, or there is not enough memory.
    pub fn new(isa: Isa, format: WeightFormat, out_features: usize, in_features: usize) -> Result<Self> {
        Self::with_blas(isa, None, format, out_features, in_features)
    }

    /// [`new`](Self::new) for products by a library, if there is one, the format has 16 or 32 bits, and there are at
    /// least 12 outputs. Weights of 16 bits are then held in these, inputs are not rounded, and products are those of
    /// f32.
    ///
    /// # Errors
    /// The errors of `new`, and more input features than the integers of a library count.
    pub fn with_blas(
        isa: Isa,
        blas: Option<Blas>,
        format: WeightFormat,
        out_features: usize,
        in_features: usize,
    ) -> Result<Self> {
        element_count("a weight", &[out_features, in_features])?;
        format.check_width(in_features)?;
        let blas = blas.filter(|_| !format.is_quantized() && out_features >= MIN_OUTPUTS);
        if let Some(blas) = blas.filter(|_| in_features > MAX_SIZE) {
            let expected = format!("at most {MAX_SIZE} for products by {}", blas.name);
            return Err(Error::value("the number of input features", in_features, expected));
        }
        let (panel_width, terms, order, panels);
        if format.is_quantized() {
            let layout = isa.int8_layout(format, in_features);
            (panel_width, terms, order) = (layout.width, layout.inputs, PairOrder::Rows);
            panels =
                Memory::Quantized(QuantizedPacker::new(layout, in_features, whole_panels(out_features, panel_width)?)?);
        } else if let Some(pairs) = format.pairs().filter(|pairs| blas.is_none() && isa.has_pairs(*pairs)) {
            let tiles = isa.pair_tiles(pairs);
            (panel_width, order) = (tiles.columns, tiles.order);
            terms = in_features.div_ceil(2).next_multiple_of(tiles.pair_step);
            panels = Memory::Pairs(pairs, zeros(&[whole_panels(out_features, panel_width)?, terms])?);
        } else {
            panel_width = if blas.is_some() { 1 } else { isa.tile_columns() };
            (terms, order) = (in_features, PairOrder::Rows);
            let dims = [whole_panels(out_features, panel_width)?, terms];
            panels = match format.pairs() {
                Some(halves) => Memory::Halves(halves, zeros(&dims)?),
                None => Memory::F32(zeros(&dims)?),
            };
        }
        let (bias, row) = (zeros(&[whole_panels(out_features, panel_width)?])?, zeros(&[in_features])?);
        Ok(Self { isa, blas, in_features, out_features, panel_width, terms, order, panels, bias, packed: 0, row })
    }

    /// [`push`](Self::push) for one dtype.
    pub(crate) fn push_elements<T: Convert>(
        &mut self,
        outputs: usize,
        weight: &[T],
        bias: Option<&[f32]>,
    ) -> Result<()> {
        if weight.len() != element_count("a weight", &[outputs, self.in_features])? {
            return Err(Error::shape("a weight", &[weight.len()], format!("{outputs} × {}", self.in_features)));
        }
        if outputs > self.out_features - self.packed {
            return Err(Error::value(
                "the number of output features",
                self.packed + outputs,
                format!("{}", self.out_features),
            ));
        }
        if let Some(bias) = bias {
            if bias.len() != outputs {
                return Err(Error::shape("a bias", &[bias.len()], format!("[{outputs}]")));
            }
            self.bias[self.packed..][..outputs].copy_from_slice(bias);
        }
        let (width, size) = (self.panel_width, self.panel_width * self.terms);
        for (feature, values) in (self.packed..).zip(weight.chunks_exact(self.in_features.max(1))) {
            let row = T::as_f32(values, &mut self.row);
            let (from, column) = (feature / width * size, feature % width);
            match &mut self.panels {
                Memory::F32(panels) => {
                    let panel = &mut panels[from..][..size];
                    for (term, weight) in row.iter().enumerate() {
                        panel[PairOrder::Rows.place_in_columns(term, column, width)] = *weight;
                    }
                }
                Memory::Halves(format, panels) => {
                    let panel = &mut panels[from..][..size];
                    let rounded: Vec<u16>;
                    let halves = match T::as_halves(*format, values) {
                        Some(halves) => halves,
                        None => {
                            rounded = row.iter().map(|weight| format.bits(*weight)).collect();
                            &rounded
                        }
                    };
                    for (term, half) in halves.iter().enumerate() {
                        panel[PairOrder::Rows.place_in_columns(term, column, width)] = *half;
                    }
                }
                Memory::Pairs(format, panels) => {
                    let panel = &mut panels[from..][..size];
                    for (term, pair) in row.chunks(2).enumerate() {
                        let second = pair.get(1).copied().unwrap_or(0.0);
                        panel[self.order.place_in_columns(term, column, width)] = format.pair(pair[0], second);
                    }
                }
                Memory::Quantized(panels) => panels.push(feature, row)?,
            }
        }
        self.packed += outputs;
        Ok(())
    }

    /// The packed weights.
    ///
    /// # Errors
    /// Output features are missing.
    pub fn finish(self) -> Result<PackedWeights> {
        if self.packed != self.out_features {
            return Err(Error::value("the number of output features", self.packed, format!("{}", self.out_features)));
        }
        let panels = match self.panels {
            Memory::F32(panels) => Panels::F32(SharedPanels::new(panels)),
            Memory::Halves(format, panels) => Panels::Halves(format, SharedPanels::new(panels)),
            Memory::Pairs(format, panels) => Panels::Pairs(format, SharedPanels::new(panels)),
            Memory::Quantized(panels) => Panels::Quantized(panels.finish()),
        };
        let Self { isa, blas, in_features, out_features, panel_width, bias, .. } = self;
        Ok(PackedWeights { isa, blas, in_features, out_features, panel_width, panels, bias })
    }
}

/// Output features with those that fill the last panel.
fn whole_panels(out_features: usize, panel_width: usize) -> Result<usize> {
    let wraps =
        || Error::value("the number of output features", out_features, "one that can be padded to whole panels");
    out_features.checked_next_multiple_of(panel_width).ok_or_else(wraps)
}

pub(super) fn zeros<T: bytemuck::Pod>(dims: &[usize]) -> Result<AlignedVec<T>> {
    AlignedVec::zeros("packed weights", element_count("packed weights", dims)?)
}

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
            Panels::Halves(format, memory) => Panels::Halves(*format, memory.panels(first, last, panels)),
            Panels::Pairs(format, memory) => Panels::Pairs(*format, memory.panels(first, last, panels)),
            Panels::Quantized(memory) => Panels::Quantized(memory.panels(first, last, panels)),
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
                    *weight = panel[PairOrder::Rows.place_in_columns(term, column, width)];
                }
            }
            Panels::Halves(format, memory) => {
                let panel = memory.panel(index, panels);
                for (term, weight) in row.iter_mut().enumerate() {
                    *weight = format.value(panel[PairOrder::Rows.place_in_columns(term, column, width)]);
                }
            }
            Panels::Pairs(format, memory) => {
                let (panel, order) = (memory.panel(index, panels), self.isa.pair_tiles(*format).order);
                for (term, weights) in row.chunks_mut(2).enumerate() {
                    let pair = panel[order.place_in_columns(term, column, width)];
                    weights.iter_mut().zip(format.values(pair)).for_each(|(weight, value)| *weight = value);
                }
            }
            Panels::Quantized(memory) => memory.unpack_row(index, column, panels, row),
        }
    }
}

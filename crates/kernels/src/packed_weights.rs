//! Packed weights, their products with activations, and the way back to rows.
//!
//! Panels hold f32, f16 and bf16 weights exactly, each in its own dtype. So where weights are packed, the matrix they
//! came from need not be kept: what still asks for it gets it from here, bit for bit. (A NaN stays a NaN but may become
//! a quiet one.) Formats of few bits give what they stand for, which packs to the same.

use std::fmt;
use std::ops::Range;

use super::activation::Activation;
use super::blas::{Blas, OUTPUT_STEP, ROW_BLOCK, run_blas, share};
use super::convert::PairFormat;
use super::elements::{Element, Elements, ElementsOut};
use super::error::{Error, Result};
use super::gemm::{GemmTask, run_f32};
use super::gemm_pairs::run_pairs;
use super::int8::encode::WeightFormat;
use super::int8::gemm::run_quantized;
use super::int8::inputs::RoundedInputs;
use super::int8::panels::PanelLayout;
use super::isa::pair_dot::PairOrder;
use super::memory::{AlignedVec, ScratchPool, SharedPanels, element_count};
use super::registry::Isa;
use super::team::{Output, Team};

/// The input values of a task: 1 MB in f32, half of the L2 cache.
const BLOCK_VALUES: usize = 1 << 18;
/// The L1 cache of a core that has AMX.
const L1_BYTES: usize = 48 << 10;
/// The fewest multiply-adds of a task: some microseconds, many times what taking a task costs.
const MIN_TASK_WORK: usize = 1 << 18;
/// Tasks for each thread: more than one, so that a thread that loses its core to another program does not hold up all.
const TASKS_PER_THREAD: usize = 3;

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
    pub(super) format: WeightFormat,
    pub(super) numbers: Numbers,
    pub(super) panels: SharedPanels,
    /// The scales of panels of integers.
    pub(super) scales: SharedPanels,
    /// One value per output feature, padded to whole panels.
    pub(super) bias: AlignedVec<f32>,
}

/// The numbers that panels hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Numbers {
    F32,
    /// Values of 16 bits, which become f32 when they are multiplied.
    Halves(PairFormat),
    /// For inputs that are rounded to the format of the pairs, with f32 sums.
    Pairs(PairFormat),
    /// Integers with scales, for inputs that are rounded to int8.
    Integers(PanelLayout),
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
        [self.panels.all::<u8>(), self.scales.all(), bytemuck::cast_slice(&self.bias)].map(<[u8]>::len).iter().sum()
    }

    /// Whether both hold the same bits in the same order.
    pub fn has_same_bits(&self, other: &Self) -> bool {
        let sizes = |weights: &Self| (weights.in_features, weights.out_features, weights.panel_width, weights.numbers);
        sizes(self) == sizes(other)
            && bytemuck::cast_slice::<f32, u8>(&self.bias) == bytemuck::cast_slice::<f32, u8>(&other.bias)
            && self.panels.all::<u8>() == other.panels.all::<u8>()
            && self.scales.all::<u8>() == other.scales.all::<u8>()
    }

    /// The numbers that the weights are held in: the format that they were packed for.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Whether products round their inputs to bf16.
    pub fn rounds_to_bf16(&self) -> bool {
        self.numbers == Numbers::Pairs(PairFormat::Bf16)
    }

    /// Computes `a Wᵀ + b` and its activation for `a` `(rows, in_features)`. `out` becomes `(rows, out_features)`.
    ///
    /// # Errors
    /// If `a` has another size, and if there is not enough memory.
    pub fn multiply<A: Element, O: Element>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: &mut Vec<O>,
    ) -> Result<()> {
        out.clear();
        self.multiply_to(team, A::elements(a), rows, activation, Output::Vec(out))
    }

    /// [`multiply`](Self::multiply) into an existing slice, `out` `(rows, out_features)`.
    ///
    /// # Errors
    /// If `a` or `out` has another size, and if there is not enough memory.
    pub fn multiply_into<A: Element, O: Element>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: &mut [O],
    ) -> Result<()> {
        self.multiply_to(team, A::elements(a), rows, activation, Output::Slice(out))
    }

    fn multiply_to<O: Element>(
        &self,
        team: Team,
        a: Elements,
        rows: usize,
        activation: Activation,
        out: Output<O>,
    ) -> Result<()> {
        let size = self.output_size(a, rows)?;
        let run = |out| self.run_tasks(team, a, rows, activation, O::output(out));
        // SAFETY: `run_tasks` writes all of the output.
        unsafe { out.write("the output of a product", size, run) }
    }

    /// Multiply-adds of a product with `rows` rows.
    pub fn multiply_adds(&self, rows: usize) -> usize {
        rows.saturating_mul(self.out_features).saturating_mul(self.in_features)
    }

    /// Rows that one task multiplies with a panel before the next panel is fetched, a multiple of all tiles.
    fn row_block(&self) -> usize {
        match self.numbers {
            _ if self.blas.is_some() => ROW_BLOCK,
            // Tiles of AMX are so fast that rows and panel have to come from the L1 cache, if they fit.
            Numbers::Pairs(format) if self.isa.pair_tiles(format).order == PairOrder::Blocks => {
                let bytes = (32 + self.panel_width) * self.in_features * size_of::<half::bf16>();
                if bytes <= L1_BYTES { 32 } else { 128 }
            }
            // As large, because the tiles are configured for each panel.
            Numbers::Integers(layout) if layout.format == WeightFormat::Int8 && self.isa.has_int8_tiles() => {
                if (64 + self.panel_width) * self.in_features <= L1_BYTES { 64 } else { 128 }
            }
            _ => (BLOCK_VALUES / self.in_features.max(1)).next_multiple_of(32).clamp(64, 128),
        }
    }

    /// Checks the size of the input of a product, and gives that of its output.
    fn output_size(&self, a: Elements, rows: usize) -> Result<usize> {
        if a.len() != element_count("the input of a product", &[rows, self.in_features])? {
            return Err(Error::shape("the input of a product", &[a.len()], format!("{rows} × {}", self.in_features)));
        }
        element_count("the output of a product", &[rows, self.out_features])
    }

    /// Computes a product whose sizes were checked: `a` has `rows` rows, and `out` is memory for as many. The tasks
    /// cover all rows and panels, and each that returns `Ok` has written all of its own.
    fn run_tasks(&self, team: Team, a: Elements, rows: usize, activation: Activation, out: ElementsOut) -> Result<()> {
        // Rows of nothing, of which there may be any number.
        if self.out_features == 0 {
            return Ok(());
        }
        let panels = match self.blas {
            Some(_) => (self.out_features / OUTPUT_STEP).max(1),
            None => self.bias.len() / self.panel_width,
        };
        let row_block = self.row_block();
        let row_blocks = rows.div_ceil(row_block);
        // If there are few row blocks, the threads divide the panels, too.
        let wanted = match team.threads() {
            1 => 1,
            threads => (TASKS_PER_THREAD * threads).min(self.multiply_adds(rows) / MIN_TASK_WORK),
        };
        let groups = wanted.div_ceil(row_blocks.max(1)).min(panels).max(1);
        let group = panels.div_ceil(groups);
        let pool = ScratchPool::default();
        let run_each = |run: &(dyn Fn(GemmTask) -> Result<()> + Sync)| {
            team.try_for_each(row_blocks * groups, |index| {
                let (block, part) = (index / groups, index % groups);
                let (rows, panels) = match self.blas {
                    Some(_) => {
                        (share(rows, (block, row_blocks), 1), share(self.out_features, (part, groups), OUTPUT_STEP))
                    }
                    None => (
                        block * row_block..rows.min((block + 1) * row_block),
                        (part * group).min(panels)..((part + 1) * group).min(panels),
                    ),
                };
                let (from, to, first, last) = (rows.start, rows.end, panels.start, panels.end);
                let Self { in_features, out_features, panel_width, ref bias, .. } = *self;
                let pool = &pool;
                run(GemmTask {
                    in_features,
                    out_features,
                    panel_width,
                    bias,
                    a,
                    out,
                    pool,
                    from,
                    to,
                    first,
                    last,
                    activation,
                })
            })
        };
        let run_f32_panels = |panels: Elements| match self.blas {
            Some(blas) => run_each(&|task| run_blas(self.isa, blas, task, panels)),
            None => run_each(&|task| run_f32(self.isa, task, panels)),
        };
        let panels = &self.panels;
        match self.numbers {
            Numbers::F32 => run_f32_panels(Elements::F32(panels.all())),
            Numbers::Halves(PairFormat::F16) => run_f32_panels(Elements::F16(panels.all())),
            Numbers::Halves(PairFormat::Bf16) => run_f32_panels(Elements::Bf16(panels.all())),
            Numbers::Pairs(format) => run_each(&|task| run_pairs(self.isa, format, task, panels.all())),
            Numbers::Integers(layout) => {
                let inputs = RoundedInputs::new(self.isa, team, &pool, layout, a, rows)?;
                run_each(&|task| run_quantized(self.isa, task, layout, [panels, &self.scales], &inputs))
            }
        }
    }

    /// The weights of a range of outputs, `(outputs, in_features)`, in the dtype that was packed, or a wider one.
    ///
    /// # Errors
    /// If there is not enough memory.
    ///
    /// # Panics
    /// If there are fewer outputs.
    pub fn unpack<T: Element>(&self, outputs: Range<usize>) -> Result<Vec<T>> {
        let size = element_count("a weight", &[outputs.len(), self.in_features])?;
        let mut weights = Vec::new();
        let unpack = |out| {
            self.unpack_rows(outputs, T::output(out));
            Ok(())
        };
        // SAFETY: `unpack_rows` writes all rows.
        unsafe { Output::Vec(&mut weights).write("a weight", size, unpack)? };
        Ok(weights)
    }

    /// Writes the weights of a range of outputs to `out`, which is memory for all of them.
    fn unpack_rows(&self, outputs: Range<usize>, out: ElementsOut) {
        let mut row = vec![0.0; self.in_features];
        for (i, output) in outputs.enumerate() {
            self.unpack_row(output, &mut row);
            // SAFETY: the memory is for so many rows, of which each is written here alone.
            unsafe { out.round(i * self.in_features, &row) };
        }
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
        let part = Self {
            out_features: outputs.end - first * width,
            panels: self.panels.panels(first, last, panels),
            scales: self.scales.panels(first, last, panels),
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
        match self.numbers {
            Numbers::F32 => {
                let panel = self.panels.panel::<f32>(index, panels);
                row.iter_mut().enumerate().for_each(|(term, weight)| *weight = panel[term * width + column]);
            }
            Numbers::Halves(format) => {
                let panel = self.panels.panel(index, panels);
                let value = |term: usize| format.value(panel[term * width + column]);
                row.iter_mut().enumerate().for_each(|(term, weight)| *weight = value(term));
            }
            Numbers::Pairs(format) => {
                let (panel, order) = (self.panels.panel(index, panels), self.isa.pair_tiles(format).order);
                for (term, weights) in row.chunks_mut(2).enumerate() {
                    let pair = panel[order.place_in_columns(term, column, width)];
                    weights.iter_mut().zip(format.values(pair)).for_each(|(weight, value)| *weight = value);
                }
            }
            // Each integer times its scale, which is exact.
            Numbers::Integers(layout) => {
                let (panel, scales) = (self.panels.panel(index, panels), self.scales.panel(index, panels));
                let group = layout.format.group(row.len());
                for (input, weight) in row.iter_mut().enumerate() {
                    let scale = layout.format.scale(scales, layout.scale_at(input / group, column));
                    *weight = f32::from(layout.read(panel, column, input)) * scale;
                }
            }
        }
    }
}

/// The sizes: the weights themselves are megabytes.
impl fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedWeights({} x {}, {})", self.out_features, self.in_features, self.isa.name())
    }
}

//! Packs weights for the products of one instruction set, row by row.
//!
//! The rows come as slices of any dtype, from one layer or from several with the same input. Nothing is concatenated or
//! converted before: beside the panels, packing takes the memory of one row.

use super::aligned::AlignedVec;
use super::convert::Convert;
use super::error::{Error, Result};
use super::isa::Isa;
use super::isa::bf16_dot::{Bf16x2, bf16x2};
use super::packing::{PackedWeights, Panels, SharedPanels, place_in_panel};
use super::size::element_count;

/// Panels that are being filled.
pub struct Packer {
    isa: Isa,
    in_features: usize,
    out_features: usize,
    panel_width: usize,
    /// Input features of an output feature, or pairs of them.
    terms: usize,
    /// Whether panels are made of blocks.
    blocks: bool,
    panels: Memory,
    bias: AlignedVec<f32>,
    /// Output features that have been packed.
    packed: usize,
    /// One row in f32.
    row: AlignedVec<f32>,
}

enum Memory {
    F32(AlignedVec<f32>),
    Bf16(AlignedVec<Bf16x2>),
}

impl Packer {
    /// Makes room for weights `(out_features, in_features)`.
    ///
    /// If the weights `are_bf16` and there are instructions for bf16 products, inputs will be rounded to bf16 and sums
    /// are f32. Otherwise everything is f32.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(isa: Isa, are_bf16: bool, out_features: usize, in_features: usize) -> Result<Self> {
        element_count("a weight", &[out_features, in_features])?;
        let bf16 = are_bf16 && isa.has_bf16_dot();
        let (panel_width, terms, blocks) = match bf16 {
            true => {
                let tiles = isa.bf16_tiles();
                (tiles.columns, in_features.div_ceil(2).next_multiple_of(tiles.pair_step), tiles.blocks)
            }
            false => (isa.tile_columns(), in_features, false),
        };
        let outputs = whole_panels(out_features, panel_width)?;
        let panels = match bf16 {
            true => Memory::Bf16(zeros(&[outputs, terms])?),
            false => Memory::F32(zeros(&[outputs, terms])?),
        };
        let (bias, row) = (zeros(&[outputs])?, zeros(&[in_features])?);
        Ok(Self { isa, in_features, out_features, panel_width, terms, blocks, panels, bias, packed: 0, row })
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
        for (feature, row) in (self.packed..).zip(weight.chunks_exact(self.in_features.max(1))) {
            let row = T::as_f32(row, &mut self.row);
            let (from, column) = (feature / width * size, feature % width);
            match &mut self.panels {
                Memory::F32(panels) => {
                    let panel = &mut panels[from..][..size];
                    for (term, weight) in row.iter().enumerate() {
                        panel[place_in_panel(self.blocks, term, column, width)] = *weight;
                    }
                }
                Memory::Bf16(panels) => {
                    let panel = &mut panels[from..][..size];
                    for (term, pair) in row.chunks(2).enumerate() {
                        let second = pair.get(1).copied().unwrap_or(0.0);
                        panel[place_in_panel(self.blocks, term, column, width)] = bf16x2(pair[0], second);
                    }
                }
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
            Memory::Bf16(panels) => Panels::Bf16(SharedPanels::new(panels)),
        };
        let Self { isa, in_features, out_features, panel_width, bias, .. } = self;
        Ok(PackedWeights { isa, in_features, out_features, panel_width, panels, bias })
    }
}

/// Output features with those that fill the last panel.
fn whole_panels(out_features: usize, panel_width: usize) -> Result<usize> {
    let wraps =
        || Error::value("the number of output features", out_features, "one that can be padded to whole panels");
    out_features.checked_next_multiple_of(panel_width).ok_or_else(wraps)
}

fn zeros<T: bytemuck::Pod>(dims: &[usize]) -> Result<AlignedVec<T>> {
    AlignedVec::zeros("packed weights", element_count("packed weights", dims)?)
}

//! Weights of a projection, packed once for the products of one instruction set.

use std::fmt;

use bytemuck::Pod;

use super::aligned::AlignedVec;
use super::isa::Isa;
use super::isa::bf16_dot::{Bf16x2, bf16x2};
use crate::error::{Error, Result};
use crate::tensor::element_count;

/// Weights `(out_features, in_features)` and a bias, packed for one instruction set.
///
/// The packing is panels of as many output features as a register tile has columns. A panel holds the first input
/// feature of each of its output features, then the second, and so on: the order in which the microkernel reads them.
/// bf16 weights are packed in pairs of input features.
#[derive(Clone)]
pub(crate) struct PackedWeights {
    pub(super) isa: Isa,
    pub(super) in_features: usize,
    pub(super) out_features: usize,
    /// Output features per panel.
    pub(super) panel_width: usize,
    pub(super) panels: Panels,
    /// One value per output feature, zero-padded to whole panels.
    pub(super) bias: AlignedVec<f32>,
}

#[derive(Clone)]
pub(super) enum Panels {
    F32(AlignedVec<f32>),
    /// For inputs that are rounded to bf16, with f32 sums.
    Bf16(AlignedVec<Bf16x2>),
}

impl PackedWeights {
    /// Packs `weight` `(out_features, in_features)` and `bias` `(out_features)`, zeros if there is none.
    ///
    /// # Errors
    /// If `weight` or `bias` has another size, and if there is not enough memory.
    pub(crate) fn new(
        isa: Isa,
        weight: &[f32],
        bias: Option<&[f32]>,
        out_features: usize,
        in_features: usize,
    ) -> Result<Self> {
        check_weight(weight, out_features, in_features)?;
        let panel_width = isa.tile_columns();
        let mut panels = zeros(&[whole_panels(out_features, panel_width)?, in_features])?;
        for (feature, weights) in weight.chunks_exact(in_features.max(1)).enumerate() {
            let (panel, column) = (feature / panel_width, feature % panel_width);
            let panel = &mut panels[panel * panel_width * in_features..][..panel_width * in_features];
            for (terms, weight) in panel.chunks_exact_mut(panel_width).zip(weights) {
                terms[column] = *weight;
            }
        }
        let bias = padded_bias(bias, out_features, panel_width)?;
        Ok(Self { isa, in_features, out_features, panel_width, panels: Panels::F32(panels), bias })
    }

    /// Packs weights that are bf16 values. Where there are instructions for bf16 products, inputs will be rounded to
    /// bf16 and sums are f32. Elsewhere everything is f32, as with [`new`](Self::new).
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub(crate) fn new_bf16(
        isa: Isa,
        weight: &[f32],
        bias: Option<&[f32]>,
        out_features: usize,
        in_features: usize,
    ) -> Result<Self> {
        if !isa.has_bf16_dot() {
            return Self::new(isa, weight, bias, out_features, in_features);
        }
        check_weight(weight, out_features, in_features)?;
        let (panel_width, pair_step) = isa.bf16_tile_columns();
        let panels = Panels::Bf16(pack_bf16(weight, in_features, panel_width, pair_step)?);
        let bias = padded_bias(bias, out_features, panel_width)?;
        Ok(Self { isa, in_features, out_features, panel_width, panels, bias })
    }

    pub(crate) fn in_features(&self) -> usize {
        self.in_features
    }

    pub(crate) fn out_features(&self) -> usize {
        self.out_features
    }

    /// Whether products round their inputs to bf16.
    pub(crate) fn rounds_to_bf16(&self) -> bool {
        matches!(self.panels, Panels::Bf16(_))
    }
}

/// The sizes: the weights themselves are megabytes.
impl fmt::Debug for PackedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedWeights({} x {}, {})", self.out_features, self.in_features, self.isa.name())
    }
}

fn check_weight(weight: &[f32], out_features: usize, in_features: usize) -> Result<()> {
    if weight.len() == element_count("a weight", &[out_features, in_features])? {
        return Ok(());
    }
    Err(Error::shape("a weight", &[weight.len()], format!("{out_features} × {in_features}")))
}

/// Output features with those that fill the last panel.
fn whole_panels(out_features: usize, panel_width: usize) -> Result<usize> {
    let wraps =
        || Error::value("the number of output features", out_features, "one that can be padded to whole panels");
    out_features.checked_next_multiple_of(panel_width).ok_or_else(wraps)
}

fn zeros<T: Pod>(dims: &[usize]) -> Result<AlignedVec<T>> {
    AlignedVec::zeros("packed weights", element_count("packed weights", dims)?)
}

fn padded_bias(bias: Option<&[f32]>, out_features: usize, panel_width: usize) -> Result<AlignedVec<f32>> {
    let mut padded = zeros(&[whole_panels(out_features, panel_width)?])?;
    if let Some(bias) = bias {
        if bias.len() != out_features {
            return Err(Error::shape("a bias", &[bias.len()], format!("[{out_features}]")));
        }
        padded[..out_features].copy_from_slice(bias);
    }
    Ok(padded)
}

/// Packs bf16 weights, given in f32, as pairs. The pairs of an output feature are zero-padded to a multiple of
/// `pair_step`.
fn pack_bf16(weight: &[f32], in_features: usize, panel_width: usize, pair_step: usize) -> Result<AlignedVec<Bf16x2>> {
    let out_features = weight.len() / in_features.max(1);
    let pairs = in_features.div_ceil(2).next_multiple_of(pair_step);
    let mut panels = zeros(&[whole_panels(out_features, panel_width)?, pairs])?;
    for (feature, weights) in weight.chunks_exact(in_features.max(1)).enumerate() {
        let (panel, column) = (feature / panel_width, feature % panel_width);
        let panel = &mut panels[panel * panel_width * pairs..][..panel_width * pairs];
        for (to, terms) in panel.chunks_exact_mut(panel_width).zip(weights.chunks(2)) {
            to[column] = bf16x2(terms[0], terms.get(1).copied().unwrap_or(0.0));
        }
    }
    Ok(panels)
}

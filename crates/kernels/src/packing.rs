//! Packs the weights of a projection, once for the products of one instruction set.
//!
//! The rows come as slices of any dtype, from one layer or from several with the same input. Nothing is concatenated or
//! converted before: beside the panels, packing takes the memory of one row.

use super::blas::{Blas, MAX_SIZE, MIN_OUTPUTS};
use super::convert::Pair;
use super::elements::{Element, Elements};
use super::error::{Error, Result};
use super::int8::encode::WeightFormat;
use super::int8::panels::PanelLayout;
use super::isa::pair_dot::PairOrder;
use super::memory::{AlignedVec, SharedPanels, element_count};
use super::packed_weights::{Numbers, PackedWeights};
use super::registry::Isa;

/// Weights that are being packed.
pub struct Packer {
    weights: PackedWeights,
    /// Input features of an output feature, or pairs of them, and their order inside a panel.
    terms: usize,
    order: PairOrder,
    /// Output features that have been packed.
    packed: usize,
    /// One row in f32, and its integers and scales.
    row: AlignedVec<f32>,
    integers: AlignedVec<i8>,
    row_scales: AlignedVec<f32>,
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
        let numbers = match format.pairs() {
            _ if format.is_quantized() => Numbers::Integers(PanelLayout::new(isa, format, in_features)),
            Some(pairs) if blas.is_none() && isa.has_pairs(pairs) => Numbers::Pairs(pairs),
            Some(halves) => Numbers::Halves(halves),
            None => Numbers::F32,
        };
        let (panel_width, terms, order) = match numbers {
            Numbers::Integers(layout) => (layout.width, layout.inputs, PairOrder::Rows),
            Numbers::Pairs(pairs) => {
                let tiles = isa.pair_tiles(pairs);
                (tiles.columns, in_features.div_ceil(2).next_multiple_of(tiles.pair_step), tiles.order)
            }
            _ if blas.is_some() => (1, in_features, PairOrder::Rows),
            _ => (isa.tile_columns(), in_features, PairOrder::Rows),
        };
        let outputs = whole_panels(out_features, panel_width)?;
        let panels = match numbers {
            Numbers::F32 => zeros::<f32>(&[outputs, terms])?.into_bytes(),
            Numbers::Halves(_) => zeros::<u16>(&[outputs, terms])?.into_bytes(),
            Numbers::Pairs(_) => zeros::<Pair>(&[outputs, terms])?.into_bytes(),
            Numbers::Integers(layout) => {
                element_count(WHAT, &[outputs, terms])?;
                zeros(&[outputs / panel_width, layout.panel_bytes()])?
            }
        };
        let groups = if format.is_quantized() { format.groups(in_features) } else { 0 };
        let (scales, bias) = (format.zero_scales(WHAT, &[outputs, groups])?, zeros(&[outputs])?);
        let [panels, scales] = [panels, scales].map(SharedPanels::new);
        Ok(Self {
            weights: PackedWeights {
                isa,
                blas,
                in_features,
                out_features,
                panel_width,
                format,
                numbers,
                panels,
                scales,
                bias,
            },
            terms,
            order,
            packed: 0,
            row: zeros(&[in_features])?,
            integers: zeros(&[if format.is_quantized() { in_features } else { 0 }])?,
            row_scales: zeros(&[groups])?,
        })
    }

    /// Packs the next `outputs` output features: `weight` `(outputs, in_features)` and `bias` `(outputs)`, zeros if
    /// there is none.
    ///
    /// # Errors
    /// If `weight` or `bias` has another size, or there are more outputs than there is room for.
    pub fn push<T: Element>(&mut self, outputs: usize, weight: &[T], bias: Option<&[f32]>) -> Result<()> {
        self.push_elements(outputs, T::elements(weight), bias)
    }

    fn push_elements(&mut self, outputs: usize, weight: Elements, bias: Option<&[f32]>) -> Result<()> {
        let PackedWeights { in_features, out_features, .. } = self.weights;
        if weight.len() != element_count("a weight", &[outputs, in_features])? {
            return Err(Error::shape("a weight", &[weight.len()], format!("{outputs} × {in_features}")));
        }
        if outputs > out_features - self.packed {
            let found = self.packed + outputs;
            return Err(Error::value("the number of output features", found, format!("{out_features}")));
        }
        if let Some(bias) = bias {
            if bias.len() != outputs {
                return Err(Error::shape("a bias", &[bias.len()], format!("[{outputs}]")));
            }
            self.weights.bias[self.packed..][..outputs].copy_from_slice(bias);
        }
        let features = if in_features == 0 { 0 } else { outputs };
        for (i, feature) in (self.packed..).take(features).enumerate() {
            self.pack_row(feature, weight.part(i * in_features..(i + 1) * in_features))?;
        }
        self.packed += outputs;
        Ok(())
    }

    /// Packs the weights of an output feature.
    fn pack_row(&mut self, feature: usize, values: Elements) -> Result<()> {
        let PackedWeights { panel_width: width, numbers, ref mut panels, ref mut scales, .. } = self.weights;
        let row = values.as_f32(&mut self.row);
        let (panel, column, size) = (feature / width, feature % width, width * self.terms);
        match numbers {
            Numbers::F32 => {
                let panel = &mut panels.all_mut()[panel * size..][..size];
                row.iter().enumerate().for_each(|(term, weight)| panel[term * width + column] = *weight);
            }
            Numbers::Halves(format) => {
                let panel = &mut panels.all_mut()[panel * size..][..size];
                match values.as_halves(format) {
                    Some(halves) => halves.iter().enumerate().for_each(|(i, half)| panel[i * width + column] = *half),
                    None => row.iter().enumerate().for_each(|(i, x)| panel[i * width + column] = format.bits(*x)),
                }
            }
            Numbers::Pairs(format) => {
                let panel = &mut panels.all_mut()[panel * size..][..size];
                for (term, pair) in row.chunks(2).enumerate() {
                    let second = pair.get(1).copied().unwrap_or(0.0);
                    panel[self.order.place_in_columns(term, column, width)] = format.pair(pair[0], second);
                }
            }
            Numbers::Integers(layout) => {
                layout.format.encode(feature, row, &mut self.integers, &mut self.row_scales)?;
                let size = layout.panel_bytes();
                layout.write(&mut panels.all_mut()[panel * size..][..size], column, &self.integers);
                for (group, scale) in self.row_scales.iter().enumerate() {
                    let at = panel * layout.groups * width + layout.scale_at(group, column);
                    layout.format.set_scale(scales.all_mut(), at, *scale);
                }
            }
        }
        Ok(())
    }

    /// The packed weights.
    ///
    /// # Errors
    /// Output features are missing.
    pub fn finish(self) -> Result<PackedWeights> {
        if self.packed != self.weights.out_features {
            let expected = format!("{}", self.weights.out_features);
            return Err(Error::value("the number of output features", self.packed, expected));
        }
        Ok(self.weights)
    }
}

/// The name of the memory in errors.
const WHAT: &str = "packed weights";

fn zeros<T: bytemuck::Pod>(dims: &[usize]) -> Result<AlignedVec<T>> {
    AlignedVec::zeros_with_dims(WHAT, dims)
}

/// Output features with those that fill the last panel.
fn whole_panels(out_features: usize, panel_width: usize) -> Result<usize> {
    let wraps =
        || Error::value("the number of output features", out_features, "one that can be padded to whole panels");
    out_features.checked_next_multiple_of(panel_width).ok_or_else(wraps)
}

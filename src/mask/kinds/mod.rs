//! The kinds of masks, one file each, those that are tensors in one. A new kind is a file here and its constructor in
//! `AttentionMask`.

mod chunks;
mod distance_products;
mod distances;
mod function;
mod grid_bias;
mod lengths;
mod or;
mod relative_bias;
mod score_function;
mod segments;
#[cfg(test)]
mod stripes_tests;
mod tensors;
mod window;

pub(crate) use chunks::Chunks;
pub(crate) use distance_products::{DistanceEmbeddings, DistanceProducts};
pub(crate) use distances::Distances;
pub(crate) use function::{Function, FunctionCall, FunctionRule, KeptSummary, PairFunction};
pub(crate) use grid_bias::GridBias;
pub(crate) use lengths::KeyLengths;
pub(crate) use or::Or;
pub(crate) use relative_bias::RelativeBias;
pub(crate) use score_function::{ScoreFunction, ScoreFunctionCall};
pub(crate) use segments::Segments;
#[cfg(test)]
pub(crate) use stripes_tests::Stripes;
pub(crate) use tensors::{Additive, Boolean, MaskDims, Polarity};
pub(crate) use window::Window;

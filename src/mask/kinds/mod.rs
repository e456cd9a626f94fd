//! The kinds of masks, one file each. A new kind is a file here and its constructor in `AttentionMask`.

mod additive;
mod boolean;
mod disentangled;
mod distances;
mod lengths;
mod or;
mod relative_bias;
mod segments;
#[cfg(test)]
mod stripes;
mod window;

pub(crate) use additive::Additive;
pub(crate) use boolean::{Boolean, Polarity};
pub(crate) use disentangled::{Disentangled, DistanceEmbeddings};
pub(crate) use distances::Distances;
pub(crate) use lengths::KeyLengths;
pub(crate) use or::Or;
pub(crate) use relative_bias::RelativeBias;
pub(crate) use segments::Segments;
#[cfg(test)]
pub(crate) use stripes::Stripes;
pub(crate) use window::Window;

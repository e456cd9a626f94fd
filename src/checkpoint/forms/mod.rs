//! The forms in which layouts store queries, keys and values: how each is named, read, written and inferred.
//!
//! Reading, writing, inferring and detecting ask the [`QkvNames`] of a layout, and know of no form themselves.

mod apart;
mod fused;
mod latent;
mod reader;
mod shapes;
mod split;
mod writer;

use std::ops::Range;

use crate::config::{AttentionConfig, KeyValueSource};
use crate::error::Result;
use crate::families::layout::{Layout, LinearNames, QkvNames};
use crate::weights::{LatentWeights, QkvWeights};
pub(super) use reader::Reader;
pub(super) use shapes::Shapes;
pub(super) use writer::{Projections, Writer};

/// A stored matrix, and the projections whose rows it has: of the query (0), the key (1) and the value (2).
type Matrix = (LinearNames, Range<usize>);

impl QkvNames {
    /// The matrices, those included that a layer may lack.
    fn matrices(self) -> Vec<Matrix> {
        match self {
            Self::Split(names, _) => names.iter().enumerate().map(|(part, names)| (*names, part..part + 1)).collect(),
            Self::Fused(names, ..) => vec![(names, 0..3)],
            Self::Pair(q, kv) => vec![(q, 0..1), (kv, 1..3)],
            Self::Apart(names) => names.matrices(),
            Self::Latent(names) => names.matrices(),
        }
    }

    /// The names of the weights.
    pub(super) fn weights(self) -> Vec<&'static str> {
        self.matrices().iter().map(|(linear, _)| linear.weight).collect()
    }

    /// The names of the tensors without which the layout does not fit: weights, and biases that are not next to theirs.
    fn required(self) -> Vec<&'static str> {
        match self {
            Self::Fused(names, Some([q, v]), _) => vec![names.weight, q, v],
            Self::Apart(names) => names.required(),
            Self::Latent(names) => names.required(),
            _ => {
                let apart = self.matrices().into_iter().filter(|(linear, _)| linear.bias_apart());
                self.weights().into_iter().chain(apart.map(|(linear, _)| linear.bias)).collect()
            }
        }
    }

    /// The names of tensors that a layer may lack, beside the [`biases`](Self::biases).
    pub(super) fn optional(self) -> Vec<&'static str> {
        match self {
            Self::Apart(names) => vec![names.q[1].weight, names.q[1].bias],
            _ => Vec::new(),
        }
    }

    /// The names of the biases of query, key and value: that of the last matrix for a projection without one.
    fn biases(self) -> [&'static str; 3] {
        let matrices = self.matrices();
        let holds = |part: usize| matrices.iter().find(|(_, parts)| parts.contains(&part)).or(matrices.last());
        match self {
            Self::Split(_, Some(fused)) => [fused; 3],
            Self::Fused(_, Some([q, v]), _) => [q, q, v],
            Self::Latent(names) => names.biases(),
            _ => [0, 1, 2].map(|part| holds(part).map_or("", |(linear, _)| linear.bias)),
        }
    }

    /// Whether keys may have a bias.
    pub(super) fn has_key_bias(self) -> bool {
        !matches!(self, Self::Fused(_, Some(_), _))
    }

    /// Where a layer has its keys and values from.
    pub(super) fn key_value_source(self) -> KeyValueSource {
        match self {
            Self::Split([_], _) => KeyValueSource::Shared { layer: None },
            Self::Split([_, _], _) => KeyValueSource::KeysAsValues,
            _ => KeyValueSource::Projections,
        }
    }

    /// Whether keys and values are of another input than queries.
    pub(super) fn is_cross(self) -> bool {
        matches!(self, Self::Pair(..))
    }

    /// Whether the projections are those of latent attention.
    pub(super) fn is_latent(self) -> bool {
        matches!(self, Self::Latent(_))
    }

    /// Whether low-rank changes have places beside the projections: not where several matrices are read as one.
    pub(super) fn has_places(self) -> bool {
        !matches!(self, Self::Apart(_) | Self::Latent(_))
    }

    /// Reads the projections.
    pub(super) fn read(self, reader: &Reader) -> Result<QkvWeights> {
        match self {
            Self::Split(names, fused_bias) => split::read(names, fused_bias, reader),
            Self::Fused(names, split_biases, order) => fused::read(names, split_biases, order, reader),
            Self::Pair(q, kv) => fused::read_pair(q, kv, reader),
            Self::Apart(names) => names.read(reader),
            Self::Latent(names) => names.read(reader),
        }
    }

    /// Writes the projections.
    pub(super) fn write(self, projections: &Projections, writer: &mut Writer) -> Result<()> {
        let (what, expected) = match self {
            Self::Split(names, fused_bias) => return split::write(names, fused_bias, projections, writer),
            Self::Fused(names, biases, order) => return fused::write(names, biases, order, projections, writer),
            Self::Pair(q, kv) => return fused::write_pair(q, kv, projections, writer),
            Self::Apart(_) => {
                let expected = "one that holds them as one projection, such as candle-attention";
                ("projections of contents and positions", expected)
            }
            Self::Latent(_) => ("separate keys and values", "one whose families have them"),
        };
        Err(writer.layout.cannot_hold(what, expected))
    }

    /// Writes the projections of latent attention.
    pub(super) fn write_latent(self, latent: &LatentWeights, writer: &mut Writer) -> Result<()> {
        match self {
            Self::Latent(names) => names.write(latent, writer),
            _ => {
                let expected = "deepseek or deepseek-lite, whose families have it";
                Err(writer.layout.cannot_hold("latent attention", expected))
            }
        }
    }

    /// The configuration that fits the shapes of the weights.
    pub(super) fn infer(self, shapes: &Shapes) -> Result<AttentionConfig> {
        match self {
            Self::Split(names, _) => split::infer(names, shapes),
            Self::Fused(names, ..) => fused::infer(names, shapes),
            Self::Pair(q, kv) => fused::infer_pair(q, kv, shapes),
            Self::Apart(names) => names.infer(shapes),
            Self::Latent(names) => names.infer(shapes),
        }
    }
}

impl Layout {
    /// The names of the weights of queries, keys, values and a gate, of those that a source holds.
    pub fn input_weights(&self, holds: impl Fn(&str) -> bool) -> Vec<&'static str> {
        let gate = self.gate_projection().map(|gate| gate.weight);
        self.qkv.weights().into_iter().chain(gate).filter(|name| holds(name)).collect()
    }

    /// The tensors that must all be present for the layout to fit: weights, and biases that are not next to theirs.
    pub(super) fn required(&self) -> Vec<&'static str> {
        let names = self.qkv.required().into_iter().chain([self.o.weight]);
        names.filter(|name| !name.is_empty()).chain(self.requires.iter().copied()).collect()
    }

    /// The names of the biases of q, k, v, o; fused biases have one name.
    pub(super) fn bias_names(&self) -> [&'static str; 4] {
        let [q, k, v] = self.qkv.biases();
        [q, k, v, self.o.bias]
    }
}

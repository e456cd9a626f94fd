//! `QkvForm`: everything that depends on how a layout stores queries, keys and values.

use std::ops::Range;

use crate::checkpoint::forms::{Projections, Reader, Shapes, Writer};
use crate::config::{AttentionConfig, KeyValueSource};
use crate::error::Result;
use crate::families::layout::LinearNames;
use crate::weights::{LatentWeights, QkvWeights};

/// A stored matrix, and the projections whose rows it has: of the query (0), the key (1) and the value (2).
pub(in crate::checkpoint) type Matrix = (LinearNames, Range<usize>);

/// The way in which a layout stores the projections of queries, keys and values. Most of it follows from the matrices.
pub(in crate::checkpoint) trait QkvForm {
    /// The matrices, those included that a layer may lack.
    fn matrices(&self) -> Vec<Matrix>;

    /// The names of the weights.
    fn weights(&self) -> Vec<&'static str> {
        self.matrices().iter().map(|(linear, _)| linear.weight).collect()
    }

    /// The names of the tensors without which the layout does not fit: weights, and biases that are not next to theirs.
    fn required(&self) -> Vec<&'static str> {
        let apart = self.matrices().into_iter().filter(|(linear, _)| linear.bias_apart());
        self.weights().into_iter().chain(apart.map(|(linear, _)| linear.bias)).collect()
    }

    /// The names of tensors that a layer may lack, beside the [`biases`](Self::biases).
    fn optional(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The names of the biases of query, key and value: that of the last matrix for a projection without one.
    fn biases(&self) -> [&'static str; 3] {
        let matrices = self.matrices();
        let holds = |part: usize| matrices.iter().find(|(_, parts)| parts.contains(&part)).or(matrices.last());
        [0, 1, 2].map(|part| holds(part).map_or("", |(linear, _)| linear.bias))
    }

    /// Whether keys may have a bias.
    fn has_key_bias(&self) -> bool {
        true
    }

    /// Where a layer has its keys and values from.
    fn key_value_source(&self) -> KeyValueSource {
        match self.matrices().iter().map(|(_, parts)| parts.end).max() {
            Some(1) => KeyValueSource::Shared { layer: None },
            Some(2) => KeyValueSource::KeysAsValues,
            _ => KeyValueSource::Projections,
        }
    }

    /// Whether keys and values are of another input than queries.
    fn is_cross(&self) -> bool {
        false
    }

    /// Whether the projections are those of latent attention.
    fn is_latent(&self) -> bool {
        false
    }

    /// Whether low-rank changes have places beside the projections: not where several matrices are read as one.
    fn has_places(&self) -> bool {
        true
    }

    /// Reads the projections.
    fn read(&self, reader: &Reader) -> Result<QkvWeights>;

    /// Writes the projections.
    fn write(&self, projections: &Projections, writer: &mut Writer) -> Result<()>;

    /// Writes the projections of latent attention.
    fn write_latent(&self, _: &LatentWeights, writer: &mut Writer) -> Result<()> {
        Err(writer.layout.cannot_hold("latent attention", "deepseek or deepseek-lite, whose families have it"))
    }

    /// The configuration that fits the shapes of the weights.
    fn infer(&self, shapes: &Shapes) -> Result<AttentionConfig>;
}

//! Where tokens stand, as attention sees it: rotations of queries and keys, and biases of scores.

mod alibi;
mod relative;
mod rotary;

pub use alibi::{Alibi, AlibiSlopes};
pub use relative::RelativeBuckets;
pub use rotary::{Rotary, RotaryScaling, RotaryStyle};

use crate::error::Result;

/// How an attention layer knows positions. A model that adds embeddings to its input needs nothing here.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Position {
    /// Not in the layer.
    #[default]
    None,
    /// Queries and keys are rotated by angles that grow with their position.
    Rotary(Rotary),
    /// A penalty that grows with the distance.
    Alibi(Alibi),
    /// A learned bias by distance and head, in buckets of distances. The table is one of the layer's weights.
    RelativeBuckets(RelativeBuckets),
}

impl Position {
    pub(crate) fn validate(&self, head_dim: usize) -> Result<()> {
        match self {
            Self::None | Self::Alibi(_) => Ok(()),
            Self::Rotary(rotary) => rotary.validate(head_dim),
            Self::RelativeBuckets(relative) => relative.validate(),
        }
    }
}

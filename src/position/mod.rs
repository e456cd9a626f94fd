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

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Rotary(rotary) => {
                write!(f, "rotary(theta {}", rotary.theta)?;
                rotary.dim.iter().try_for_each(|dim| write!(f, ", {dim} numbers"))?;
                if rotary.style == RotaryStyle::Interleaved {
                    f.write_str(", interleaved")?;
                }
                match &rotary.scaling {
                    RotaryScaling::None => f.write_str(")"),
                    RotaryScaling::Linear { factor } => write!(f, ", linear {factor})"),
                    RotaryScaling::Dynamic { factor, .. } => write!(f, ", dynamic {factor})"),
                    RotaryScaling::Yarn { factor, .. } => write!(f, ", yarn {factor})"),
                    RotaryScaling::LongRope { .. } => f.write_str(", longrope)"),
                    RotaryScaling::Llama3 { factor, .. } => write!(f, ", llama3 {factor})"),
                }
            }
            Self::Alibi(alibi) => f.write_str(if alibi.symmetric { "alibi(symmetric)" } else { "alibi" }),
            Self::RelativeBuckets(relative) => write!(f, "relative({} buckets)", relative.num_buckets),
        }
    }
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

//! Where tokens stand, as attention sees it: rotations of queries and keys, and biases of scores.

mod alibi;
mod disentangled;
mod rope_cache;
mod rotary;
mod rotary_grid;
mod t5_bias;

pub use alibi::{Alibi, AlibiSlopes};
pub use disentangled::Disentangled;
pub(crate) use rotary::rotate;
pub use rotary::{Rotary, RotaryScaling, RotaryStyle};
pub use rotary_grid::{GridCoordinates, RelativeGrid, RotaryGrid};
pub use t5_bias::RelativeBuckets;

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
    /// Queries and keys of patches are rotated by angles that grow with their row and column.
    RotaryGrid(RotaryGrid),
    /// A learned bias by head and by the offset between two patches. The table is one of the layer's weights.
    RelativeGrid(RelativeGrid),
    /// Queries and keys are also compared with embeddings of their distance, which are among the layer's weights.
    Disentangled(Disentangled),
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
            Self::RotaryGrid(rotary) => {
                write!(f, "rotary grid(theta {}, {} tokens before", rotary.theta, rotary.prefix_tokens)?;
                rotary.grid.iter().try_for_each(|[rows, columns]| write!(f, ", {rows} x {columns} patches"))?;
                f.write_str(")")
            }
            Self::RelativeGrid(RelativeGrid { grid: [rows, columns], class_token }) => {
                let token = if *class_token { " and a class token" } else { "" };
                write!(f, "relative grid({rows} x {columns} patches{token})")
            }
            Self::Disentangled(disentangled) => write!(f, "disentangled({} embeddings)", disentangled.embeddings()),
        }
    }
}

impl Position {
    pub(crate) fn validate(&self, head_dim: usize) -> Result<()> {
        match self {
            Self::None | Self::Alibi(_) => Ok(()),
            Self::Rotary(rotary) => rotary.validate(head_dim),
            Self::RelativeBuckets(relative) => relative.validate(),
            Self::RotaryGrid(rotary) => rotary.validate(head_dim),
            Self::RelativeGrid(relative) => relative.validate(),
            Self::Disentangled(disentangled) => disentangled.validate(),
        }
    }

    /// The rows of the table of biases that the layer has among its weights, if it has one.
    pub(crate) fn bias_table_rows(&self) -> Option<usize> {
        match self {
            Self::RelativeBuckets(relative) => Some(relative.num_buckets),
            Self::RelativeGrid(relative) => Some(relative.table_rows()),
            _ => None,
        }
    }

    /// Whether it knows only whole inputs, which no cache can go on from.
    pub(crate) fn is_of_whole(&self) -> bool {
        matches!(self, Self::RotaryGrid(_) | Self::RelativeGrid(_) | Self::Disentangled(_))
    }
}

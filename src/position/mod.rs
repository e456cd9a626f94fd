//! Position schemes: rotations of queries and keys, and biases added to attention scores.
//!
//! Each scheme is a plain value in one file, which implements the crate-private trait `PositionScheme`: it validates
//! itself, rotates, computes biases, lists its parameters and adapts itself to pruned heads. Attention, checkpoints and
//! pruning call that trait through [`Position`] and never match on the kind of scheme. The alternative, a `match` at
//! each place where schemes differ, made a new scheme touch some fifteen files. The trait's defaults are right on every
//! backend, so a new scheme works everywhere at once; fast paths for ragged batches are opt-in.

mod alibi;
mod disentangled;
mod explicit;
mod gated_relative_bias;
mod given_rotation;
mod relative_bias_2d;
mod relative_key;
mod relative_key_2d;
mod relative_key_value;
mod relative_sinusoids;
mod rope_cache;
mod rope_scaling;
mod rotary;
mod rotary_2d;
mod rotary_3d;
mod rotary_cos_sin;
mod rotation;
mod scheme;
mod t5_relative_bias;
#[cfg(test)]
mod tests;

pub use alibi::{Alibi, AlibiFormula, AlibiSlopes};
pub use disentangled::Disentangled;
pub(crate) use explicit::ExplicitPositions;
pub use gated_relative_bias::GatedRelativeBias;
pub use given_rotation::GivenRotation;
pub use relative_bias_2d::RelativeBias2d;
pub use relative_key::RelativeKey;
pub use relative_key_2d::RelativeKey2d;
pub use relative_key_value::RelativeKeyValue;
pub use relative_sinusoids::RelativeSinusoids;
pub use rope_scaling::RotaryScaling;
pub use rotary::Rotary;
pub use rotary_2d::{GridCoordinates, GridFrequencies, Rotary2d};
pub use rotary_3d::Rotary3d;
pub use rotation::RotaryStyle;
pub(crate) use scheme::{
    BiasCall, EmbeddingCall, LayerSizes, PositionScheme, PositionState, QueryCall, SchemeTraits, TokenPositions,
};
pub use t5_relative_bias::T5RelativeBias;
#[cfg(test)]
use tests::LearnedSlope;

use std::fmt;

/// Makes the enum of all schemes, of which each variant is named like the type that it holds.
macro_rules! schemes {
    (
        $(#[$enum_doc:meta])*
        $name:ident { $($(#[doc = $doc:literal])* $(#[cfg($cfg:meta)])? $scheme:ident,)* }
    ) => {
        $(#[$enum_doc])*
        pub enum $name {
            /// No positions inside attention.
            #[default]
            None,
            $($(#[doc = $doc])* $(#[cfg($cfg)])? $scheme($scheme),)*
        }

        impl $name {
            /// The behavior of the scheme.
            pub(crate) fn scheme(&self) -> &dyn PositionScheme {
                match self {
                    Self::None => &NoPosition,
                    $($(#[cfg($cfg)])? Self::$scheme(scheme) => scheme,)*
                }
            }

            /// Adapts the scheme to a layer that keeps only the heads `kept` of `heads`.
            pub(crate) fn prune(&mut self, kept: &[usize], heads: usize) {
                match self {
                    Self::None => {}
                    $($(#[cfg($cfg)])? Self::$scheme(scheme) => scheme.prune(kept, heads),)*
                }
            }
        }

        $(
            $(#[cfg($cfg)])? impl From<$scheme> for $name {
                fn from(scheme: $scheme) -> Self {
                    Self::$scheme(scheme)
                }
            }

            $(#[cfg($cfg)])? impl fmt::Display for $scheme {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(&self.describe())
                }
            }
        )*
    };
}

schemes! {
    /// The position scheme of an attention layer. Models that add position embeddings to their input use
    /// [`None`](Self::None).
    #[derive(Debug, Clone, PartialEq, Default)]
    #[non_exhaustive]
    Position {
        /// Queries and keys are rotated by angles proportional to their position.
        Rotary,
        /// A penalty proportional to the distance is subtracted from each score.
        Alibi,
        /// A learned bias per head and bucket of distances is added to each score.
        T5RelativeBias,
        /// Queries and keys of image patches are rotated by angles proportional to their row and column.
        Rotary2d,
        /// A learned bias per head and offset between two image patches is added to each score.
        RelativeBias2d,
        /// Queries and keys are also compared with learned embeddings of their distance.
        Disentangled,
        /// Queries and keys of patches of a video are rotated by frame, row and column.
        Rotary3d,
        /// Queries and keys are rotated by angles that the call gives.
        GivenRotation,
        /// Queries are also compared with projected sinusoids of their distance to each key.
        RelativeSinusoids,
        /// Queries are also compared with learned embeddings of their distance to each key.
        RelativeKey,
        /// Learned embeddings of near distances are added to keys and values.
        RelativeKeyValue,
        /// Queries are also compared with learned embeddings of the rows and columns between image patches.
        RelativeKey2d,
        /// A learned bias per head and bucket of distances, times a gate of the query's input, is added to each score.
        GatedRelativeBias,
        /// A scheme that implements only the required methods.
        #[cfg(test)]
        LearnedSlope,
    }
}

impl Position {
    /// Whether the layer has no positions of its own.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.scheme().describe())
    }
}

/// The scheme of [`Position::None`].
struct NoPosition;

impl PositionScheme for NoPosition {
    fn accepts_positions(&self, _: usize) -> bool {
        true
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { runs_ragged: true, runs_rows: true, ..SchemeTraits::default() }
    }

    fn describe(&self) -> String {
        "none".to_string()
    }
}

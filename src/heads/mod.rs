//! Which heads matter, and layers without the others.

mod importance;
mod prune;
mod pruned;

pub use importance::{HeadImportance, RankedHead};
pub use pruned::PrunedHeads;

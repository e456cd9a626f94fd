//! Which heads matter, and layers without the others.

mod importance;
mod prune;
mod pruned_heads;

pub use importance::{HeadImportance, RankedHead};
pub use pruned_heads::PrunedHeads;

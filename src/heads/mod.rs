//! Which heads matter, and layers without the others.

mod prune;
mod pruned;

pub use pruned::PrunedHeads;

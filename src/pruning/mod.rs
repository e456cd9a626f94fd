//! Layers without some of their heads.
//!
//! Pruning makes a smaller layer, with its own configuration and copied weights, instead of masking heads in the old
//! one: a mask costs as much as the full layer, a smaller layer runs on every backend as any other. Heads are numbered
//! from 0, as Hugging Face numbers them in `pruned_heads`.

mod prune;
mod pruned_heads;

pub use pruned_heads::PrunedHeads;

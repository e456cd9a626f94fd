//! A Metal kernel: fused attention for what candle's kernel does not do, over buffers, strides and launch parameters.
//!
//! candle's `sdpa` takes eight head sizes, tensors with heads first, masks as tensors, and at least two queries. This kernel
//! takes heads of any size up to 256, queries, keys and values where a projection wrote them, and lengths and windows as
//! numbers: padding needs no mask tensor, and a ragged batch no padding.
//!
//! It is plain: no matrix operations of a simdgroup, whose layout only a device could confirm. Nobody has run it on a Mac.
//! Tests run the same source on a CPU, where `tests/metal_emulator/emulator.hpp` takes the place of Metal's headers.

#[cfg(feature = "metal")]
mod launch;
#[cfg(any(test, feature = "metal"))]
mod params;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "metal"))]
mod variant;

#[cfg(feature = "metal")]
pub(crate) use launch::{Input, Launch, compile};
#[cfg(any(test, feature = "metal"))]
pub(crate) use params::{Params, Sequence, limit, sequences};
#[cfg(feature = "metal")]
pub(crate) use variant::Variant;

/// Elements of the largest head. Those of a query and of its output are in the registers of four threads.
pub(crate) const MAX_HEAD: usize = 256;

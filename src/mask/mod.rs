//! Masks: which keys a query attends to, and what is added to their scores.
//!
//! A mask is a value with structure ([`AttentionMask`]), a list of terms: the lengths of the sequences, a causal
//! window, a tensor of booleans. Each backend lowers it to the form that it reads. Fused kernels read a `LoweredMask`:
//! rules over positions, from which they derive the range of keys of a query and skip the rest, biases by distance, and
//! tensors only for what neither expresses. NVIDIA GPUs read a `MergedMask`, which has at most one rule of each kind.
//! Backends made of tensor operations read a `DenseMask`. The alternative is a dense tensor everywhere, as in PyTorch's
//! `attn_mask`. It was rejected: it costs `s_q · s_kv` elements per head or sequence in memory and bandwidth, it hides
//! from a kernel which keys it can skip, and padding could no longer be removed before a call.
//!
//! A new kind of mask is one file in `kinds/` and its constructor. It defines how it is checked and what it is as a
//! dense tensor; every backend is then right, because all other forms are derived from the dense one by default. A rule
//! or a tensor that kernels read directly makes it fast later.

mod attention_mask;
mod dense;
mod kinds;
mod lower;
mod lowered;
#[cfg(any(test, feature = "cuda"))]
mod merge;
mod padded;
mod shape;
mod slice;
mod term;

pub use attention_mask::{AttentionMask, CallMask};
pub(crate) use dense::{DenseMask, lowest_finite};
#[cfg(test)]
pub(crate) use kinds::Stripes;
pub(crate) use kinds::{DistanceEmbeddings, DistanceProducts, GridBias, RelativeBias, ScoreFunctionCall};
pub(crate) use lowered::LoweredMask;
#[cfg(any(test, feature = "cuda"))]
pub(crate) use merge::MergedMask;
pub use padded::PaddedIds;
pub(crate) use shape::{AttnShape, check_integers, comparable};
#[cfg(test)]
pub(crate) use term::{MaskCall, MaskTerm};

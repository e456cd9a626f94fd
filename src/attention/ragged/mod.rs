//! Ragged batches: sequences stored one after another, without padding.

mod cpu;
mod tensor;

pub(crate) use cpu::Buffers;

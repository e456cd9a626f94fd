//! Ragged batches: rows of unequal length stored one after another, without padding.

mod cpu;
mod offsets;
mod row_rotary;
pub(crate) mod shared_positions;
mod tensor;

pub(crate) use cpu::Buffers;
pub(crate) use offsets::{lengths, starts};

//! Small operations on candle tensors that candle does not have: CPU memory as slices, selection, broadcasting.

mod broadcast;
mod check;
mod cpu_slice;
mod select;

pub(crate) use broadcast::broadcast_rows;
pub(crate) use check::same_dtype_and_device;
pub(crate) use cpu_slice::{Slice, with_f32_slice, with_slice};
pub(crate) use select::{select, unpruned};

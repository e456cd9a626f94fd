//! Of the room `tensor`, sizes of memory.

#[path = "../../../../src/tensor/size.rs"]
mod size;

pub(crate) use size::{check_allocation, element_count, try_reserve, zeros};

//! Of the room `tensor`, sizes of memory and random numbers for tests.

#[path = "../../../../src/tensor/size.rs"]
mod size;

#[cfg(test)]
#[path = "../../../../src/tensor/random.rs"]
pub(crate) mod random;

pub(crate) use size::{check_allocation, element_count, try_reserve, zeros};

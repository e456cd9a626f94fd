//! Elementary functions on vectors, generic over the instruction set.

pub(crate) mod activation;
pub(crate) mod exp;

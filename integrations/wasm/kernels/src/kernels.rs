//! The room `kernels` without those for GPUs.

#[path = "../../../../src/kernels/activation.rs"]
mod activation;
#[path = "../../../../src/kernels/cpu/mod.rs"]
pub(crate) mod cpu;

pub(crate) use activation::Activation;

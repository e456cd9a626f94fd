//! References and operands for tests of attention kernels: of those here, and of those for GPUs in the package above.
#![allow(dead_code, unsafe_code, reason = "each package uses a part, and one of them denies `unsafe`")]

pub mod hidden;
pub mod masks;
mod random;
pub mod reference;

use candle_attention_kernels::Element;
pub use random::Random;

pub fn downcast<T: Element>(from: &[f32]) -> Vec<T> {
    let mut to = Vec::with_capacity(from.len());
    T::round(from, &mut to.spare_capacity_mut()[..from.len()]);
    // SAFETY: `round` has written as many elements.
    unsafe { to.set_len(from.len()) };
    to
}

pub fn upcast<T: Element>(from: &[T]) -> Vec<f32> {
    let mut buffer = vec![0.0; from.len()];
    T::as_f32(from, &mut buffer).to_vec()
}

//! Every instruction set of this machine against naive references in f64, over odd sizes.

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels::cpu) mod amx;
mod attention;
mod bf16_tiles;
mod distances;
mod functions;
mod gemm;
pub(in crate::kernels) mod masks;
pub(in crate::kernels) mod non_finite;
mod norm;
pub(in crate::kernels) mod reference;
mod score_tiles;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
mod sizes;
mod unpack;

use super::element::Element;
use super::isa::Isa;
pub(in crate::kernels) use crate::tensor::random::Random;

/// The instruction sets of this machine, or only the one that `CANDLE_ATTENTION_ISA` names.
fn isas() -> Vec<Isa> {
    let forced = std::env::var("CANDLE_ATTENTION_ISA").ok();
    let isas: Vec<Isa> =
        Isa::all().into_iter().filter(|isa| forced.as_ref().is_none_or(|name| isa.name() == name)).collect();
    assert!(!isas.is_empty(), "this machine does not have {forced:?}");
    isas
}

/// Runs with a pool of so many threads; on WebAssembly, which has none, on the only one.
fn on_threads<R: Send>(threads: usize, run: impl FnOnce() -> R + Send) -> R {
    if cfg!(target_family = "wasm") {
        return run();
    }
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

impl Random {
    /// Random values in `[-2, 2)`.
    pub fn values<T: Element>(&mut self, count: usize) -> Vec<T> {
        let values: Vec<f32> = (0..count).map(|_| self.next() * 2.0).collect();
        downcast(&values)
    }
}

pub(in crate::kernels) fn downcast<T: Element>(from: &[f32]) -> Vec<T> {
    let mut to = Vec::with_capacity(from.len());
    T::downcast(from, &mut to.spare_capacity_mut()[..from.len()]);
    // SAFETY: `downcast` has written as many elements.
    unsafe { to.set_len(from.len()) };
    to
}

pub(in crate::kernels) fn upcast<T: Element>(from: &[T]) -> Vec<f32> {
    let mut to = vec![0.0; from.len()];
    T::upcast(from, &mut to);
    to
}

//! Every instruction set that this machine has against a naive reference in f64, over odd sizes.

pub(in crate::kernels) mod attention;
mod functions;
pub(in crate::kernels) mod masks;
mod pairs;
mod products;

use super::element::Element;
use super::isa::Isa;
use super::simd::Simd;
pub(super) use pairs::PortablePairs;

/// Those that this machine has, or the one that `CANDLE_ATTENTION_ISA` names.
fn isas() -> Vec<Isa> {
    let forced = std::env::var("CANDLE_ATTENTION_ISA").ok();
    let isas: Vec<Isa> =
        Isa::all().into_iter().filter(|isa| forced.as_ref().is_none_or(|name| isa.name() == name)).collect();
    assert!(!isas.is_empty(), "{forced:?} is not there");
    isas
}

/// Numbers that are the same in every run, in `[-1, 1)` (xorshift64*, Vigna 2016).
pub(in crate::kernels) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn numbers<T: Element>(&mut self, count: usize) -> Vec<T> {
        let wide: Vec<f32> = (0..count).map(|_| self.next() * 2.0).collect();
        convert(&wide)
    }
}

pub(in crate::kernels) fn convert<T: Element>(wide: &[f32]) -> Vec<T> {
    let mut narrow = Vec::with_capacity(wide.len());
    T::narrow(wide, &mut narrow.spare_capacity_mut()[..wide.len()]);
    // SAFETY: so many were written.
    unsafe { narrow.set_len(wide.len()) };
    narrow
}

pub(in crate::kernels) fn wide<T: Element>(numbers: &[T]) -> Vec<f32> {
    let mut to = vec![0.0; numbers.len()];
    T::widen(numbers, &mut to);
    to
}

fn scalar<S: Simd>(s: S, f: impl Fn(S::V) -> S::V, x: f32) -> f32 {
    let mut lanes = [0.0; 16];
    // SAFETY: there is room for `LANES` numbers.
    unsafe { s.store(lanes.as_mut_ptr(), f(s.splat(x))) };
    lanes[0]
}

//! Vectors of 16 lanes on every instruction set.

use bytemuck::Zeroable;
use half::{bf16, f16};

use super::dot::Int8Dot;
use crate::isa::simd::{MAX_LANES, Simd, VectorKernel};
use crate::unroll::unroll;

/// Vectors of 16 lanes, made of those that go with products of integers, without fused multiply-adds: all instruction
/// sets give the same bits.
#[derive(Clone, Copy)]
pub(crate) struct Wide<D>(pub D);

/// The most vectors that make 16 lanes.
const VECTORS: usize = 4;

impl<D: Int8Dot> Wide<D> {
    const VECTORS: usize = MAX_LANES / D::S::LANES;
}

/// A kernel on these vectors.
struct OnWide<K, D> {
    kernel: K,
    wide: Wide<D>,
}

impl<K: VectorKernel, D: Int8Dot> VectorKernel for OnWide<K, D> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.kernel.run(self.wide);
    }
}

/// Writes methods that call the one of the same name for each vector.
macro_rules! each_vector {
    ($($name:ident($first:ident $(, $x:ident)*);)+) => {$(
        #[inline(always)]
        fn $name(self, $first: Self::V $(, $x: Self::V)*) -> Self::V {
            let mut to = $first;
            unroll!(i in 0..Self::VECTORS => to[i] = self.0.simd().$name($first[i] $(, $x[i])*));
            to
        }
    )+};
}

/// Writes methods that read the lanes of each vector.
macro_rules! each_load {
    ($($name:ident: $element:ty;)+) => {$(
        #[inline(always)]
        unsafe fn $name(self, from: *const $element) -> Self::V {
            let mut to = Self::V::zeroed();
            // SAFETY: the caller promises 16 values, those of `VECTORS` vectors.
            unroll!(i in 0..Self::VECTORS => to[i] = unsafe { self.0.simd().$name(from.add(i * D::S::LANES)) });
            to
        }
    )+};
}

// SAFETY: `VECTORS` vectors have 16 lanes, and each reads and writes as many as it has.
unsafe impl<D: Int8Dot> Simd for Wide<D> {
    type V = [<D::S as Simd>::V; VECTORS];
    const LANES: usize = MAX_LANES;
    const SUMS: usize = D::S::SUMS / Self::VECTORS;
    const TRANSPOSES: bool = D::S::TRANSPOSES;

    #[inline(always)]
    fn call<K: VectorKernel>(self, kernel: K) {
        self.0.call(OnWide { kernel, wide: self });
    }

    each_vector! {
        add(a, b);
        sub(a, b);
        mul(a, b);
        div(a, b);
        max(a, b);
        min(a, b);
        round(a);
        ldexp(a, n);
        zero_below(x, limit, y);
    }
    each_load! {
        load: f32;
        load_f16: f16;
        load_bf16: bf16;
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        let (vector, mut to) = (self.0.simd().splat(x), Self::V::zeroed());
        unroll!(i in 0..Self::VECTORS => to[i] = vector);
        to
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        let (s, mut largest) = (self.0.simd(), a[0]);
        unroll!(i in 0..Self::VECTORS - 1 => largest = s.max(a[i + 1], largest));
        s.reduce_max(largest)
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Self::V) {
        // SAFETY: the caller promises room for 16 values, those of `VECTORS` vectors.
        unroll!(i in 0..Self::VECTORS => unsafe { self.0.simd().store(to.add(i * D::S::LANES), a[i]) });
    }
    #[inline(always)]
    unsafe fn gather(self, from: *const f32, step: usize, indices: *const u32) -> Self::V {
        let mut to = Self::V::zeroed();
        unroll!(i in 0..Self::VECTORS => {
            let first = i * D::S::LANES;
            // SAFETY: the caller promises 16 indices and the values at their places.
            to[i] = unsafe { self.0.simd().gather(from.add(first * step), step, indices.add(first)) };
        });
        to
    }
    const PREFETCHES: bool = D::S::PREFETCHES;
    #[inline(always)]
    fn prefetch(self, at: *const f32) {
        self.0.simd().prefetch(at);
    }
}

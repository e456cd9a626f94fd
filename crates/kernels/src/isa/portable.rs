//! Plain Rust for any processor. The compiler turns the arrays into the vectors that the target has.

use half::{bf16, f16};

use super::kernel::{InstructionSet, Kernel};
use super::simd::Simd;
use crate::convert::{bf16_to_f32, f16_to_f32};

/// Arrays of 8 values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

/// Register tile: 4 × 1 arrays. The registers of the target are not known here. With the smallest vectors that matter
/// (SSE2: 16 registers of 4 values) the 4 sums take 8 registers, the array of B 2, and a broadcast value and a product
/// one each.
pub(super) const MR: usize = 4;
pub(super) const NR: usize = 1;

impl InstructionSet for Portable {
    const NAME: &'static str = "portable";

    fn detect() -> Option<Self> {
        Some(Self)
    }

    fn speed() -> u32 {
        1
    }

    fn run<K: Kernel>(self, kernel: K) {
        kernel.run::<_, MR, NR>(self);
    }
}

const LANES: usize = 8;
type Lanes = [f32; LANES];

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> Lanes {
    std::array::from_fn(f)
}

// SAFETY: `load` and `store` copy exactly `LANES` values.
unsafe impl Simd for Portable {
    type V = Lanes;
    const LANES: usize = LANES;
    const SUMS: usize = MR * NR;
    const TRANSPOSES: bool = false;
    const MULTIPLIES_HALVES: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Lanes {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Lanes {
        // SAFETY: the caller promises `LANES` integers.
        lanes(|i| f32::from(unsafe { *from.add(i) }))
    }
    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        // Not `f32::mul_add`: without the instruction it is a library call.
        lanes(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        lanes(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn round(self, a: Lanes) -> Lanes {
        // Adding and subtracting 1.5 · 2^23 leaves the nearest integer, for values below 2^22.
        const MAGIC: f32 = 12_582_912.0;
        lanes(|i| (a[i] + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn ldexp(self, a: Lanes, n: Lanes) -> Lanes {
        lanes(|i| a[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn zero_below(self, x: Lanes, limit: Lanes, y: Lanes) -> Lanes {
        lanes(|i| if x[i] < limit[i] { 0.0 } else { y[i] })
    }
    #[inline(always)]
    fn reduce_add(self, a: Lanes) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn reduce_max(self, a: Lanes) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Lanes {
        // SAFETY: the caller promises `LANES` values.
        unsafe { from.cast::<Lanes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Lanes) {
        // SAFETY: the caller promises room for `LANES` values.
        unsafe { to.cast::<Lanes>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> Lanes {
        // SAFETY: the caller promises `LANES` values.
        lanes(|i| f16_to_f32(unsafe { from.add(i).read() }))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Lanes {
        // SAFETY: the caller promises `LANES` values.
        lanes(|i| bf16_to_f32(unsafe { from.add(i).read() }))
    }
    #[inline(always)]
    unsafe fn gather(self, from: *const f32, step: usize, indices: *const u32) -> Lanes {
        // SAFETY: the caller promises `LANES` indices and the values at their places.
        lanes(|i| unsafe { *from.add(i * step + *indices.add(i) as usize) })
    }
}

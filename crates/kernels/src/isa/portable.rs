//! Plain Rust for any processor. The compiler turns the arrays into the vectors that the target has.

use half::{bf16, f16};

use super::kernel::{InstructionSet, Kernel};
use super::simd::{Simd, memory_ops};
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

/// Adding and subtracting 1.5 · 2^23 leaves the nearest integer, for values below 2^22.
const MAGIC: f32 = 12_582_912.0;

/// Writes the methods that are one expression for each lane.
macro_rules! lane_ops {
    ($($name:ident($($x:ident),+) = $body:expr;)+) => {$(
        #[inline(always)]
        fn $name(self, $($x: Lanes),+) -> Lanes {
            lanes(|i| {
                $(let $x = $x[i];)+
                $body
            })
        }
    )+};
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
    lane_ops! {
        add(a, b) = a + b;
        sub(a, b) = a - b;
        mul(a, b) = a * b;
        // Not `f32::mul_add`: without the instruction it is a library call.
        mul_add(a, b, c) = a * b + c;
        div(a, b) = a / b;
        min(a, b) = if a < b { a } else { b };
        max(a, b) = if a > b { a } else { b };
        round(a) = (a + MAGIC) - MAGIC;
        ldexp(a, n) = a * f32::from_bits(((n as i32 + 127) as u32) << 23);
        zero_below(x, limit, y) = if x < limit { 0.0 } else { y };
    }
    memory_ops! {
        load(from: *const f32) -> Lanes = from.cast::<Lanes>().read_unaligned();
        store(to: *mut f32, a: Lanes) = to.cast::<Lanes>().write_unaligned(a);
        load_f16(from: *const f16) -> Lanes = lanes(|i| f16_to_f32(from.add(i).read()));
        load_bf16(from: *const bf16) -> Lanes = lanes(|i| bf16_to_f32(from.add(i).read()));
        load_i8(from: *const i8) -> Lanes = lanes(|i| f32::from(*from.add(i)));
        gather(from: *const f32, step: usize, indices: *const u32) -> Lanes = {
            lanes(|i| *from.add(i * step + *indices.add(i) as usize))
        };
    }
}

//! What an instruction set has to offer: vectors of f32 and the few operations that the kernels need.

/// A vector instruction set. A value of the type is the proof that the processor has it: it can only be had from a
/// check, and the safe methods below rely on it.
///
/// # Safety
/// `load` and `store` touch `LANES` numbers at the pointer and nothing else.
pub(super) unsafe trait Simd: Copy + Send + Sync {
    /// A vector of `LANES` numbers.
    type V: Copy;
    const LANES: usize;

    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once where the processor can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger; where one is NaN, `b` (NEON: NaN).
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; where one is NaN, `b` (NEON: NaN).
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest integer.
    fn round(self, a: Self::V) -> Self::V;
    /// `a · 2^n` for an integral `n` from -126 to 127 and a normal result.
    fn scale_by_power(self, a: Self::V, n: Self::V) -> Self::V;
    /// 0 where `x < limit`, `y` elsewhere, also where `x` is NaN.
    fn zero_below(self, x: Self::V, limit: Self::V, y: Self::V) -> Self::V;
    fn sum(self, a: Self::V) -> f32;
    fn largest(self, a: Self::V) -> f32;

    /// # Safety
    /// `LANES` numbers can be read at `from`.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// # Safety
    /// `LANES` numbers can be written at `to`.
    unsafe fn store(self, to: *mut f32, a: Self::V);
}

/// Plain Rust, for any processor; the compiler turns the arrays into whatever vectors there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;
type Lanes = [f32; LANES];

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> Lanes {
    std::array::from_fn(f)
}

// SAFETY: `load` and `store` copy exactly `LANES` numbers.
unsafe impl Simd for Portable {
    type V = Lanes;
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Lanes {
        [x; LANES]
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
        // Not `f32::mul_add`: without the instruction that is a library call.
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
        // Adding and taking away 1.5 · 2^23 leaves the nearest integer, for numbers below 2^22.
        const MAGIC: f32 = 12_582_912.0;
        lanes(|i| (a[i] + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn scale_by_power(self, a: Lanes, n: Lanes) -> Lanes {
        lanes(|i| a[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn zero_below(self, x: Lanes, limit: Lanes, y: Lanes) -> Lanes {
        lanes(|i| if x[i] < limit[i] { 0.0 } else { y[i] })
    }
    #[inline(always)]
    fn sum(self, a: Lanes) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn largest(self, a: Lanes) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Lanes {
        // SAFETY: the caller promises `LANES` numbers.
        unsafe { from.cast::<Lanes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Lanes) {
        // SAFETY: the caller promises room for `LANES` numbers.
        unsafe { to.cast::<Lanes>().write_unaligned(a) }
    }
}

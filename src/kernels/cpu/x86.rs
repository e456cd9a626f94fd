//! AVX-512 and AVX2 with FMA.

use std::arch::x86_64::*;

use super::simd::Simd;

/// AVX-512F.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(super) fn new() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

/// AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(super) fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// SAFETY: `load` and `store` touch exactly 16 numbers. In every method: `self` exists only after the check in `new`, so
// the processor has the instructions.
unsafe impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: see above; so for all methods of this block.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_roundscale_ps::<NEAREST>(a) }
    }
    #[inline(always)]
    fn scale_by_power(self, a: __m512, n: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    fn zero_below(self, x: __m512, limit: __m512, y: __m512) -> __m512 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), y) }
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        // SAFETY: `self` is the proof.
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller promises 16 numbers; `self` is the proof.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: __m512) {
        // SAFETY: the caller promises room for 16 numbers; `self` is the proof.
        unsafe { _mm512_storeu_ps(to, a) }
    }
}

// SAFETY: as above, with 8 numbers.
unsafe impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` is the proof; so for all methods of this block.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_round_ps::<NEAREST>(a) }
    }
    #[inline(always)]
    fn scale_by_power(self, a: __m256, n: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }
    #[inline(always)]
    fn zero_below(self, x: __m256, limit: __m256, y: __m256) -> __m256 {
        // SAFETY: `self` is the proof.
        unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, limit), y) }
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        let a = self.array(a);
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        self.array(a).into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the caller promises 8 numbers; `self` is the proof.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: __m256) {
        // SAFETY: the caller promises room for 8 numbers; `self` is the proof.
        unsafe { _mm256_storeu_ps(to, a) }
    }
}

impl Avx2 {
    #[inline(always)]
    fn array(self, a: __m256) -> [f32; 8] {
        let mut array = [0.0; 8];
        // SAFETY: the array has room for 8 numbers.
        unsafe { self.store(array.as_mut_ptr(), a) };
        array
    }
}

//! 8-bit products of AVX2: `vpmaddwd` multiplies pairs of 16-bit integers and adds the two products in 32 bits.
//!
//! Weights are widened when they are loaded, once for all rows of a tile, and inputs when they are rounded.
//! `vpmaddubsw`, which multiplies bytes, needs weights without a sign, two more instructions for each four inputs to
//! move the signs and to add in 32 bits, and is slower by half: its sums have 16 bits, in which there is no room for a
//! second one.

use std::arch::x86_64::*;

use super::dot::Int8Vectors;
use crate::isa::avx2::Avx2;
use crate::isa::kernel::Int8Kernel;

/// AVX2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2Int8(pub Avx2);

/// Register tile: 5 × 2 sums, 2 vectors of weights, a broadcast value and a product take 14 of the 16 registers.
const MR: usize = 5;
const NR: usize = 2;
/// With a scale per block, 2 × 2 integer sums and as many results take 8.
const BLOCK_MR: usize = 2;

impl Avx2Int8 {
    pub fn run<K: Int8Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX2 and FMA.
        unsafe { run(self, kernel) }
    }
}

#[target_feature(enable = "avx2,fma")]
fn run<K: Int8Kernel>(dot: Avx2Int8, kernel: K) {
    kernel.run::<_, MR, NR, BLOCK_MR>(dot);
}

// SAFETY: both loads read 16 bytes.
unsafe impl Int8Vectors for Avx2Int8 {
    type S = Avx2;
    type Input = i16;
    const OFFSET: u8 = 0;
    const NIBBLE_OFFSET: u8 = 8;
    type Sums = __m256i;
    /// 16 bits each.
    type Weights = __m256i;

    #[inline(always)]
    fn simd(self) -> Avx2 {
        self.0
    }
    #[inline(always)]
    fn splat(self, start: i32) -> __m256i {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe { _mm256_set1_epi32(start) }
    }
    #[inline(always)]
    fn to_f32(self, sums: __m256i) -> __m256 {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe { _mm256_cvtepi32_ps(sums) }
    }
    #[inline(always)]
    fn dot(self, sums: __m256i, weights: __m256i, x: i32) -> __m256i {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(weights, _mm256_set1_epi32(x))) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m256i {
        // SAFETY: the caller promises 16 bytes; `self` proves that the processor has AVX2.
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> [__m256i; 2] {
        // SAFETY: the caller promises 16 bytes; `self` proves that the processor has AVX2.
        unsafe {
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
            [_mm256_and_si256(bytes, _mm256_set1_epi16(0x0f)), _mm256_srli_epi16::<4>(bytes)]
        }
    }
    #[inline(always)]
    unsafe fn store_integers(self, to: *mut i16, lanes: __m256) {
        // SAFETY: the caller promises room for 8 integers; `self` proves that the processor has AVX2.
        unsafe {
            // In each half of the register the low 16 bits come first.
            let low = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
            let halves = _mm256_shuffle_epi8(_mm256_castps_si256(lanes), _mm256_broadcastsi128_si256(low));
            let joined = _mm256_permute4x64_epi64::<0b1000>(halves);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(joined));
        }
    }
}

/// Stores the lowest byte of each lane.
///
/// # Safety
/// 8 bytes can be written, and the processor has AVX2.
#[inline(always)]
pub(super) unsafe fn store_low_bytes(to: *mut i8, lanes: __m256) {
    // SAFETY: the caller's promise.
    unsafe {
        // In each half of the register the four lowest bytes come first.
        let first = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
        let bytes = _mm256_shuffle_epi8(_mm256_castps_si256(lanes), first);
        let halves = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
        _mm_storel_epi64(to.cast(), halves);
    }
}

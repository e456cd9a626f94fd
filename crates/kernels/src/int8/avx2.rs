//! 8-bit products of AVX2: 16-bit sums of pairs, which must not saturate.
//!
//! `vpmaddubsw` multiplies unsigned bytes with signed ones and adds neighboring products in 16 bits. With weights plus
//! 128 in the unsigned operand a pair could reach 2 · 255 · 127 = 64,770, which saturates. With the magnitudes of the
//! weights there, and their signs moved to the inputs, it is at most 2 · 128 · 127 = 32,512, which fits.

use std::arch::x86_64::*;

use super::dot::Int8Vectors;
use crate::isa::avx2::Avx2;
use crate::isa::kernel::Int8Kernel;

/// AVX2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2Int8(pub Avx2);

/// Register tile: 4 × 2 sums, 2 vectors of weights and 2 of their magnitudes, a broadcast value, a vector of ones and
/// two products take the 16 registers.
const MR: usize = 4;
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

/// Bytes of weights.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    signed: __m256i,
    magnitudes: __m256i,
}

// SAFETY: both loads read 32 bytes.
unsafe impl Int8Vectors for Avx2Int8 {
    type S = Avx2;
    const OFFSET: u8 = 0;
    /// 0 to 15 in the unsigned operand: pairs are at most 2 · 15 · 127.
    const NIBBLE_OFFSET: u8 = 8;
    type Sums = __m256i;
    type Weights = Weights;

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
    fn dot(self, sums: __m256i, weights: Weights, x: i32) -> __m256i {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe {
            let x = _mm256_sign_epi8(_mm256_set1_epi32(x), weights.signed);
            let pairs = _mm256_maddubs_epi16(weights.magnitudes, x);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    fn dot_nibbles(self, sums: __m256i, weights: Weights, x: i32) -> __m256i {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe {
            let pairs = _mm256_maddubs_epi16(weights.magnitudes, _mm256_set1_epi32(x));
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Weights {
        // SAFETY: the caller promises 32 bytes; `self` proves that the processor has AVX2.
        unsafe {
            let signed = _mm256_loadu_si256(from.cast());
            // The magnitude of -128 is 128 as an unsigned byte.
            Weights { signed, magnitudes: _mm256_abs_epi8(signed) }
        }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> [Weights; 2] {
        // SAFETY: the caller promises 32 bytes; `self` proves that the processor has AVX2.
        unsafe {
            let (bytes, low) = (_mm256_loadu_si256(from.cast()), _mm256_set1_epi8(0x0f));
            let nibbles = [_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low)];
            nibbles.map(|nibbles| Weights { signed: nibbles, magnitudes: nibbles })
        }
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, to: *mut i8, lanes: __m256) {
        // SAFETY: the caller's promise; `self` proves that the processor has AVX2.
        unsafe { store_low_bytes(to, lanes) }
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

//! AVX512-VNNI: `vpdpbusd` on vectors of 64 bytes.

use std::arch::x86_64::*;

use super::dot::Int8Vectors;
use crate::isa::avx512::Avx512;
use crate::isa::kernel::Int8Kernel;
use crate::isa::simd::VectorKernel;

/// AVX512-VNNI and AVX-512F.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Vnni(Avx512);

/// Register tile: that of f32, for the same reasons. The inputs are the signed operand of `vpdpbusd`, which can be
/// broadcast from memory by the instruction itself, and the weights the unsigned one.
const MR: usize = 8;
const NR: usize = 3;
/// With a scale per block, 4 × 3 integer sums and 4 × 3 results take 24 registers, and weights three.
const BLOCK_MR: usize = 4;

impl Avx512Vnni {
    pub fn detect(avx512: Avx512) -> Option<Self> {
        // The compiler takes AVX512-VNNI to include AVX-512F.
        is_x86_feature_detected!("avx512vnni").then_some(Self(avx512))
    }

    pub fn run<K: Int8Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX-512F and AVX512-VNNI.
        unsafe { run(self, kernel) }
    }
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn run<K: Int8Kernel>(dot: Avx512Vnni, kernel: K) {
    kernel.run::<_, MR, NR, BLOCK_MR>(dot);
}

#[target_feature(enable = "avx512f,avx512vnni")]
#[inline(never)]
fn call<K: VectorKernel>(dot: Avx512Vnni, kernel: K) {
    kernel.run(dot.0);
}

// SAFETY: both loads read 64 bytes.
unsafe impl Int8Vectors for Avx512Vnni {
    type S = Avx512;
    type Input = i8;
    const OFFSET: u8 = 128;
    const NIBBLE_OFFSET: u8 = 8;
    type Sums = __m512i;
    type Weights = __m512i;

    #[inline(always)]
    fn simd(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn call<K: VectorKernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX-512F and AVX512-VNNI.
        unsafe { call(self, kernel) }
    }
    #[inline(always)]
    fn splat(self, start: i32) -> __m512i {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { _mm512_set1_epi32(start) }
    }
    #[inline(always)]
    fn to_f32(self, sums: __m512i) -> __m512 {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }
    #[inline(always)]
    fn dot(self, sums: __m512i, weights: __m512i, x: i32) -> __m512i {
        // SAFETY: `self` proves that the processor has AVX512-VNNI.
        unsafe { _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m512i {
        // SAFETY: the caller promises 64 bytes; `self` proves that the processor has AVX-512F.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller promises 64 bytes; `self` proves that the processor has AVX-512F.
        unsafe {
            let (bytes, low) = (_mm512_loadu_si512(from.cast()), _mm512_set1_epi32(0x0f0f_0f0f));
            [_mm512_and_si512(bytes, low), _mm512_and_si512(_mm512_srli_epi32::<4>(bytes), low)]
        }
    }
    #[inline(always)]
    unsafe fn store_integers(self, to: *mut i8, lanes: __m512) {
        // SAFETY: the caller promises room for 16 bytes; `self` proves that the processor has AVX-512F.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(lanes))) }
    }
}

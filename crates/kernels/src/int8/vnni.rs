//! `vpdpbusd` on vectors of 32 bytes: AVX-VNNI, which processors without AVX-512 have.

use std::arch::x86_64::*;

use super::avx2;
use super::dot::Int8Vectors;
use crate::isa::avx2::Avx2;
use crate::isa::kernel::Int8Kernel;
use crate::isa::simd::VectorKernel;

/// AVX2 with `vpdpbusd`: AVX-VNNI if `VEX`. Otherwise the same instruction in the encoding of AVX-512, with which tests
/// run this file where there is no AVX-VNNI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vnni<const VEX: bool>(Avx2);

/// Register tile: that of f32, for the same reasons.
const MR: usize = 6;
const NR: usize = 2;
/// With a scale per block, 2 × 2 integer sums and as many results take 8 registers, and weights up to four.
const BLOCK_MR: usize = 2;

impl<const VEX: bool> Vnni<VEX> {
    pub fn detect(avx2: Avx2) -> Option<Self> {
        let has_vnni = if VEX {
            is_x86_feature_detected!("avxvnni")
        } else {
            is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl")
        };
        has_vnni.then_some(Self(avx2))
    }

    pub fn run<K: Int8Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX2, FMA and the instructions of its encoding.
        unsafe { if VEX { run_vex(self, kernel) } else { run_evex(self, kernel) } }
    }
}

#[target_feature(enable = "avx2,fma,avxvnni")]
fn run_vex<K: Int8Kernel, const VEX: bool>(dot: Vnni<VEX>, kernel: K) {
    kernel.run::<_, MR, NR, BLOCK_MR>(dot);
}

#[target_feature(enable = "avx2,fma,avx512vnni,avx512vl")]
fn run_evex<K: Int8Kernel, const VEX: bool>(dot: Vnni<VEX>, kernel: K) {
    kernel.run::<_, MR, NR, BLOCK_MR>(dot);
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline(never)]
fn call_vex<K: VectorKernel>(s: Avx2, kernel: K) {
    kernel.run(s);
}

#[target_feature(enable = "avx2,fma,f16c,avx512vnni,avx512vl")]
#[inline(never)]
fn call_evex<K: VectorKernel>(s: Avx2, kernel: K) {
    kernel.run(s);
}

// SAFETY: both loads read 32 bytes.
unsafe impl<const VEX: bool> Int8Vectors for Vnni<VEX> {
    type S = Avx2;
    type Input = i8;
    const OFFSET: u8 = 128;
    const NIBBLE_OFFSET: u8 = 8;
    type Sums = __m256i;
    type Weights = __m256i;

    #[inline(always)]
    fn simd(self) -> Avx2 {
        self.0
    }
    #[inline(always)]
    fn call<K: VectorKernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX2 with FMA and F16C, and the instructions of its encoding.
        unsafe { if VEX { call_vex(self.0, kernel) } else { call_evex(self.0, kernel) } }
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
        // SAFETY: `self` proves that the processor has the instruction in this encoding.
        unsafe {
            if VEX {
                _mm256_dpbusd_avx_epi32(sums, weights, _mm256_set1_epi32(x))
            } else {
                _mm256_dpbusd_epi32(sums, weights, _mm256_set1_epi32(x))
            }
        }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m256i {
        // SAFETY: the caller promises 32 bytes; `self` proves that the processor has AVX2.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> [__m256i; 2] {
        // SAFETY: the caller promises 32 bytes; `self` proves that the processor has AVX2.
        unsafe {
            let (bytes, low) = (_mm256_loadu_si256(from.cast()), _mm256_set1_epi8(0x0f));
            [_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low)]
        }
    }
    #[inline(always)]
    unsafe fn store_integers(self, to: *mut i8, lanes: __m256) {
        // SAFETY: the caller's promise; `self` proves that the processor has AVX2.
        unsafe { avx2::store_low_bytes(to, lanes) }
    }
}

//! 8-bit products of x86-64.
//!
//! - AVX2: `vpmaddwd` multiplies pairs of 16-bit integers and adds both products in 32 bits. Weights are widened when
//!   they are loaded, once for all rows of a tile, and inputs when they are rounded. `vpmaddubsw`, which multiplies
//!   bytes, needs weights without a sign, two more instructions for each four inputs to move the signs and to add in 32
//!   bits, and is slower by half: its sums have 16 bits, in which there is no room for a second one.
//! - VNNI: `vpdpbusd` multiplies bytes, on vectors of 32 bytes (AVX-VNNI, which processors without AVX-512 have) and of
//!   64 bytes (AVX512-VNNI). The inputs are its signed operand and the weights the unsigned one.

use std::arch::x86_64::*;

use super::dot::{Int8Instructions, Int8Vectors, IntegerSums};
use super::kernel::{Int8InstructionSet, Int8Kernel};
use crate::isa::avx2::Avx2;
use crate::isa::avx512::Avx512;
use crate::isa::avx512_bf16::Avx512Bf16;
use crate::isa::kernel::InstructionSet;
use crate::isa::simd::{VectorKernel, memory_ops};

impl Int8InstructionSet for Avx2 {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        match Vnni::<true>::detect(self) {
            Some(vnni) => vnni.run(kernel),
            None => Avx2Int8(self).run(kernel),
        }
    }
}

impl Int8InstructionSet for Avx512 {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        if let Some(vnni) = Avx512Vnni::detect(self) {
            vnni.run(kernel);
        } else if let Some(avx2) = Avx2::detect() {
            avx2.run_int8(kernel);
        }
    }
}

impl Int8InstructionSet for Avx512Bf16 {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        self.vectors().run_int8(kernel);
    }
}

impl IntegerSums for __m256i {
    type S = Avx2;

    #[inline(always)]
    fn splat(_: Avx2, start: i32) -> Self {
        // SAFETY: the argument proves that the processor has AVX2.
        unsafe { _mm256_set1_epi32(start) }
    }
    #[inline(always)]
    fn to_f32(self, _: Avx2) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(self) }
    }
}

impl IntegerSums for __m512i {
    type S = Avx512;

    #[inline(always)]
    fn splat(_: Avx512, start: i32) -> Self {
        // SAFETY: the argument proves that the processor has AVX-512F.
        unsafe { _mm512_set1_epi32(start) }
    }
    #[inline(always)]
    fn to_f32(self, _: Avx512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(self) }
    }
}

/// AVX2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2Int8(pub Avx2);

impl Avx2Int8 {
    pub fn run<K: Int8Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX2 and FMA.
        unsafe { run_avx2(self, kernel) }
    }
}

/// Register tile: 5 × 2 sums, 2 vectors of weights, a broadcast value and a product take 14 of the 16 registers. With a
/// scale per block, 2 × 2 integer sums and as many results take 8.
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Int8Kernel>(dot: Avx2Int8, kernel: K) {
    kernel.run::<_, 5, 2, 2>(dot);
}

impl Int8Instructions for Avx2Int8 {
    type S = Avx2;
    type Input = i16;
    const NIBBLE_OFFSET: u8 = 8;

    #[inline(always)]
    fn simd(self) -> Avx2 {
        self.0
    }
    memory_ops! {
        store_integers(to: *mut i16, lanes: __m256) = {
            // In each half of the register the low 16 bits come first.
            let low = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
            let halves = _mm256_shuffle_epi8(_mm256_castps_si256(lanes), _mm256_broadcastsi128_si256(low));
            let joined = _mm256_permute4x64_epi64::<0b1000>(halves);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(joined));
        };
    }
}

// SAFETY: both loads read 16 bytes.
unsafe impl Int8Vectors for Avx2Int8 {
    type Sums = __m256i;
    /// 16 bits each.
    type Weights = __m256i;

    #[inline(always)]
    fn dot(self, sums: __m256i, weights: __m256i, x: i32) -> __m256i {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(weights, _mm256_set1_epi32(x))) }
    }
    memory_ops! {
        load(from: *const u8) -> __m256i = _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()));
        load_nibbles(from: *const u8) -> [__m256i; 2] = {
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
            [_mm256_and_si256(bytes, _mm256_set1_epi16(0x0f)), _mm256_srli_epi16::<4>(bytes)]
        };
    }
}

/// AVX2 with `vpdpbusd`: AVX-VNNI if `VEX`. Otherwise the same instruction in the encoding of AVX-512, with which tests
/// run this file where there is no AVX-VNNI.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vnni<const VEX: bool>(Avx2);

impl<const VEX: bool> Vnni<VEX> {
    pub fn detect(avx2: Avx2) -> Option<Self> {
        let has_vnni = if VEX {
            is_x86_feature_detected!("avxvnni")
        } else {
            is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl")
        };
        has_vnni.then_some(Self(avx2))
    }

    /// Register tile: that of f32, for the same reasons. With a scale per block, 2 × 2 integer sums and as many results
    /// take 8 registers, and weights up to four.
    pub fn run<K: Int8Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX2, FMA and the instructions of its encoding.
        unsafe { if VEX { run_vex(self, kernel) } else { run_evex(self, kernel) } }
    }
}

#[target_feature(enable = "avx2,fma,avxvnni")]
fn run_vex<K: Int8Kernel, const VEX: bool>(dot: Vnni<VEX>, kernel: K) {
    kernel.run::<_, 6, 2, 2>(dot);
}

#[target_feature(enable = "avx2,fma,avx512vnni,avx512vl")]
fn run_evex<K: Int8Kernel, const VEX: bool>(dot: Vnni<VEX>, kernel: K) {
    kernel.run::<_, 6, 2, 2>(dot);
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

impl<const VEX: bool> Int8Instructions for Vnni<VEX> {
    type S = Avx2;
    type Input = i8;
    const OFFSET: u8 = 128;
    const NIBBLE_OFFSET: u8 = 8;

    #[inline(always)]
    fn simd(self) -> Avx2 {
        self.0
    }
    #[inline(always)]
    fn call<K: VectorKernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX2 with FMA and F16C, and the instructions of its encoding.
        unsafe { if VEX { call_vex(self.0, kernel) } else { call_evex(self.0, kernel) } }
    }
    memory_ops! {
        store_integers(to: *mut i8, lanes: __m256) = store_low_bytes(to, lanes);
    }
}

// SAFETY: both loads read 32 bytes.
unsafe impl<const VEX: bool> Int8Vectors for Vnni<VEX> {
    type Sums = __m256i;
    type Weights = __m256i;

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
    memory_ops! {
        load(from: *const u8) -> __m256i = _mm256_loadu_si256(from.cast());
        load_nibbles(from: *const u8) -> [__m256i; 2] = {
            let (bytes, low) = (_mm256_loadu_si256(from.cast()), _mm256_set1_epi8(0x0f));
            [_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low)]
        };
    }
}

/// Stores the lowest byte of each lane.
///
/// # Safety
/// 8 bytes can be written, and the processor has AVX2.
#[inline(always)]
unsafe fn store_low_bytes(to: *mut i8, lanes: __m256) {
    // SAFETY: the caller's promise.
    unsafe {
        // In each half of the register the four lowest bytes come first.
        let first = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
        let bytes = _mm256_shuffle_epi8(_mm256_castps_si256(lanes), first);
        let halves = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
        _mm_storel_epi64(to.cast(), halves);
    }
}

/// AVX512-VNNI and AVX-512F.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Vnni(Avx512);

impl Avx512Vnni {
    pub fn detect(avx512: Avx512) -> Option<Self> {
        // The compiler takes AVX512-VNNI to include AVX-512F.
        is_x86_feature_detected!("avx512vnni").then_some(Self(avx512))
    }

    pub fn run<K: Int8Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX-512F and AVX512-VNNI.
        unsafe { run_avx512(self, kernel) }
    }
}

/// Register tile: that of f32, for the same reasons. The inputs are broadcast from memory by the instruction itself.
/// With a scale per block, 4 × 3 integer sums and 4 × 3 results take 24 registers, and weights three.
#[target_feature(enable = "avx512f,avx512vnni")]
fn run_avx512<K: Int8Kernel>(dot: Avx512Vnni, kernel: K) {
    kernel.run::<_, 8, 3, 4>(dot);
}

#[target_feature(enable = "avx512f,avx512vnni")]
#[inline(never)]
fn call_avx512<K: VectorKernel>(dot: Avx512Vnni, kernel: K) {
    kernel.run(dot.0);
}

impl Int8Instructions for Avx512Vnni {
    type S = Avx512;
    type Input = i8;
    const OFFSET: u8 = 128;
    const NIBBLE_OFFSET: u8 = 8;

    #[inline(always)]
    fn simd(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn call<K: VectorKernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX-512F and AVX512-VNNI.
        unsafe { call_avx512(self, kernel) }
    }
    memory_ops! {
        store_integers(to: *mut i8, lanes: __m512) = _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(lanes)));
    }
}

// SAFETY: both loads read 64 bytes.
unsafe impl Int8Vectors for Avx512Vnni {
    type Sums = __m512i;
    type Weights = __m512i;

    #[inline(always)]
    fn dot(self, sums: __m512i, weights: __m512i, x: i32) -> __m512i {
        // SAFETY: `self` proves that the processor has AVX512-VNNI.
        unsafe { _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(x)) }
    }
    memory_ops! {
        load(from: *const u8) -> __m512i = _mm512_loadu_si512(from.cast());
        load_nibbles(from: *const u8) -> [__m512i; 2] = {
            let (bytes, low) = (_mm512_loadu_si512(from.cast()), _mm512_set1_epi32(0x0f0f_0f0f));
            [_mm512_and_si512(bytes, low), _mm512_and_si512(_mm512_srli_epi32::<4>(bytes), low)]
        };
    }
}

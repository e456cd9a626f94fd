//! AVX2 with FMA and F16C: 16 registers of 8 values.

use std::arch::x86_64::*;

use bytemuck::Zeroable;
use half::{bf16, f16};

use super::kernel::{InstructionSet, Kernel};
use super::simd::{MAX_LANES, Simd, VectorKernel, memory_ops, register_ops};
use crate::convert::{Convert, PairFormat};
use crate::unroll::unroll;

/// AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

/// Register tile: 6 × 2 sums, 2 vectors of B and one broadcast value of A take 15 of the 16 registers. Each step has 12
/// multiply-adds (6 cycles on two ports) and 8 loads (4 cycles on two ports), and 12 independent sums hide the latency
/// of 4 to 5 cycles on both ports. 4 × 3 sums would take exactly the 16 registers; the compiler then keeps one of them
/// in memory, and each step waits until its store can be loaded.
const MR: usize = 6;
const NR: usize = 2;

impl InstructionSet for Avx2 {
    const NAME: &'static str = "avx2";

    fn detect() -> Option<Self> {
        // Every processor with AVX2 has the other two.
        let all =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }

    fn speed() -> u32 {
        8
    }

    fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX2, FMA and F16C.
        unsafe { run(self, kernel) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run<K: Kernel>(s: Avx2, kernel: K) {
    kernel.run::<_, MR, NR>(s);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn call<K: VectorKernel>(s: Avx2, kernel: K) {
    kernel.run(s);
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// SAFETY: `load` and `store` access exactly 8 values.
unsafe impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const SUMS: usize = MR * NR;

    #[inline(always)]
    fn call<K: VectorKernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX2, FMA and F16C.
        unsafe { call(self, kernel) }
    }

    register_ops! {
        (*const f32) -> ():
            prefetch(at) = _mm_prefetch::<_MM_HINT_T0>(at.cast());
            prefetch_l2(at) = _mm_prefetch::<_MM_HINT_T1>(at.cast());
        (f32) -> __m256:
            splat(x) = _mm256_set1_ps(x);
        (__m256) -> __m256:
            add(a, b) = _mm256_add_ps(a, b);
            sub(a, b) = _mm256_sub_ps(a, b);
            mul(a, b) = _mm256_mul_ps(a, b);
            mul_add(a, b, c) = _mm256_fmadd_ps(a, b, c);
            div(a, b) = _mm256_div_ps(a, b);
            min(a, b) = _mm256_min_ps(a, b);
            max(a, b) = _mm256_max_ps(a, b);
            round(a) = _mm256_round_ps::<NEAREST>(a);
            ldexp(a, n) = {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
            };
            zero_below(x, limit, y) = _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, limit), y);
    }

    const COLUMNS: usize = 4;
    /// Rows `r` and `r + 4` are loaded to the halves of a register. Then there are two steps: pairs of rows, and fours
    /// of them, within each half.
    #[inline(always)]
    unsafe fn transposed<T: Convert>(self, rows: &[*const T; MAX_LANES]) -> [__m256; MAX_LANES] {
        // SAFETY: the caller promises 4 values at each of 8 rows; `self` proves that the processor has AVX2.
        unsafe {
            let mut halves: [_; 4] = Zeroable::zeroed();
            unroll!(r in 0..4 => {
                let [low, high] = [rows[r], rows[r + 4]];
                let bits = || _mm_unpacklo_epi64(_mm_loadl_epi64(low.cast()), _mm_loadl_epi64(high.cast()));
                halves[r] = match T::HALVES {
                    None => {
                        let low = _mm256_castps128_ps256(_mm_loadu_ps(low.cast()));
                        _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(high.cast()))
                    }
                    Some(PairFormat::F16) => _mm256_cvtph_ps(bits()),
                    Some(PairFormat::Bf16) => {
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits())))
                    }
                };
            });
            let [a, b, c, d] = halves;
            let low = [_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpacklo_ps(c, d))];
            let high = [_mm256_castps_pd(_mm256_unpackhi_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d))];
            let mut columns: [_; MAX_LANES] = Zeroable::zeroed();
            columns[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(low[0], low[1]));
            columns[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low[0], low[1]));
            columns[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high[0], high[1]));
            columns[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high[0], high[1]));
            columns
        }
    }
    const PREFETCHES: bool = true;
    memory_ops! {
        load(from: *const f32) -> __m256 = _mm256_loadu_ps(from);
        store(to: *mut f32, a: __m256) = _mm256_storeu_ps(to, a);
        load_f16(from: *const f16) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
        load_bf16(from: *const bf16) -> __m256 = {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        };
        gather(from: *const f32, step: usize, indices: *const u32) -> __m256 = {
            let steps = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(step as i32));
            _mm256_i32gather_ps::<4>(from, _mm256_add_epi32(_mm256_loadu_si256(indices.cast()), steps))
        };
    }
}

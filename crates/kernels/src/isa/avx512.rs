//! AVX-512F: 32 registers of 16 values.

use std::arch::x86_64::*;

use bytemuck::Zeroable;
use half::{bf16, f16};

use super::kernel::{InstructionSet, Kernel};
use super::simd::{MAX_LANES, Simd, VectorKernel, memory_ops, register_ops};
use crate::convert::{Convert, Pair};
use crate::unroll::unroll;

/// AVX-512F; with `BF16` the processor has AVX512-BW, AVX512-DQ and AVX512-BF16, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool = false>(());

impl Avx512 {
    /// AVX-512 with AVX512-BW, AVX512-DQ and AVX512-BF16.
    ///
    /// # Safety
    /// The processor has all of them.
    pub(super) unsafe fn with_bf16(self) -> Avx512<true> {
        Avx512(())
    }
}

/// Register tile: 8 × 3 sums and 3 vectors of B take 27 of the 32 registers; the values of A are broadcast by the
/// multiply-add itself. Each step has 24 multiply-adds (12 cycles on two ports) and 11 loads (5.5 cycles on two ports),
/// and 24 independent sums hide the latency of 4 cycles on both ports three times over.
const MR: usize = 8;
const NR: usize = 3;

impl InstructionSet for Avx512 {
    const NAME: &'static str = "avx512";

    fn detect() -> Option<Self> {
        // The compiler takes AVX-512F to include the other three.
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }

    fn speed() -> u32 {
        16
    }

    fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { run(self, kernel) }
    }
}

#[target_feature(enable = "avx512f")]
fn run<K: Kernel>(s: Avx512, kernel: K) {
    kernel.run::<_, MR, NR>(s);
}

#[target_feature(enable = "avx512f")]
#[inline(never)]
fn call<K: VectorKernel>(s: Avx512, kernel: K) {
    kernel.run(s);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
#[inline(never)]
fn call_bf16<K: VectorKernel>(s: Avx512<true>, kernel: K) {
    kernel.run(s);
}

/// Places in two vectors of 32 values, one after the other: a value of the first one, then that of the second one.
const PLACES: [[u16; 32]; 2] = {
    let mut places = [[0; 32]; 2];
    let mut i = 0;
    while i < 64 {
        places[i / 32][i % 32] = (i / 2 + i % 2 * 32) as u16;
        i += 1;
    }
    places
};

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// SAFETY: `load` and `store` access exactly 16 values.
unsafe impl<const BF16: bool> Simd for Avx512<BF16> {
    type V = __m512;
    const LANES: usize = 16;
    const SUMS: usize = MR * NR;

    #[inline(always)]
    fn call<K: VectorKernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has AVX-512F, and with `BF16` the others.
        unsafe { if BF16 { call_bf16(Avx512(()), kernel) } else { call(Avx512(()), kernel) } }
    }

    register_ops! {
        (*const f32) -> ():
            prefetch(at) = _mm_prefetch::<_MM_HINT_T0>(at.cast());
            prefetch_l2(at) = _mm_prefetch::<_MM_HINT_T1>(at.cast());
        (f32) -> __m512:
            splat(x) = _mm512_set1_ps(x);
        (__m512) -> __m512:
            add(a, b) = _mm512_add_ps(a, b);
            sub(a, b) = _mm512_sub_ps(a, b);
            mul(a, b) = _mm512_mul_ps(a, b);
            mul_add(a, b, c) = _mm512_fmadd_ps(a, b, c);
            div(a, b) = _mm512_div_ps(a, b);
            min(a, b) = _mm512_min_ps(a, b);
            max(a, b) = _mm512_max_ps(a, b);
            round(a) = _mm512_roundscale_ps::<NEAREST>(a);
            ldexp(a, n) = _mm512_scalef_ps(a, n);
            zero_below(x, limit, y) = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), y);
        (__m512) -> f32:
            reduce_add(a) = _mm512_reduce_add_ps(a);
            reduce_max(a) = _mm512_reduce_max_ps(a);
    }

    /// Four steps: pairs of rows, then fours of them within each quarter of a register, then quarters among registers.
    #[inline(always)]
    unsafe fn transposed<T: Convert>(self, rows: &[*const T; MAX_LANES]) -> [__m512; MAX_LANES] {
        // SAFETY: the caller promises 16 values at each of 16 rows; `self` proves that the processor has AVX-512.
        unsafe {
            let (mut pairs, mut fours): ([_; 16], [_; 16]) = Zeroable::zeroed();
            unroll!(i in 0..8 => {
                let (a, b) = (self.load_as(rows[2 * i]), self.load_as(rows[2 * i + 1]));
                (pairs[2 * i], pairs[2 * i + 1]) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            });
            unroll!(i in 0..8 => {
                let (i, j) = (i / 2 * 4, i % 2);
                let (a, b) = (_mm512_castps_pd(pairs[i + j]), _mm512_castps_pd(pairs[i + j + 2]));
                fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            });
            let mut columns: [_; 16] = Zeroable::zeroed();
            unroll!(j in 0..4 => {
                let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
                let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
                let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
                columns[j] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
                columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
                columns[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
                columns[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
            });
            columns
        }
    }
    #[inline(always)]
    fn dot_pairs(self, a: Pair, b: __m512, c: __m512) -> __m512 {
        assert!(BF16);
        // SAFETY: the types have one size, and any bits are valid; with `BF16` the processor has AVX512-BF16.
        unsafe {
            // As the third operand, the pair is broadcast by the instruction itself.
            let a = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(a.cast_signed()));
            _mm512_dpbf16_ps(c, std::mem::transmute::<__m512, __m512bh>(b), a)
        }
    }
    #[inline(always)]
    fn pair_up(self, first: __m512, second: __m512) -> [__m512; 2] {
        assert!(BF16);
        // SAFETY: `PLACES` are 32 values; with `BF16` the processor has AVX512-BW.
        unsafe {
            let (first, second) = (_mm512_castps_si512(first), _mm512_castps_si512(second));
            let low = _mm512_loadu_si512(PLACES[0].as_ptr().cast());
            let high = _mm512_loadu_si512(PLACES[1].as_ptr().cast());
            let low = _mm512_castsi512_ps(_mm512_permutex2var_epi16(first, low, second));
            [low, _mm512_castsi512_ps(_mm512_permutex2var_epi16(first, high, second))]
        }
    }
    const HAS_FRACTION: bool = BF16;
    #[inline(always)]
    fn fraction(self, x: __m512) -> __m512 {
        assert!(BF16);
        const BELOW: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
        // SAFETY: with `BF16` the processor has AVX512-DQ.
        unsafe { _mm512_reduce_ps::<BELOW>(x) }
    }
    const PREFETCHES: bool = true;
    memory_ops! {
        load(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        store(to: *mut f32, a: __m512) = _mm512_storeu_ps(to, a);
        load_f16(from: *const f16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        load_bf16(from: *const bf16) -> __m512 = {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        };
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, a: __m512) {
        if BF16 {
            // Subnormal values become 0, as in products.
            // SAFETY: the caller promises room for 16 values; `self` proves that the processor has AVX512-BF16.
            return unsafe { to.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(a)) };
        }
        // SAFETY: the caller promises room for 16 values; `self` proves that the processor has AVX-512F.
        unsafe {
            let bits = _mm512_castps_si512(a);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
            let rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x0040_0000));
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
            _mm256_storeu_si256(to.cast(), halves);
        }
    }
    const HAS_LOOKUP: bool = true;
    #[inline(always)]
    fn lookup(self, table: &[f32; 32], index: __m512) -> __m512 {
        // SAFETY: the table has 32 values; `self` proves that the processor has AVX-512F.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(table.as_ptr()), _mm512_loadu_ps(table.as_ptr().add(16)));
            _mm512_permutex2var_ps(low, _mm512_castps_si512(index), high)
        }
    }
    memory_ops! {
        gather(from: *const f32, step: usize, indices: *const u32) -> __m512 = {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let steps = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(step as i32));
            _mm512_i32gather_ps::<4>(_mm512_add_epi32(_mm512_loadu_si512(indices.cast()), steps), from)
        };
    }
}

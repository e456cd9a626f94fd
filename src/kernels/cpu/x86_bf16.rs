//! AVX512-BF16: `vdpbf16ps`. Twice the f32 rate on AMD (Zen 5), half of it on Intel.

use std::arch::x86_64::*;

use super::pairs::{COLUMNS, Pair, PairDot, Tile, round_rest};
use super::x86::Avx512;

/// AVX512-BF16 beside AVX-512F.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Bf16(Avx512);

impl Avx512Bf16 {
    pub(super) fn new() -> Option<Self> {
        Avx512::new().filter(|_| is_x86_feature_detected!("avx512bf16")).map(Self)
    }

    pub(super) fn floats(self) -> Avx512 {
        self.0
    }

    /// Whether the instruction is faster than f32 arithmetic.
    pub(super) fn is_fast() -> bool {
        let id = __cpuid(0);
        [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
    }

    /// # Safety
    /// As [`PairDot::tile`], for `R` rows and `V` vectors.
    #[inline(always)]
    unsafe fn product<const R: usize, const V: usize>(self, tile: Tile, a: *const Pair, b: *const Pair, c: *mut f32) {
        // SAFETY: `r < R`, `v < V` and `pair < pairs` stay inside what the caller promises; `self` is the proof.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); V]; R];
            if tile.add {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_loadu_ps(c.add(r * tile.c_row + v * COLUMNS));
                    }
                }
            }
            for pair in 0..tile.pairs {
                let mut columns = [_mm512_setzero_si512(); V];
                for (v, column) in columns.iter_mut().enumerate() {
                    *column = _mm512_loadu_si512(b.add(pair * tile.b_row + v * COLUMNS).cast());
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32((*a.add(r * tile.a_row + pair)).cast_signed());
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, halves(x), halves(column));
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                for (v, sum) in sums.into_iter().enumerate() {
                    _mm512_storeu_ps(c.add(r * tile.c_row + v * COLUMNS), sum);
                }
            }
        }
    }

    /// # Safety
    /// As [`PairDot::tile`], for `V` vectors.
    #[inline(always)]
    unsafe fn rows<const V: usize>(self, tile: Tile, a: *const Pair, b: *const Pair, c: *mut f32) {
        let mut row = 0;
        while row < tile.rows {
            // SAFETY: at most `tile.rows` rows are taken in all.
            unsafe {
                let (a, c) = (a.add(row * tile.a_row), c.add(row * tile.c_row));
                row += match tile.rows - row {
                    8.. => {
                        self.product::<8, V>(tile, a, b, c);
                        8
                    }
                    4..8 => {
                        self.product::<4, V>(tile, a, b, c);
                        4
                    }
                    _ => {
                        self.product::<1, V>(tile, a, b, c);
                        1
                    }
                };
            }
        }
    }
}

/// # Safety
/// The processor has AVX512-BF16.
#[inline(always)]
unsafe fn halves(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, and any bits are valid.
    unsafe { std::mem::transmute(bits) }
}

// SAFETY: `product` reads and writes `R` rows of `V` vectors, never more than the tile has.
unsafe impl PairDot for Avx512Bf16 {
    const ROWS: usize = 8;
    const VECTORS: usize = 3;
    const STEP: usize = 1;

    #[inline(always)]
    fn begin(self) {}
    #[inline(always)]
    fn end(self) {}

    #[inline(always)]
    fn round(self, from: &[f32], to: &mut [Pair]) {
        assert!(to.len() >= from.len().div_ceil(2));
        let whole = from.len() / COLUMNS * COLUMNS;
        for at in (0..whole).step_by(COLUMNS) {
            // SAFETY: 16 floats from `at` are 8 pairs from `at / 2`, inside both slices; `self` is the proof.
            unsafe {
                let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from.as_ptr().add(at)));
                to.as_mut_ptr().add(at / 2).cast::<__m256bh>().write_unaligned(rounded);
            }
        }
        round_rest(from, to, whole);
    }

    #[inline(always)]
    unsafe fn tile(self, tile: Tile, a: *const Pair, b: *const Pair, c: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe {
            match tile.vectors {
                1 => self.rows::<1>(tile, a, b, c),
                2 => self.rows::<2>(tile, a, b, c),
                _ => self.rows::<3>(tile, a, b, c),
            }
        }
    }
}

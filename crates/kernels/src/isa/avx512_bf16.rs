//! AVX512-BF16: `vdpbf16ps`, at twice the f32 rate on AMD (Zen 5: two per cycle, with a latency of 6) and at half of
//! it on Intel.

use std::arch::x86_64::*;

use bytemuck::Zeroable;

use super::avx512::Avx512;
use super::kernel::{InstructionSet, Kernel, PairKernel};
use super::microkernel::{Prefetch, store_rows};
use super::pair_dot::{PairDot, PairOrder, PairTile, TileLayout, VECTOR_COLUMNS, round_tail};
use crate::convert::{Pair, PairFormat};
use crate::unroll::unroll;

/// AVX512-BF16 and AVX-512F.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Bf16(Avx512);

impl InstructionSet for Avx512Bf16 {
    const NAME: &'static str = "avx512_bf16";
    const F32_NAME: &'static str = Avx512::NAME;
    const PAIRS: &[PairFormat] = &[PairFormat::Bf16];

    fn detect() -> Option<Self> {
        // Every processor with AVX512-BF16 has the other two.
        let has_bf16 = is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq");
        Avx512::detect().filter(|_| has_bf16).map(Self)
    }

    fn speed() -> u32 {
        let id = __cpuid(0);
        let is_amd = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD";
        if is_amd { 32 } else { 8 }
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }

    fn run_pairs<K: PairKernel>(self, _: PairFormat, kernel: K) {
        self.run_bf16_with(self, kernel);
    }
}

impl Avx512Bf16 {
    /// The instructions for everything but products.
    pub(crate) fn vectors(self) -> Avx512 {
        self.0
    }

    /// Runs a kernel with bf16 products by `dot`, and everything else by AVX-512.
    pub(super) fn run_bf16_with<K: PairKernel, D: PairDot>(self, dot: D, kernel: K) {
        // SAFETY: `self` proves that the processor has all four.
        unsafe { run_bf16(self.0.with_bf16(), dot, kernel) }
    }

    /// Computes a tile of `ROWS` rows by `VECTORS` vectors in registers.
    ///
    /// # Safety
    /// The conditions of [`PairDot::multiply_tile`], with `ROWS` rows and `VECTORS` vectors.
    #[inline(always)]
    unsafe fn microkernel<const ROWS: usize, const VECTORS: usize>(
        self,
        mut tile: PairTile,
        a: *const Pair,
        b: *const Pair,
        c: *mut f32,
    ) {
        let TileLayout::Rows { a: a_stride, b: b_stride } = tile.layout else { unreachable!("is packed as rows") };
        // SAFETY: `r < ROWS`, `v < VECTORS` and `pair < pairs` stay inside the memory that the caller promises; `self`
        // proves that the processor has the instructions.
        unsafe {
            let mut sums: [[__m512; VECTORS]; ROWS] = Zeroable::zeroed();
            if tile.accumulate {
                unroll!(r in 0..ROWS => {
                    let row = c.add(r * tile.c_stride);
                    unroll!(v in 0..VECTORS => sums[r][v] = _mm512_loadu_ps(row.add(v * VECTOR_COLUMNS)));
                });
            }
            let (mut a, mut b) = (a, b);
            for block in 0..tile.pairs / Prefetch::BLOCK {
                tile.prefetch.fetch(self.0, block);
                unroll!(pair in 0..Prefetch::BLOCK => {
                    add_pair(a.add(pair), a_stride, b.add(pair * b_stride), &mut sums)
                });
                (a, b) = (a.add(Prefetch::BLOCK), b.add(Prefetch::BLOCK * b_stride));
            }
            for pair in 0..tile.pairs % Prefetch::BLOCK {
                add_pair(a.add(pair), a_stride, b.add(pair * b_stride), &mut sums);
            }
            store_rows(self.0, &sums, c, tile.c_stride);
        }
    }

    /// Computes the rows of a tile of `VECTORS` vectors: as many eights as there are, a four, a two, ones.
    ///
    /// # Safety
    /// The conditions of [`PairDot::multiply_tile`], with `VECTORS` vectors.
    #[inline(always)]
    unsafe fn rows<const VECTORS: usize>(self, tile: PairTile, a: *const Pair, b: *const Pair, c: *mut f32) {
        let TileLayout::Rows { a: a_stride, .. } = tile.layout else { unreachable!("is packed as rows") };
        let mut row = 0;
        while row < tile.rows {
            // SAFETY: each step takes at most the rows that are left.
            unsafe {
                let (a, c) = (a.add(row * a_stride), c.add(row * tile.c_stride));
                let rows = 1 << (tile.rows - row).min(8).ilog2();
                match rows {
                    8 => self.microkernel::<8, VECTORS>(tile, a, b, c),
                    4 => self.microkernel::<4, VECTORS>(tile, a, b, c),
                    2 => self.microkernel::<2, VECTORS>(tile, a, b, c),
                    _ => self.microkernel::<1, VECTORS>(tile, a, b, c),
                }
                row += rows;
            }
        }
    }
}

/// Adds the products of one pair of each of `ROWS` rows of A, `a_stride` pairs apart, with `VECTORS` vectors of B.
///
/// # Safety
/// These can be read, and the processor has AVX512-BF16.
#[inline(always)]
unsafe fn add_pair<const ROWS: usize, const VECTORS: usize>(
    a: *const Pair,
    a_stride: usize,
    b: *const Pair,
    sums: &mut [[__m512; VECTORS]; ROWS],
) {
    // SAFETY: `v < VECTORS` and `r < ROWS` stay inside the memory that the caller promises.
    unsafe {
        let mut columns: [__m512i; VECTORS] = Zeroable::zeroed();
        unroll!(v in 0..VECTORS => columns[v] = _mm512_loadu_si512(b.add(v * VECTOR_COLUMNS).cast()));
        unroll!(r in 0..ROWS => {
            let x = cast_to_bf16(_mm512_set1_epi32((*a.add(r * a_stride)).cast_signed()));
            unroll!(v in 0..VECTORS => sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, cast_to_bf16(columns[v])));
        });
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
fn run_bf16<K: PairKernel, D: PairDot>(s: Avx512<true>, dot: D, kernel: K) {
    kernel.run(s, dot);
}

/// # Safety
/// The processor has AVX512-BF16.
#[inline(always)]
unsafe fn cast_to_bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes, and any bits are valid.
    unsafe { std::mem::transmute(bits) }
}

// SAFETY: `microkernel` reads and writes `ROWS` rows of `VECTORS` vectors, never more than the tile has.
unsafe impl PairDot for Avx512Bf16 {
    const FORMAT: PairFormat = PairFormat::Bf16;
    /// The registers of 8 × 3 tiles are those of the f32 tile of AVX-512, which gives the reason for the size.
    const MAX_ROWS: usize = 8;
    const MAX_VECTORS: usize = 3;
    const PAIR_STEP: usize = 1;
    const BY_VECTORS: bool = true;
    const ORDER: PairOrder = PairOrder::Rows;

    #[inline(always)]
    fn round_to_pairs(self, from: &[f32], to: &mut [Pair]) {
        assert!(to.len() >= from.len().div_ceil(2));
        let whole = from.len() / VECTOR_COLUMNS * VECTOR_COLUMNS;
        for at in (0..whole).step_by(VECTOR_COLUMNS) {
            // SAFETY: 16 values from `at` are 8 pairs from `at / 2`, inside both slices; `self` proves that the
            // processor has the instructions.
            unsafe {
                let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from.as_ptr().add(at)));
                to.as_mut_ptr().add(at / 2).cast::<__m256bh>().write_unaligned(rounded);
            }
        }
        round_tail(Self::FORMAT, from, to, whole);
    }

    #[inline(always)]
    unsafe fn multiply_tile(self, tile: PairTile, a: *const Pair, b: *const Pair, c: *mut f32) {
        // SAFETY: the caller's promise, for the number of vectors that the tile has.
        unsafe {
            match tile.vectors {
                1 => self.rows::<1>(tile, a, b, c),
                2 => self.rows::<2>(tile, a, b, c),
                _ => self.rows::<3>(tile, a, b, c),
            }
        }
    }
}

//! Products by a library in place of this crate's microkernels: `sgemm` of Apple's Accelerate or Intel's MKL.
//!
//! Only the product is the library's. Weights for it are panels of one output feature, which is the row-major matrix
//! that `sgemm` reads: they are packed, shared and unpacked as all others, and take the memory of the tensor. A task
//! multiplies its rows with a block of outputs into scratch memory; bias, activation and dtype of the output follow
//! there, while the block is in the cache. Weights of 16 bits become f32 by the block.
//!
//! A team shares tasks, and each is a call of one thread: threads of the library beside those of the team would be more
//! than there are cores. MKL is told so. Accelerate has no such function before macOS 15 and shares one matrix unit
//! between the cores of a cluster, so it does as it likes.
//!
//! No library promises that a row has the same bits in any batch. MKL keeps them if a product has [`MIN_ROWS`] rows and
//! [`MIN_OUTPUTS`] outputs: below, it takes other loops. So tasks are of like size, the few rows of a smaller product
//! are filled up with zeros, and the kernels multiply for fewer outputs.

use std::ops::Range;

use super::elements::Elements;
use super::error::Result;
use super::gemm::{Epilogue, GemmTask};
use super::isa::kernel::Kernel;
use super::isa::simd::{MAX_LANES, Simd};
use super::registry::Isa;

/// A library that multiplies matrices in f32.
#[derive(Debug, Clone, Copy)]
pub struct Blas {
    /// Its name.
    pub name: &'static str,
    /// Its product.
    pub sgemm: fn(Sgemm),
}

/// One product of a library, `a wᵀ`: `cblas_sgemm` of row-major matrices, the second one transposed, with `alpha` 1
/// and `beta` 0.
#[derive(Debug)]
pub struct Sgemm<'a> {
    /// `[m, n, k]`: rows, outputs and terms, each at least 1 and at most `i32::MAX`.
    pub dims: [usize; 3],
    /// `(m, k)`.
    pub a: &'a [f32],
    /// `(n, k)`.
    pub w: &'a [f32],
    /// `(m, n)` in rows of `stride`, of any content before.
    pub c: &'a mut [f32],
    /// At least `n` and at most `i32::MAX`.
    pub stride: usize,
}

/// The largest size that a library takes, whose integers have 32 bits.
pub(super) const MAX_SIZE: usize = i32::MAX as usize;

/// The fewest rows and outputs of a product.
const MIN_ROWS: usize = 4;
pub(super) const MIN_OUTPUTS: usize = 12;
/// The most rows of a task. A library packs the weights in each call, for which more rows pay.
pub(super) const ROW_BLOCK: usize = 256;
/// Threads share outputs by whole tiles.
pub(super) const OUTPUT_STEP: usize = 64;
/// Outputs of a call.
const MAX_OUTPUTS: usize = 1024;
/// The values of 16-bit weights that become f32 together: 1 MB.
const WIDENED_VALUES: usize = 1 << 18;

/// Part `index` of `parts` of a number of rows or outputs: of like size, in whole steps but the last.
pub(super) fn share(all: usize, (index, parts): (usize, usize), step: usize) -> Range<usize> {
    let start = |index: usize| if index == parts { all } else { all / step * index / parts * step };
    start(index)..start(index + 1)
}

/// Runs a task on weights that are rows of outputs.
pub(super) fn run_blas(isa: Isa, blas: Blas, task: GemmTask, weights: Elements) -> Result<()> {
    let (terms, rows) = (task.in_features, task.to - task.from);
    let widened = (WIDENED_VALUES / terms.max(1)).next_multiple_of(OUTPUT_STEP).min(MAX_OUTPUTS);
    let most = if weights.is_f32() { MAX_OUTPUTS } else { widened };
    // The last block may be larger.
    let largest = (task.last - task.first).min(most + OUTPUT_STEP);
    // Hardly more than there are inputs, weights and outputs, so the products do not wrap around.
    let sizes = [
        if task.a.is_f32() && rows >= MIN_ROWS { 0 } else { (rows.max(MIN_ROWS) * terms).next_multiple_of(MAX_LANES) },
        if weights.is_f32() { 0 } else { (largest * terms).next_multiple_of(MAX_LANES) },
        (1 + rows.max(MIN_ROWS)) * largest.next_multiple_of(MAX_LANES),
    ];
    let mut memory = task.pool.take(sizes.iter().sum())?;
    let (upcast, memory) = memory.split_at_mut(sizes[0]);
    let (wide, results) = memory.split_at_mut(sizes[1]);
    isa.run(GemmBlas { blas, task, weights, block: most, upcast, wide, results });
    Ok(())
}

struct GemmBlas<'a> {
    blas: Blas,
    task: GemmTask<'a>,
    weights: Elements<'a>,
    /// Outputs of a call that is not the last one.
    block: usize,
    /// Memory for inputs in f32, for a block of weights in f32, and for its bias and results.
    upcast: &'a mut [f32],
    wide: &'a mut [f32],
    results: &'a mut [f32],
}

impl Kernel for GemmBlas<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { blas, task, weights, block, upcast, wide, results } = self;
        let (terms, out_features) = (task.in_features, task.out_features);
        let rows = task.to - task.from;
        let (m, a) = (rows.max(MIN_ROWS), task.a.part(task.from * terms..task.to * terms));
        let a = if rows < MIN_ROWS {
            let (real, zeros) = upcast[..m * terms].split_at_mut(rows * terms);
            a.upcast(real);
            zeros.fill(0.0);
            &upcast[..m * terms]
        } else {
            a.as_f32(upcast)
        };
        let mut first = task.first;
        while first < task.last {
            let last = if task.last - first < block + OUTPUT_STEP { task.last } else { first + block };
            let (columns, stride) = (last - first, (last - first).next_multiple_of(MAX_LANES));
            let (bias, rest) = results.split_at_mut(stride);
            bias[..columns].copy_from_slice(&task.bias[first..last]);
            let sums = &mut rest[..m * stride];
            if terms == 0 {
                sums.fill(0.0);
            } else {
                let w = weights.part(first * terms..last * terms).as_f32(wide);
                (blas.sgemm)(Sgemm { dims: [m, columns, terms], a, w, c: sums, stride });
            }
            s.call(Epilogue {
                sums: &mut sums[..rows * stride],
                bias,
                activation: task.activation,
                columns,
                out: task.out,
                start: task.from * out_features + first,
                stride: out_features,
            });
            first = last;
        }
    }
}

impl Blas {
    /// The library that the build is linked with, by the feature `accelerate` or `mkl`.
    pub fn linked() -> Option<Self> {
        #[cfg(feature = "mkl")]
        return Some(Self { name: "MKL", sgemm: linked::sgemm });
        #[cfg(all(feature = "accelerate", not(feature = "mkl")))]
        return Some(Self { name: "Accelerate", sgemm: linked::sgemm });
        #[cfg(not(any(feature = "accelerate", feature = "mkl")))]
        None
    }
}

/// The functions of the library that the build is linked with.
#[cfg(any(feature = "accelerate", feature = "mkl"))]
mod linked {
    use std::ffi::c_int;

    #[cfg(all(feature = "accelerate", not(feature = "mkl")))]
    extern crate accelerate_src;
    #[cfg(feature = "mkl")]
    extern crate intel_mkl_src;

    use super::Sgemm;

    const ROW_MAJOR: c_int = 101;
    const NO_TRANSPOSE: c_int = 111;
    const TRANSPOSE: c_int = 112;

    unsafe extern "C" {
        fn cblas_sgemm(
            order: c_int,
            transpose_a: c_int,
            transpose_b: c_int,
            m: c_int,
            n: c_int,
            k: c_int,
            alpha: f32,
            a: *const f32,
            lda: c_int,
            b: *const f32,
            ldb: c_int,
            beta: f32,
            c: *mut f32,
            ldc: c_int,
        );

        /// Sets the threads of the calling thread's products, and returns the number before; 0 is that of the process.
        #[cfg(feature = "mkl")]
        fn MKL_Set_Num_Threads_Local(threads: c_int) -> c_int;
    }

    pub fn sgemm(product: Sgemm) {
        let Sgemm { dims: [m, n, k], a, w, c, stride } = product;
        let is_inside = m > 0 && n > 0 && k > 0 && a.len() / k >= m && w.len() / k >= n && c.len() / stride >= m;
        assert!(is_inside && n <= stride, "a product beyond its matrices");
        let [rows, outputs, terms, to_row] = [m, n, k, stride].map(|size| c_int::try_from(size).expect("32 bits"));
        // SAFETY: it takes any number, and holds for this thread.
        #[cfg(feature = "mkl")]
        let before = unsafe { MKL_Set_Num_Threads_Local(1) };
        // SAFETY: the assertion checks that `m` rows of `k` values, `n` rows of `k` and `m` rows of `stride` with `n`
        // values each are in the slices, all sizes are at least 1, and no leading dimension is less than its row.
        unsafe {
            cblas_sgemm(
                ROW_MAJOR,
                NO_TRANSPOSE,
                TRANSPOSE,
                rows,
                outputs,
                terms,
                1.0,
                a.as_ptr(),
                terms,
                w.as_ptr(),
                terms,
                0.0,
                c.as_mut_ptr(),
                to_row,
            );
        }
        // SAFETY: as above.
        #[cfg(feature = "mkl")]
        unsafe {
            MKL_Set_Num_Threads_Local(before)
        };
    }
}

//! `sgemm` written out as loops, in the place of a library.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use candle_attention_kernels::{Blas, Sgemm};

pub const LOOPS: Blas = Blas { name: "loops", sgemm: multiply };

/// Sums in the order of the terms. It checks what a library relies on, and writes nothing but its rows.
fn multiply(Sgemm { dims: [m, n, k], a, w, c, stride }: Sgemm) {
    assert!(m > 0 && n > 0 && k > 0 && (a.len(), w.len()) == (m * k, n * k) && stride >= n && c.len() >= m * stride);
    for (row, c) in a.chunks(k).zip(c.chunks_mut(stride)) {
        c.fill(f32::NAN); // Neither what was there nor what fills a row is in a result.
        for (c, w) in c.iter_mut().zip(w.chunks(k)) {
            *c = row.iter().zip(w).fold(0.0, |sum, (a, w)| a.mul_add(*w, sum));
        }
    }
}

/// The multiply-adds of all products of the library that `run` gets; one call after another.
pub fn count_multiply_adds(run: impl FnOnce(Blas)) -> usize {
    static ONE: Mutex<()> = Mutex::new(());
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    fn counted(product: Sgemm) {
        COUNT.fetch_add(product.dims.iter().product(), Ordering::Relaxed);
        multiply(product);
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    COUNT.store(0, Ordering::Relaxed);
    run(Blas { name: "counted loops", sgemm: counted });
    COUNT.load(Ordering::Relaxed)
}

//! Buffers whose first element is at the start of a cache line.
//!
//! Vectors of AVX-512 and rows of AMX tiles are 64 bytes, one cache line. The allocator aligns a `Vec` to 16 bytes
//! only, and then each of these loads and stores touches two lines. Alignment alone makes f32 products 5 to 14 % faster
//! on Intel, and bf16 products of AMX up to 28 %.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

use super::error::Result;
use super::size::{element_count, try_reserve};

/// The memory of a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

// SAFETY: an array of bytes, for which any bits and also zeros are valid; its size is its alignment, so nothing is
// padded.
unsafe impl Zeroable for CacheLine {}
// SAFETY: for the same reason.
unsafe impl Pod for CacheLine {}

/// A buffer of plain numbers, aligned to 64 bytes.
#[derive(Debug)]
pub struct AlignedVec<T> {
    lines: Vec<CacheLine>,
    len: usize,
    element: PhantomData<T>,
}

impl std::fmt::Debug for CacheLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CacheLine")
    }
}

impl<T> Default for AlignedVec<T> {
    fn default() -> Self {
        Self { lines: Vec::new(), len: 0, element: PhantomData }
    }
}

impl<T> Clone for AlignedVec<T> {
    fn clone(&self) -> Self {
        Self { lines: self.lines.clone(), ..*self }
    }
}

impl<T: Pod> AlignedVec<T> {
    /// `len` zeros. `what` is the name of the memory in the error.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn zeros(what: &str, len: usize) -> Result<Self> {
        let mut zeros = Self::default();
        zeros.resize(what, len)?;
        Ok(zeros)
    }

    /// A copy of `elements`.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn copy_of(what: &str, elements: &[T]) -> Result<Self> {
        let mut copy = Self::zeros(what, elements.len())?;
        copy.copy_from_slice(elements);
        Ok(copy)
    }

    /// Makes it `len` elements of any content, without copying the old ones. What it had for a larger `len` it keeps.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn resize(&mut self, what: &str, len: usize) -> Result<()> {
        let lines = element_count(what, &[len, size_of::<T>()])?.div_ceil(size_of::<CacheLine>());
        if lines > self.lines.len() {
            (self.lines, self.len) = (Vec::new(), 0);
            try_reserve(what, &mut self.lines, lines)?;
            self.lines.resize(lines, CacheLine::zeroed());
        }
        self.len = len;
        Ok(())
    }

    /// The elements that it has memory for.
    pub fn capacity(&self) -> usize {
        self.lines.len() * (size_of::<CacheLine>() / size_of::<T>())
    }
}

impl<T: Pod> Deref for AlignedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn buffers_start_at_a_cache_line() {
        let mut buffers: Vec<AlignedVec<f32>> = Vec::new();
        for len in [1, 15, 16, 17, 1000, 70_000] {
            buffers.push(AlignedVec::zeros("a test", len).unwrap());
            let last = buffers.last().unwrap();
            assert_eq!((last.len(), last.as_ptr() as usize % 64), (len, 0));
            assert!(last.iter().all(|x| *x == 0.0) && last.capacity() >= len);
        }
        let mut narrow = AlignedVec::<bf16>::default();
        narrow.resize("a test", 33).unwrap();
        assert_eq!((narrow.len(), narrow.capacity(), narrow.as_ptr() as usize % 64), (33, 64, 0));
        narrow.resize("a test", 3).unwrap();
        assert_eq!((narrow.len(), narrow.capacity()), (3, 64), "a smaller size keeps the memory");
    }

    #[test]
    fn memory_that_nobody_has_is_an_error() {
        let error = AlignedVec::<f32>::zeros("the test", usize::MAX / 8).unwrap_err().to_string();
        assert!(error.contains("the test"), "{error}");
    }
}

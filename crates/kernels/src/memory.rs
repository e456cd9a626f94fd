//! Memory: sizes that are computed without overflow, buffers at cache lines, and scratch memory of kernels.
//!
//! A view with strides of 0 has any shape and takes no memory. So the product of its dimensions may wrap around in
//! `usize`, and a copy of it may be larger than all memory. Rust wraps in release builds, and aborts the process where
//! an allocation fails. Both become errors here, before a kernel relies on the size.
//!
//! Vectors of AVX-512 and rows of AMX tiles are 64 bytes, one cache line. The allocator aligns a `Vec` to 16 bytes
//! only, and then each of these loads and stores touches two lines. Alignment alone makes f32 products 5 to 14 % faster
//! on Intel, and bf16 products of AMX up to 28 %.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{Pod, Zeroable};

use super::error::{Error, Result};

/// The most elements that a tensor may have: as many as `isize::MAX` bytes hold, the limit of any allocation, in the
/// widest dtype (f64). Nothing real comes near it on a 64-bit processor.
const MAX_ELEMENTS: usize = isize::MAX as usize / size_of::<f64>();

/// The number of elements of `what`, which has these dimensions.
///
/// # Errors
/// If there are more elements than can be addressed.
pub fn element_count(what: &str, dims: &[usize]) -> Result<usize> {
    if dims.contains(&0) {
        return Ok(0);
    }
    let product = dims.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    product.filter(|count| *count <= MAX_ELEMENTS).ok_or_else(|| {
        Error::shape(what, dims, format!("at most {MAX_ELEMENTS} elements, which is all that can be addressed"))
    })
}

/// Makes room for `count` more elements of `what`.
///
/// # Errors
/// If there is not enough memory.
pub fn try_reserve<T>(what: &str, vec: &mut Vec<T>, count: usize) -> Result<()> {
    vec.try_reserve_exact(count).map_err(|_| no_memory::<T>(what, count))
}

/// `count` zeros for `what`, from the system where it has pages of them.
///
/// # Errors
/// If there is not enough memory.
pub fn zeros<T: bytemuck::Zeroable>(what: &str, count: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| no_memory::<T>(what, count))
}

/// Checks that the system has memory for `count` elements of `what`, before an operation that would abort without it.
///
/// # Errors
/// If there is not enough memory.
pub fn check_allocation<T>(what: &str, count: usize) -> Result<()> {
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if is_granted(bytes) => Ok(()),
        _ => Err(no_memory::<T>(what, count)),
    }
}

/// Whether the allocator grants this many bytes.
fn is_granted(bytes: usize) -> bool {
    let mut memory = Vec::<u8>::new();
    let granted = memory.try_reserve_exact(bytes).is_ok();
    // The compiler may leave out an allocation that nobody uses, and take it for granted.
    std::hint::black_box(&mut memory);
    granted
}

fn no_memory<T>(what: &str, count: usize) -> Error {
    let found = format!("{} bytes", count as u128 * size_of::<T>() as u128);
    Error::value(format!("the memory for {what}"), found, "an amount that can be allocated")
}

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
#[derive(Debug, Clone, Default)]
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

impl<T: Pod> AlignedVec<T> {
    /// `len` zeros. `what` is the name of the memory in the error.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn zeros(what: &str, len: usize) -> Result<Self> {
        let mut zeros = Self { lines: Vec::new(), len: 0, element: PhantomData };
        zeros.resize(what, len)?;
        Ok(zeros)
    }

    /// Zeros for all elements of some dimensions.
    pub(super) fn zeros_with_dims(what: &str, dims: &[usize]) -> Result<Self> {
        Self::zeros(what, element_count(what, dims)?)
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

    /// Makes it `len` elements of any content, without copying the old ones. It keeps its capacity.
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

    /// The bytes of the elements.
    pub(super) fn into_bytes(self) -> AlignedVec<u8> {
        AlignedVec { len: self.len * size_of::<T>(), lines: self.lines, element: PhantomData }
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

/// Whole panels of a matrix, in memory that clones and ranges of its outputs share.
#[derive(Clone)]
pub(super) struct SharedPanels {
    memory: Arc<AlignedVec<u8>>,
    range: Range<usize>,
}

impl SharedPanels {
    pub(super) fn new(memory: AlignedVec<u8>) -> Self {
        Self { range: 0..memory.len(), memory: Arc::new(memory) }
    }

    /// Panels `first .. last` of all `panels`, in the same memory.
    pub(super) fn panels(&self, first: usize, last: usize, panels: usize) -> Self {
        let size = self.range.len() / panels.max(1);
        let at = |panel: usize| self.range.start + panel * size;
        Self { memory: self.memory.clone(), range: at(first)..at(last) }
    }

    /// The numbers of all panels.
    pub(super) fn all<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.memory[self.range.clone()])
    }

    /// The numbers of all panels, to write, in memory that is not shared.
    pub(super) fn all_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut Arc::make_mut(&mut self.memory)[self.range.clone()])
    }

    /// Panel `index` of all `panels`.
    pub(super) fn panel<T: Pod>(&self, index: usize, panels: usize) -> &[T] {
        let size = self.range.len() / panels / size_of::<T>();
        &self.all()[index * size..][..size]
    }
}

/// Scratch memory that a thread keeps after a call, so that the next one need not ask the system for it: 16 MB, enough
/// for attention over 16,384 keys with heads of 128. More goes back at the end of the call. Without a limit one call
/// with many keys would cost its memory on every thread for as long as the process runs.
pub(crate) const MAX_KEPT_BYTES: usize = 16 << 20;

const MAX_KEPT: usize = MAX_KEPT_BYTES / size_of::<f32>();

/// Buffers that a thread keeps. A call takes and gives back in nested order, so the next call finds each buffer where
/// it was.
#[derive(Default)]
struct Kept {
    buffers: Vec<AlignedVec<f32>>,
    /// The capacity of all of them.
    values: usize,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

impl Kept {
    fn pop(&mut self) -> Option<AlignedVec<f32>> {
        let memory = self.buffers.pop()?;
        self.values -= memory.capacity();
        Some(memory)
    }

    /// Keeps `memory`, or gives it back if there would be too much.
    fn push(&mut self, memory: AlignedVec<f32>) -> Option<AlignedVec<f32>> {
        if self.values + memory.capacity() > MAX_KEPT {
            return Some(memory);
        }
        self.values += memory.capacity();
        self.buffers.push(memory);
        None
    }
}

/// The scratch memory of one call. What is larger than 16 MB is shared by the tasks of the call, one after
/// another, and freed with this value.
#[derive(Debug, Default)]
pub struct ScratchPool {
    large: Mutex<Vec<AlignedVec<f32>>>,
}

impl ScratchPool {
    /// `size` values of any content, aligned to a cache line. It is not a function that takes a closure, because a
    /// closure does not inherit the target features of the kernel around it.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn take(&self, size: usize) -> Result<Scratch<'_>> {
        let memory = if size <= MAX_KEPT { KEPT.with_borrow_mut(Kept::pop) } else { self.large().pop() };
        let mut memory = memory.unwrap_or_default();
        memory.resize("the scratch memory of a kernel", size)?;
        Ok(Scratch { memory, pool: self })
    }

    /// Memory for parts of these sizes: see [`Scratch::parts`].
    pub(super) fn take_parts<const N: usize>(&self, sizes: [usize; N]) -> Result<Scratch<'_>> {
        self.take(in_lines(sizes).iter().sum())
    }

    fn large(&self) -> std::sync::MutexGuard<'_, Vec<AlignedVec<f32>>> {
        self.large.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scratch memory of one task. It is given back when it is dropped.
#[derive(Debug)]
pub struct Scratch<'a> {
    memory: AlignedVec<f32>,
    pool: &'a ScratchPool,
}

impl Scratch<'_> {
    /// Divides what [`ScratchPool::take_parts`] has taken. Each part starts at a cache line.
    pub(super) fn parts<const N: usize>(&mut self, sizes: [usize; N]) -> [&mut [f32]; N] {
        divide(self, in_lines(sizes))
    }
}

/// Divides memory into parts of these sizes.
pub(super) fn divide<const N: usize>(mut memory: &mut [f32], sizes: [usize; N]) -> [&mut [f32]; N] {
    sizes.map(|size| {
        let (part, rest) = std::mem::take(&mut memory).split_at_mut(size);
        memory = rest;
        part
    })
}

/// Sizes in f32 values, filled up to whole cache lines.
fn in_lines<const N: usize>(sizes: [usize; N]) -> [usize; N] {
    sizes.map(|size| size.next_multiple_of(size_of::<CacheLine>() / size_of::<f32>()))
}

impl Deref for Scratch<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory
    }
}

impl DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if let Some(memory) = KEPT.with_borrow_mut(|kept| kept.push(memory)) {
            self.pool.large().push(memory);
        }
    }
}

/// Bytes that this thread keeps.
#[cfg(test)]
pub(super) fn kept_bytes() -> usize {
    KEPT.with_borrow(|kept| kept.values) * size_of::<f32>()
}

//! Scratch memory of kernels: kept by each thread up to a limit, and beyond it only for the length of a call.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use super::aligned::AlignedVec;
use super::error::Result;

/// Scratch memory that a thread keeps after a call, so that the next one need not ask the system for it: 16 MB, enough
/// for attention over 16,384 keys with heads of 128. More goes back at the end of the call. Without a limit one call
/// with many keys would cost its memory on every thread for as long as the process runs.
pub(crate) const MAX_KEPT_BYTES: usize = 16 << 20;

const MAX_KEPT: usize = MAX_KEPT_BYTES / size_of::<f32>();

/// What a thread keeps. A call takes and gives back in nested order, so the next call finds each buffer where it was.
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

//! Scratch memory of kernels: kept by each thread up to a limit, and beyond it only for the length of a call.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use crate::error::Result;
use crate::tensor::try_reserve;

/// Scratch memory that a thread keeps after a call, so that the next one need not ask the system for it: 16 MB, enough
/// for attention over 16,384 keys with heads of 128. More goes back at the end of the call. Without a limit one call with
/// many keys would cost its memory on every thread for as long as the process runs.
pub(crate) const MAX_KEPT_BYTES: usize = 16 << 20;

thread_local! {
    static KEPT: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The scratch memory of one call. What is larger than [`MAX_KEPT_BYTES`] is shared by the tasks of the call, one after
/// another, and freed with this value.
#[derive(Default)]
pub(super) struct ScratchPool {
    large: Mutex<Vec<Vec<f32>>>,
}

impl ScratchPool {
    /// `size` values of any content. It is not a function that takes a closure, because a closure does not inherit the
    /// target features of the kernel around it.
    pub fn take(&self, size: usize) -> Result<Scratch<'_>> {
        let mut memory = if is_kept(size) { KEPT.take() } else { self.large().pop().unwrap_or_default() };
        if memory.len() < size {
            // The old content is of no use, so it is not copied.
            memory = Vec::new();
            try_reserve("the scratch memory of a kernel", &mut memory, size)?;
            memory.resize(size, 0.0);
        }
        Ok(Scratch { memory, size, pool: self })
    }

    fn large(&self) -> std::sync::MutexGuard<'_, Vec<Vec<f32>>> {
        self.large.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scratch memory of one task. It is given back when it is dropped.
pub(super) struct Scratch<'a> {
    memory: Vec<f32>,
    size: usize,
    pool: &'a ScratchPool,
}

impl Deref for Scratch<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[..self.size]
    }
}

impl DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[..self.size]
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if is_kept(memory.capacity()) {
            KEPT.set(memory);
        } else {
            self.pool.large().push(memory);
        }
    }
}

fn is_kept(values: usize) -> bool {
    values <= MAX_KEPT_BYTES / size_of::<f32>()
}

/// Bytes that this thread keeps.
#[cfg(test)]
pub(super) fn kept_bytes() -> usize {
    KEPT.with_borrow(Vec::capacity) * size_of::<f32>()
}

//! Output memory that several threads write, each thread its own part.

use std::mem::MaybeUninit;

/// The start of an output. Copies of it go to all threads.
pub(super) struct SharedOut<T>(pub *mut T);

impl<T> Clone for SharedOut<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedOut<T> {}

// SAFETY: the pointer is used by `part` and by kernels only, whose callers promise that no two threads write one
// element and that the memory outlives the threads' work.
unsafe impl<T: Send> Send for SharedOut<T> {}
// SAFETY: for the same reason.
unsafe impl<T: Send> Sync for SharedOut<T> {}

impl<T> SharedOut<T> {
    /// The start. A method, because a closure that names the field captures only the pointer, which no thread may
    /// share.
    pub(super) fn start(self) -> *mut T {
        self.0
    }

    /// The elements `start .. start + count`. They need not be initialized.
    ///
    /// # Safety
    /// They are allocated, and nobody else uses them while the result lives.
    pub(super) unsafe fn part<'a>(self, start: usize, count: usize) -> &'a mut [MaybeUninit<T>] {
        // SAFETY: the caller promises it.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start).cast(), count) }
    }
}

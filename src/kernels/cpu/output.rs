//! Memory that several threads write, each to places of its own.

use std::mem::MaybeUninit;

/// Where a result goes.
#[derive(Clone, Copy)]
pub(super) struct Output<T>(pub *mut T);

// SAFETY: whoever shares one among threads sees to it that no two write to one place, and that the slice it came from
// stays borrowed meanwhile.
unsafe impl<T: Send> Send for Output<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Output<T> {}

impl<T> Output<T> {
    /// `count` places from `start`, which need not hold anything yet.
    ///
    /// # Safety
    /// They exist and nobody else uses them while this lives.
    pub(super) unsafe fn places<'a>(self, start: usize, count: usize) -> &'a mut [MaybeUninit<T>] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start).cast(), count) }
    }
}

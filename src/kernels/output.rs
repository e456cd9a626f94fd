//! Memory that several threads write, each to places of its own.

/// Where a result goes.
#[derive(Clone, Copy)]
pub(super) struct Output<T>(pub *mut T);

// SAFETY: whoever shares one among threads sees to it that no two write to one place, and that the slice it came from
// stays borrowed meanwhile.
unsafe impl<T: Send> Send for Output<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Output<T> {}

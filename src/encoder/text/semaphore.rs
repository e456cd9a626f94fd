//! A semaphore: limits how many threads run batches of one model at a time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use candle_core::Device;

/// How many batches of one model run on an Apple GPU at a time. candle puts the work of all threads into one queue, so
/// that more would gain nothing, and each batch keeps its hidden states in memory until all of its work is queued.
const METAL_PERMITS: usize = 4;

/// A counting semaphore, or no limit. Clones share the same permits.
///
/// Written by hand because the standard library has none, and an async one would bring a runtime.
#[derive(Debug, Clone)]
pub(crate) struct Semaphore(Option<Arc<Permits>>);

#[derive(Debug)]
struct Permits {
    free: Mutex<usize>,
    released: Condvar,
}

/// Permission to run, released when it is dropped.
///
/// Dropping it does not wait for the device. Reading a result back waits for its own work, and candle's `synchronize` would
/// do harm: it forgets what the work that other threads queued meanwhile has to wait for.
pub(crate) struct Permit<'a>(Option<&'a Permits>);

impl Semaphore {
    /// The semaphore of a model on `device`: no limit but on Apple GPUs.
    pub fn for_device(device: &Device) -> Self {
        if device.is_metal() { Self::new(METAL_PERMITS) } else { Self(None) }
    }

    /// A semaphore of `count` permits.
    pub fn new(count: usize) -> Self {
        Self(Some(Arc::new(Permits { free: Mutex::new(count), released: Condvar::new() })))
    }

    /// Waits for a free permit.
    pub fn acquire(&self) -> Permit<'_> {
        let Some(permits) = self.0.as_deref() else { return Permit(None) };
        let mut free =
            permits.released.wait_while(permits.lock(), |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Permit(Some(permits))
    }
}

impl Permits {
    /// The count is valid even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(permits) = self.0 {
            *permits.lock() += 1;
            permits.released.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;

    #[test]
    fn no_more_threads_are_inside_than_there_are_permits() {
        let (semaphore, inside, most) = (Semaphore::new(4), AtomicUsize::new(0), AtomicUsize::new(0));
        // No thread leaves before four are inside, so that with fewer permits the test would hang.
        let four = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let _permit = semaphore.acquire();
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    four.wait();
                    inside.fetch_sub(1, SeqCst);
                });
            }
        });
        assert_eq!((most.into_inner(), inside.into_inner()), (4, 0));
    }

    #[test]
    fn threads_on_a_cpu_are_not_limited() {
        let (semaphore, all) = (Semaphore::for_device(&Device::Cpu), Barrier::new(100));
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let _permit = semaphore.acquire();
                    all.wait();
                });
            }
        });
    }

    #[test]
    fn panic_releases_its_permit() {
        let semaphore = Semaphore::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _permit = semaphore.acquire();
            panic!("inside");
        }));
        assert!(panicked.is_err());
        drop(semaphore.acquire());
    }
}

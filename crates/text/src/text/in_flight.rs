//! Bounds the work of one model that is on a device at a time.
//!
//! On an Apple GPU candle only queues work. Until a result is read back it keeps every tensor that was copied to the
//! device, and a command buffer for each 50 kernels, so that a caller who queues batch after batch takes more and more
//! memory (<https://github.com/huggingface/candle/issues/2271>). Waiting after each batch would bound that as well, but
//! a wait takes a millisecond or two, more than a small batch, and gives up all memory that the next batch could use
//! again. So a thread waits as soon as enough tokens are queued.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use candle_attention::Result;
use candle_core::{DType, Device, Tensor};

/// How many batches of one model are put into the queue of an Apple GPU at a time. candle has one queue for all
/// threads, so that more would gain nothing, and each batch keeps its hidden states in memory until all of its work is
/// queued.
const METAL_PERMITS: usize = 4;

/// Tokens of batches in the queue beyond which a thread waits until they are done.
pub(crate) const MOST_QUEUED: usize = 16_384;

/// A bound on the work in flight, or none. Clones share it.
///
/// With `n` permits, batches of at most `b` tokens and calls that allow `q` queued tokens, less than `q + n · b` tokens
/// are in flight: at most `n` batches have a [`Permit`], and a thread gives its permit back only if those of the
/// batches that were left unfinished are less than `q`.
#[derive(Debug, Clone)]
pub(crate) struct InFlight(Option<Arc<Bounded>>);

struct Bounded {
    state: Mutex<State>,
    released: Condvar,
    /// Returns when everything that was queued before is done.
    wait: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

#[derive(Debug)]
struct State {
    permits: usize,
    /// Tokens of all batches that were queued.
    queued: usize,
    /// The tokens among them that are known to be done.
    done: usize,
}

/// Permission to queue a batch. It is given back by [`finish`](Self::finish), or when it is dropped because the batch
/// failed: what the batch queued before counts, too.
pub(crate) struct Permit(Option<Held>);

struct Held {
    bounded: Arc<Bounded>,
    tokens: usize,
    most_queued: usize,
}

impl InFlight {
    /// The bound of a model on `device`: none but on Apple GPUs.
    pub fn for_device(device: &Device) -> Self {
        if !device.is_metal() {
            return Self(None);
        }
        let device = device.clone();
        Self::new(METAL_PERMITS, move || wait_for(&device))
    }

    /// A bound of `permits` batches. `wait` returns when everything that was queued before is done.
    pub fn new(permits: usize, wait: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State { permits, queued: 0, done: 0 });
        Self(Some(Arc::new(Bounded { state, released: Condvar::new(), wait: Box::new(wait) })))
    }

    /// Waits for a permit to queue a batch. `tokens` counts padding. The device is waited for at the end of the batch
    /// if `most_queued` tokens or more are then in flight.
    pub fn begin(&self, tokens: usize, most_queued: usize) -> Permit {
        let held = self.0.as_ref().map(|bounded| {
            bounded.acquire();
            Held { bounded: bounded.clone(), tokens, most_queued }
        });
        Permit(held)
    }
}

impl Permit {
    /// Ends a batch whose work is queued.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), |held| held.settle())
    }
}

impl Held {
    /// Counts the tokens of the batch, and waits for the device if too many are in flight.
    fn settle(&self) -> Result<()> {
        let bounded = &self.bounded;
        let queued = {
            let mut state = bounded.lock();
            state.queued = state.queued.wrapping_add(self.tokens);
            (state.queued.wrapping_sub(state.done) >= self.most_queued).then_some(state.queued)
        };
        if let Some(queued) = queued {
            (bounded.wait)()?;
            let mut state = bounded.lock();
            // Another thread may have waited for more meanwhile.
            if state.queued.wrapping_sub(queued) < state.queued.wrapping_sub(state.done) {
                state.done = queued;
            }
        }
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(held) = self.0.take().filter(|_| !std::thread::panicking()) {
            // The batch has an error of its own, which is returned.
            let _ = held.settle();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bounded.lock().permits += 1;
        self.bounded.released.notify_one();
    }
}

/// Waits until everything that was queued on `device` is done: by reading a number back. candle's `synchronize` would
/// do harm: it forgets what the work that other threads queued meanwhile has to wait for. It alone, though, looks for
/// failures of all command buffers; reading back looks at the last one.
fn wait_for(device: &Device) -> Result<()> {
    Tensor::zeros(1, DType::U8, device)?.to_vec1::<u8>()?;
    Ok(())
}

impl Bounded {
    /// Waits for a free permit.
    fn acquire(&self) {
        let mut state =
            self.released.wait_while(self.lock(), |state| state.permits == 0).unwrap_or_else(PoisonError::into_inner);
        state.permits -= 1;
    }

    /// The counts are valid even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Bounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounded").field("state", &self.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;
    use candle_attention::Error;

    #[test]
    fn no_more_threads_are_inside_than_there_are_permits() {
        let (in_flight, inside, most) = (InFlight::new(4, || Ok(())), AtomicUsize::new(0), AtomicUsize::new(0));
        // No thread leaves before four are inside, so that with fewer permits the test would hang.
        let four = Barrier::new(4);
        let batch = || {
            let permit = in_flight.begin(1, 10);
            most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
            four.wait();
            inside.fetch_sub(1, SeqCst);
            permit.finish().unwrap();
        };
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(batch);
            }
        });
        assert_eq!((most.load(SeqCst), inside.load(SeqCst)), (4, 0));
    }

    #[test]
    fn threads_on_a_cpu_are_not_limited() {
        let (in_flight, all) = (InFlight::for_device(&Device::Cpu), Barrier::new(100));
        let batch = || {
            let permit = in_flight.begin(1, 0);
            all.wait();
            permit.finish().unwrap();
        };
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(batch);
            }
        });
    }

    #[test]
    fn panic_releases_its_permit() {
        let in_flight = InFlight::new(1, || Ok(()));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _permit = in_flight.begin(1, 10);
            panic!("inside")
        }));
        assert!(panicked.is_err());
        in_flight.begin(1, 10).finish().unwrap();
    }

    /// A device that works on nothing before somebody waits for it.
    #[test]
    fn tokens_in_flight_are_bounded() {
        let (permits, largest, most_queued) = (3, 50, 400);
        let queue: Arc<Mutex<usize>> = Arc::default();
        let (waits, device) = (Arc::new(AtomicUsize::new(0)), queue.clone());
        let counted = waits.clone();
        let in_flight = InFlight::new(permits, move || {
            counted.fetch_add(1, SeqCst);
            *device.lock().unwrap() = 0;
            Ok(())
        });
        let most = AtomicUsize::new(0);
        let (tokens, batches) = (|i: usize| 1 + i * 7 % largest, 200);
        let batch = |tokens: usize| {
            let permit = in_flight.begin(tokens, most_queued);
            {
                let mut queue = queue.lock().unwrap();
                *queue += tokens;
                most.fetch_max(*queue, SeqCst);
            }
            permit.finish().unwrap();
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..batches).map(tokens).for_each(batch));
            }
        });
        let most = most.load(SeqCst);
        assert!((most_queued..most_queued + permits * largest).contains(&most), "{most} tokens");
        // No thread waits for less than the queue may hold, but for those that wait at the same time.
        let all = 8 * (0..batches).map(tokens).sum::<usize>();
        assert!(waits.load(SeqCst) <= permits * (all / most_queued), "{waits:?}");
        // A single batch of that size is waited for by itself.
        let before = waits.load(SeqCst);
        batch(most_queued);
        assert_eq!((waits.load(SeqCst), *queue.lock().unwrap()), (before + 1, 0));
    }

    #[test]
    fn failed_batches_count_and_failed_waits_are_errors() {
        let fail = || Error::value("the device", "lost", "there");
        let in_flight = InFlight::new(1, move || Err(fail()));
        // Its tokens are 9 with those of the next one, less than 10.
        drop(in_flight.begin(6, 10));
        in_flight.begin(3, 10).finish().unwrap();
        assert!(in_flight.begin(1, 10).finish().unwrap_err().to_string().contains("lost"));
        in_flight.begin(1, 10).finish().unwrap_err();
        // A batch that fails waits, too, and leaves its permit.
        drop(in_flight.begin(1, 10));
        in_flight.begin(1, 10).finish().unwrap_err();
    }
}

//! Bounds the work of one model that is on a device at a time.
//!
//! On an Apple GPU candle only queues work. Until a result is read back it keeps every tensor that was copied to the
//! device, and a command buffer for each 50 kernels, so that a caller who queues batch after batch takes more and more
//! memory (<https://github.com/huggingface/candle/issues/2271>). Waiting after each batch would bound that as well, but
//! a wait takes a millisecond or two, more than a small batch, and gives up all memory that the next batch could use
//! again. So a thread waits as soon as enough tokens are queued. candle has one queue for all threads, so one batch of
//! a model is queued at a time: more would gain nothing, and each keeps its hidden states in memory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_attention::Result;
use candle_core::{DType, Device, Tensor};

/// Tokens of batches in the queue beyond which a thread waits until they are done.
pub(crate) const MOST_QUEUED: usize = 16_384;

/// A bound on the work in flight, or none. Clones share it: less than `q + b` tokens are in flight, for batches of at
/// most `b` tokens and calls that allow `q` queued ones.
#[derive(Clone)]
pub(crate) struct InFlight(Option<Arc<Bounded>>);

struct Bounded {
    /// Tokens that are not known to be done. The thread that queues a batch holds the lock.
    queued: Mutex<usize>,
    /// Returns when everything that was queued before is done.
    wait: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

/// Permission to queue a batch. It is given back by [`finish`](Self::finish), or when it is dropped because the batch
/// failed: what the batch queued before counts, too.
pub(crate) struct Permit<'a>(Option<Held<'a>>);

struct Held<'a> {
    bounded: &'a Bounded,
    queued: MutexGuard<'a, usize>,
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
        Self::new(move || wait_for(&device))
    }

    /// A bound. `wait` returns when everything that was queued before is done.
    pub fn new(wait: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(Bounded { queued: Mutex::new(0), wait: Box::new(wait) })))
    }

    /// Waits for the permit to queue a batch. `tokens` counts padding. The device is waited for at the end of the batch
    /// if `most_queued` tokens or more are then in flight.
    pub fn begin(&self, tokens: usize, most_queued: usize) -> Permit<'_> {
        Permit(self.0.as_deref().map(|bounded| {
            // The count is valid even if a thread panicked while it held the lock.
            let queued = bounded.queued.lock().unwrap_or_else(PoisonError::into_inner);
            Held { bounded, queued, tokens, most_queued }
        }))
    }
}

impl Permit<'_> {
    /// Ends a batch whose work is queued.
    ///
    /// # Errors
    /// The device failed.
    pub fn finish(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), Held::settle)
    }
}

impl Held<'_> {
    /// Counts the tokens of the batch, and waits for the device if too many are in flight.
    fn settle(mut self) -> Result<()> {
        *self.queued = self.queued.saturating_add(self.tokens);
        if *self.queued >= self.most_queued {
            (self.bounded.wait)()?;
            *self.queued = 0;
        }
        Ok(())
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.0.take().filter(|_| !std::thread::panicking()) {
            // The batch has an error of its own, which is returned.
            let _ = held.settle();
        }
    }
}

/// Waits until everything that was queued on `device` is done: by reading a number back. candle's `synchronize` would
/// do harm: it forgets what the work that other threads queued meanwhile has to wait for. It alone, though, looks for
/// failures of all command buffers; reading back looks at the last one.
fn wait_for(device: &Device) -> Result<()> {
    Tensor::zeros(1, DType::U8, device)?.to_vec1::<u8>()?;
    Ok(())
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InFlight").field(&self.0.is_some()).finish()
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
    fn threads_on_a_cpu_are_not_limited() {
        let (in_flight, all) = (InFlight::for_device(&Device::Cpu), Barrier::new(20));
        let batch = || {
            let permit = in_flight.begin(1, 0);
            all.wait();
            permit.finish().unwrap();
        };
        thread::scope(|scope| (0..20).for_each(|_| drop(scope.spawn(batch))));
    }

    #[test]
    fn panic_releases_its_permit() {
        let in_flight = InFlight::new(|| Ok(()));
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
        let (largest, most_queued) = (50, 400);
        let (queue, waits) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (device, counted) = (queue.clone(), waits.clone());
        let in_flight = InFlight::new(move || {
            counted.fetch_add(1, SeqCst);
            device.store(0, SeqCst);
            Ok(())
        });
        let most = AtomicUsize::new(0);
        let (tokens, batches) = (|i: usize| 1 + i * 7 % largest, 200);
        let batch = |tokens: usize| {
            let permit = in_flight.begin(tokens, most_queued);
            most.fetch_max(queue.fetch_add(tokens, SeqCst) + tokens, SeqCst);
            permit.finish().unwrap();
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..batches).map(tokens).for_each(batch));
            }
        });
        let most = most.load(SeqCst);
        assert!((most_queued..most_queued + largest).contains(&most), "{most} tokens");
        // No thread waits for less than the queue may hold.
        let all = 8 * (0..batches).map(tokens).sum::<usize>();
        assert!(waits.load(SeqCst) <= all / most_queued, "{waits:?}");
        // A single batch of that size is waited for by itself.
        let before = waits.load(SeqCst);
        batch(most_queued);
        assert_eq!((waits.load(SeqCst), queue.load(SeqCst)), (before + 1, 0));
    }

    #[test]
    fn failed_batches_count_and_failed_waits_are_errors() {
        let in_flight = InFlight::new(|| Err(Error::value("the device", "lost", "there")));
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

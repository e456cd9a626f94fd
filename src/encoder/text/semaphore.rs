use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use candle_core::Device;

/// How many batches of one model an Apple GPU is given at a time. candle puts the work of all threads into one queue, so
/// that more would gain nothing, and each keeps its hidden states in memory until all of its work is queued.
const ON_METAL: usize = 4;

/// Lets only so many threads in at a time; the others wait. Clones are the same gate.
#[derive(Debug, Clone)]
pub(crate) struct Gate(Option<Arc<Places>>);

#[derive(Debug)]
struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A thread's place inside, free again when it is dropped.
///
/// The device is not waited for then. A readback waits for its own work; candle's `synchronize` would do harm: it forgets
/// what the work that other threads queued meanwhile has to wait for.
pub(crate) struct Place<'a>(Option<&'a Places>);

impl Gate {
    /// The gate of a model on `device`.
    pub fn of(device: &Device) -> Self {
        if device.is_metal() { Self::of_places(ON_METAL) } else { Self(None) }
    }

    pub fn of_places(count: usize) -> Self {
        Self(Some(Arc::new(Places { free: Mutex::new(count), freed: Condvar::new() })))
    }

    /// Waits for a free place.
    pub fn enter(&self) -> Place<'_> {
        let Some(places) = self.0.as_deref() else { return Place(None) };
        let mut free =
            places.freed.wait_while(places.lock(), |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Place(Some(places))
    }
}

impl Places {
    /// A number is right whatever a thread that held it did then.
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(places) = self.0 {
            *places.lock() += 1;
            places.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use candle_core::DType;

    use super::*;
    use crate::encoder::text::tokenizer::Text;
    use crate::encoder::{EncodeOptions, SentenceEncoder};

    #[test]
    fn as_many_threads_are_inside_as_there_are_places() {
        let (gate, inside, most) = (Gate::of_places(4), AtomicUsize::new(0), AtomicUsize::new(0));
        // Nobody leaves before four are inside, so that fewer places would hang.
        let four = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let _place = gate.enter();
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    four.wait();
                    inside.fetch_sub(1, SeqCst);
                });
            }
        });
        assert_eq!((most.into_inner(), inside.into_inner()), (4, 0));
    }

    #[test]
    fn a_cpu_has_no_limit() {
        let (gate, all) = (Gate::of(&Device::Cpu), Barrier::new(100));
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let _place = gate.enter();
                    all.wait();
                });
            }
        });
    }

    #[test]
    fn a_panic_frees_its_place() {
        let gate = Gate::of_places(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _place = gate.enter();
            panic!("inside");
        }));
        assert!(panicked.is_err());
        drop(gate.enter());
    }

    #[test]
    fn a_hundred_threads_share_an_encoder() -> crate::Result<()> {
        let mut encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
        let texts = ["A cat sleeps.", "Stocks fell sharply today.", "A kitten naps on the couch."];
        let one_by_one = || EncodeOptions::default().with_batch_size(1);
        let expected = encoder.encode(&texts, &one_by_one())?.to_vec2::<f32>()?;
        encoder.texts.gate = Gate::of_places(2);
        let (inside, most, batches) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let encoder = encoder.clone();
        thread::scope(|scope| {
            let run = || {
                let texts = texts.map(Text::One);
                let vectors = encoder.texts.run(&encoder.model, &texts, &one_by_one(), |_, hidden| {
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    let vectors = encoder.pool(&hidden, 0);
                    batches.fetch_add(1, SeqCst);
                    inside.fetch_sub(1, SeqCst);
                    vectors
                })?;
                Ok::<_, crate::Error>(candle_core::Tensor::cat(&vectors, 0)?.to_vec2::<f32>()?)
            };
            let threads: Vec<_> = (0..100).map(|_| scope.spawn(run)).collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().unwrap(), expected));
        });
        assert_eq!(batches.into_inner(), 300);
        assert!((1..=2).contains(&most.into_inner()));
        Ok(())
    }
}

//! Where the crate computes: in a pool of threads, while Python runs on and Ctrl-C is heard.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{mem, process, thread};

use candle_attention::Result;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::errors::python_error;

/// How often a waiting call looks for signals and reports progress.
const TICK: Duration = Duration::from_millis(50);
/// The stack of a thread: that of a program's first thread.
const STACK_BYTES: usize = 8 << 20;

/// The pool of this process. Threads do not survive a `fork`, so that a child makes a pool of its own.
struct Pool {
    process: u32,
    threads: Arc<ThreadPool>,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// The pool, made by the first call of a process.
fn pool() -> PyResult<Arc<ThreadPool>> {
    let mut held = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Pool { threads, .. }) = held.as_ref().filter(|pool| pool.process == process::id()) {
        return Ok(threads.clone());
    }
    replace(&mut held, default_threads())
}

fn replace(held: &mut Option<Pool>, threads: usize) -> PyResult<Arc<ThreadPool>> {
    let built = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES).build();
    let threads = Arc::new(built.map_err(|e| PyRuntimeError::new_err(format!("no threads: {e}")))?);
    let before = held.replace(Pool { process: process::id(), threads: threads.clone() });
    if let Some(parents) = before.filter(|pool| pool.process != process::id()) {
        // To drop it would wait for threads that this process does not have.
        mem::forget(parents);
    }
    Ok(threads)
}

/// `RAYON_NUM_THREADS` or `OMP_NUM_THREADS`, which Ray and Spark set for their workers, or all cores.
fn default_threads() -> usize {
    let number = |name: &str| std::env::var(name).ok()?.split(',').next()?.trim().parse().ok().filter(|n| *n > 0);
    let all = || thread::available_parallelism().map_or(1, Into::into);
    number("RAYON_NUM_THREADS").or_else(|| number("OMP_NUM_THREADS")).unwrap_or_else(all)
}

/// The number of threads that compute.
#[pyfunction]
pub fn get_num_threads() -> PyResult<usize> {
    Ok(pool()?.current_num_threads())
}

/// Sets the number of threads that compute. Calls that run keep theirs.
#[pyfunction]
pub fn set_num_threads(num_threads: usize) -> PyResult<()> {
    if num_threads == 0 {
        return Err(PyValueError::new_err("num_threads is 0, expected at least 1"));
    }
    replace(&mut POOL.lock().unwrap_or_else(PoisonError::into_inner), num_threads).map(drop)
}

/// What a running call and the one who waits for it share.
#[derive(Default)]
pub struct Watch {
    cancelled: AtomicBool,
    done: AtomicUsize,
}

impl Watch {
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    /// Sets the number of texts that are done.
    pub fn set_done(&self, done: usize) {
        self.done.store(done, Relaxed);
    }
}

/// Runs `work` in the pool without the GIL. Meanwhile this thread hears signals and calls `progress` with the number of
/// texts that are done. An exception of either cancels the work, and is raised when its batch has ended.
pub fn run<T: Send>(
    py: Python,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Watch) -> Result<T> + Send,
) -> PyResult<T> {
    let (pool, watch) = (pool()?, Watch::default());
    py.detach(|| {
        let (sender, receiver) = sync_channel(1);
        pool.in_place_scope(|scope| {
            let watch = &watch;
            // Nobody receives after an exception.
            scope.spawn(move |_| drop(sender.send(work(watch))));
            let waited = wait(&receiver, || {
                Python::attach(|py| {
                    py.check_signals()?;
                    progress.iter().try_for_each(|call| call.call1(py, (watch.done.load(Relaxed),)).map(drop))
                })
            });
            watch.cancelled.store(waited.is_err(), Relaxed);
            waited
        })
    })
}

/// Runs `work` in a thread of its own without the GIL. On a signal this call ends at once and the thread goes on, for a
/// download has no batches to end at. What it holds is dropped then.
pub fn run_detached<T: Send + 'static>(py: Python, work: impl FnOnce() -> Result<T> + Send + 'static) -> PyResult<T> {
    let pool = pool()?;
    py.detach(|| {
        let (sender, receiver) = sync_channel(1);
        // As above.
        thread::spawn(move || drop(sender.send(pool.install(work))));
        wait(&receiver, || Python::attach(|py| py.check_signals()))
    })
}

/// The result of the work, or the exception of a tick.
fn wait<T>(receiver: &Receiver<Result<T>>, mut tick: impl FnMut() -> PyResult<()>) -> PyResult<T> {
    loop {
        match receiver.recv_timeout(TICK) {
            Ok(result) => return result.map_err(python_error),
            Err(RecvTimeoutError::Timeout) => tick()?,
            Err(RecvTimeoutError::Disconnected) => return Err(PyRuntimeError::new_err("the computation panicked")),
        }
    }
}

//! A team of threads that stays awake for the length of one forward pass.
//!
//! A forward pass of a short text is some thirty products of 10 to 100 µs each. A thread pool that wakes its threads
//! for each of them and lets them sleep in between costs more than a second thread brings. Here the threads of rayon's
//! pool are asked once, and then look for work until the pass is over.
//!
//! The *leader* is the thread that runs the pass. Whatever it can share it divides into items, numbered from 0, each
//! member of the team having its own range of them. Members take items from their own range first, then from those of
//! others, so that no counter is shared by all, and the leader waits until all items are done. **The leader never waits
//! for a member that has not begun an item**: it can do all of them alone. So a pool that is busy elsewhere costs time,
//! and never blocks a pass. And all teams of a process together leave one thread of the pool to others.

use std::any::Any;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::error::{Error, Result};
use super::memory::try_reserve;

/// Multiply-adds below which waking other threads costs more than they bring.
const MIN_WORK: usize = 1 << 22;
/// Looks for work in vain after which a member lets other threads of the system run between two looks.
const SPINS: usize = 4096;

/// How many threads of pools are members of teams whose pass is not over, or are asked to be.
static MEMBERS: AtomicUsize = AtomicUsize::new(0);

/// The threads that share the work of a call.
#[derive(Clone, Copy)]
pub struct Team<'a> {
    /// `None`: the leader is alone.
    shared: Option<&'a Shared>,
}

/// Work that members take items of. The lifetime of `run` is erased: see [`Shared::publish`].
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

/// The state that the members of a team share.
struct Shared {
    members: Vec<Member>,
    /// The job of the items that can be taken now.
    job: std::cell::UnsafeCell<Option<Job>>,
    /// Whether the pass is over.
    over: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// One member, on cache lines of its own: processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Member {
    /// The items of its range that nobody has taken: the next one in the low half, the end in the high half.
    range: AtomicU64,
    /// The items that it has done in this pass.
    done: AtomicUsize,
}

// SAFETY: only the leader writes `job`, while no item can be taken, and members read it only after they have taken an
// item, whose range was published after the job was written. What `job` points to may be shared (`Sync`).
unsafe impl Sync for Shared {}
// SAFETY: for the same reason.
unsafe impl Send for Shared {}

impl Member {
    /// Takes the next item of the range.
    fn take(&self) -> Option<usize> {
        let mut range = self.range.load(Ordering::Acquire);
        loop {
            let (next, end) = (range as u32, (range >> 32) as u32);
            if next >= end {
                return None;
            }
            match self.range.compare_exchange_weak(range, range + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(next as usize),
                Err(now) => range = now,
            }
        }
    }
}

impl Shared {
    fn new(members: usize) -> Self {
        Self {
            members: (0..members).map(|_| Member::default()).collect(),
            job: std::cell::UnsafeCell::new(None),
            over: AtomicBool::new(false),
            panic: Mutex::default(),
        }
    }

    /// Does one item, of the range of member `own` if there is one. Whether there was any.
    fn work(&self, own: usize) -> bool {
        let members = self.members.len();
        let Some(item) = (0..members).find_map(|i| self.members[(own + i) % members].take()) else {
            return false;
        };
        // SAFETY: an item was taken, so the job was written before and is not overwritten until the item is done.
        let job = unsafe { *self.job.get() };
        let done = catch_unwind(AssertUnwindSafe(|| {
            if let Some(Job(run)) = job {
                // SAFETY: the leader keeps what it points to alive until all items are done.
                unsafe { (*run)(item) }
            }
        }));
        if let Err(panic) = done {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        self.members[own].done.fetch_add(1, Ordering::Release);
        true
    }

    fn done(&self) -> usize {
        self.members.iter().map(|member| member.done.load(Ordering::Acquire)).sum()
    }

    /// Runs all items, with whoever is awake. Returns when the last one is done, so `run` outlives all uses of it.
    fn publish(&self, items: u32, run: &(dyn Fn(usize) + Sync)) {
        let before = self.done();
        // SAFETY: only the lifetime changes. Members use the reference between taking an item and counting it as done,
        // and this function returns after all of that.
        let run: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(run) };
        // SAFETY: all items of the job before are done, so nobody reads this.
        unsafe { *self.job.get() = Some(Job(run)) };
        let members = self.members.len() as u64;
        let start = |member: u64| member * u64::from(items) / members;
        for (member, i) in self.members.iter().zip(0..) {
            member.range.store(start(i) | start(i + 1) << 32, Ordering::Release);
        }
        while self.work(0) {}
        let mut waits = Waits::default();
        while self.done() - before < items as usize {
            waits.wait();
        }
        if let Some(panic) = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            resume_unwind(panic);
        }
    }
}

/// How long a thread has looked in vain.
#[derive(Default)]
struct Waits(usize);

impl Waits {
    fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            ..SPINS => std::hint::spin_loop(),
            _ => std::thread::yield_now(),
        }
    }
}

/// One of [`MEMBERS`], until it is dropped.
struct Place;

impl Place {
    /// `None` if there are `most` members already.
    fn take(most: usize) -> Option<Self> {
        let one_more = |members: usize| (members < most).then_some(members + 1);
        MEMBERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        MEMBERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Members that look for work until it is dropped, even by a panic. Their places are free at once: the next pass does
/// not wait until they have noticed.
struct Awake {
    shared: Arc<Shared>,
    _places: Vec<Place>,
}

impl Awake {
    /// Asks the threads of rayon's pool that are in no other team. `None` if there are none, or if a pass of this many
    /// multiply-adds is too short for them.
    fn new(multiply_adds: usize) -> Option<Self> {
        let threads = if multiply_adds < MIN_WORK { 1 } else { rayon::current_num_threads() };
        let places: Vec<Place> = (1..threads).map_while(|_| Place::take(threads - 1)).collect();
        if places.is_empty() {
            return None;
        }
        let shared = Arc::new(Shared::new(1 + places.len()));
        for own in 1..=places.len() {
            let shared = shared.clone();
            rayon::spawn(move || {
                let mut waits = Waits::default();
                while !shared.over.load(Ordering::Acquire) {
                    if shared.work(own) { waits = Waits::default() } else { waits.wait() }
                }
            });
        }
        Some(Self { shared, _places: places })
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
    }
}

impl Team<'_> {
    /// The calling thread alone.
    pub const ALONE: Self = Self { shared: None };

    /// Calls `pass` with a team of all threads of rayon's pool that are in no other team, or with the calling thread
    /// alone if a pass of this many multiply-adds is too short for more.
    pub fn with<R>(multiply_adds: usize, pass: impl FnOnce(Team) -> R) -> R {
        match Awake::new(multiply_adds) {
            Some(awake) => pass(Team { shared: Some(&awake.shared) }),
            None => pass(Self::ALONE),
        }
    }

    /// The number of threads that may take part.
    pub fn threads(&self) -> usize {
        self.shared.map_or(1, |shared| shared.members.len())
    }

    /// Calls `run` with `0 .. items`, each once, on the threads of the team.
    ///
    /// # Errors
    /// The first error of an item; items that have not begun by then are left out.
    pub fn try_for_each<E: Send>(&self, items: usize, run: impl Fn(usize) -> Result<(), E> + Sync) -> Result<(), E> {
        let (Some(shared), Ok(count @ 2..)) = (self.shared, u32::try_from(items)) else {
            return (0..items).try_for_each(run);
        };
        let (failed, error) = (AtomicBool::new(false), Mutex::new(None::<E>));
        shared.publish(count, &|item| {
            if failed.load(Ordering::Relaxed) {
                return;
            }
            if let Err(found) = run(item) {
                failed.store(true, Ordering::Relaxed);
                error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(found);
            }
        });
        error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Calls `run` with the number and the elements of each chunk of `step` elements of `xs`; the last one may be
    /// shorter.
    ///
    /// # Errors
    /// The first error of a chunk; chunks that have not begun by then are left out.
    pub fn try_for_chunks<T: Send, E: Send>(
        &self,
        xs: &mut [T],
        step: usize,
        run: impl Fn(usize, &mut [T]) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let (all, step) = (xs.len(), step.max(1));
        let xs = SharedOut(xs.as_mut_ptr());
        self.try_for_each(all.div_ceil(step), |i| {
            let (from, to) = (i * step, all.min((i + 1) * step));
            // SAFETY: inside `xs`, which is borrowed for all of this; each item has elements of its own and runs once.
            let chunk = unsafe { std::slice::from_raw_parts_mut(xs.start().add(from), to - from) };
            run(i, chunk)
        })
    }
}

/// Where a kernel writes: a vector that gets the size of the output, or a slice that has it.
pub enum Output<'a, T> {
    Vec(&'a mut Vec<T>),
    Slice(&'a mut [T]),
}

impl<T> Output<'_, T> {
    /// Calls `run` with memory for the `size` elements of `what`.
    ///
    /// # Safety
    /// `run` writes all of them if it returns `Ok`.
    pub(super) unsafe fn write(
        self,
        what: &str,
        size: usize,
        run: impl FnOnce(SharedOut<T>) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Slice(to) if to.len() == size => run(SharedOut(to.as_mut_ptr())),
            Self::Slice(to) => Err(Error::shape(what, &[to.len()], format!("[{size}]"))),
            Self::Vec(to) => {
                to.clear();
                try_reserve(what, to, size)?;
                run(SharedOut(to.as_mut_ptr()))?;
                // SAFETY: `try_reserve` has made room for all elements, and the caller promises that they are written.
                unsafe { to.set_len(size) };
                Ok(())
            }
        }
    }
}

/// The start of an output. Copies of it go to all threads.
pub struct SharedOut<T>(pub *mut T);

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

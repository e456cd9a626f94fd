//! Teams of threads: every item once, whatever else the pool does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_attention_kernels::{Error, Team};

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

#[test]
fn every_item_runs_once() {
    for threads in [1, 2, 3, 8] {
        pool(threads).install(|| {
            Team::with(usize::MAX, |team| {
                assert!(team.threads() <= threads, "other tests have teams, too");
                for items in [0, 1, 2, 7, 100, 1000, 3] {
                    let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                    team.try_for_each(items, |i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads}, {items}");
                }
            });
        });
    }
}

/// The only other thread of the pool waits for what comes after the pass.
#[test]
fn a_busy_pool_does_not_block_a_pass() {
    let pool = pool(2);
    let (send, receive) = std::sync::mpsc::channel();
    pool.spawn(move || receive.recv().unwrap());
    let sum = AtomicUsize::new(0);
    pool.install(|| {
        Team::with(usize::MAX, |team| {
            team.try_for_each(100, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
                Ok::<_, Error>(())
            })
        })
    })
    .unwrap();
    send.send(()).unwrap();
    assert_eq!(sum.into_inner(), 4950);
}

#[test]
fn errors_and_panics_reach_the_leader() {
    pool(3).install(|| {
        Team::with(usize::MAX, |team| {
            let fails = |i: usize| if i == 7 { Err(Error::value("an item", i, "another")) } else { Ok(()) };
            assert!(team.try_for_each(50, fails).unwrap_err().to_string().contains("an item is 7"));
            let panics = AssertUnwindSafe(|| {
                team.try_for_each(50, |i| if i == 9 { panic!("nine") } else { Ok::<_, Error>(()) })
            });
            assert_eq!(*catch_unwind(panics).unwrap_err().downcast::<&str>().unwrap(), "nine");
            team.try_for_each(50, |_| Ok::<_, Error>(())).unwrap();
        });
    });
}

#[test]
fn chunks_are_all_of_a_slice() {
    pool(3).install(|| {
        Team::with(usize::MAX, |team| {
            let mut xs = [0; 23];
            let add = |i: usize, chunk: &mut [usize]| {
                chunk.iter_mut().for_each(|x| *x += i + 1);
                Ok::<_, Error>(())
            };
            team.try_for_chunks(&mut xs, 5, add).unwrap();
            assert!(xs.iter().zip(0..).all(|(x, i)| *x == i / 5 + 1), "{xs:?}");
            team.try_for_chunks(&mut xs[..0], 5, add).unwrap();
        });
    });
}

#[test]
fn short_passes_wake_nobody() {
    pool(4).install(|| Team::with((1 << 22) - 1, |team| assert_eq!(team.threads(), 1)));
}

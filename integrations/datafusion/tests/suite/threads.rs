//! The number of threads that run while texts are encoded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use candle_attention_datafusion::{encoding_totals, register};
use datafusion::datasource::MemTable;

use crate::common::{batch, session, texts};

/// How many threads of this process are running or could be, in the words of Linux.
#[cfg(target_os = "linux")]
fn running() -> usize {
    let is_running = |entry: std::io::Result<std::fs::DirEntry>| {
        let Ok(stat) = std::fs::read_to_string(entry.ok()?.path().join("stat")) else { return None };
        // The state is the field after the name, which is in parentheses.
        stat.rsplit_once(") ")?.1.starts_with('R').then_some(())
    };
    std::fs::read_dir("/proc/self/task").unwrap().filter_map(is_running).count()
}

/// Sixteen partitions encode, and no more threads run than the pool of the encoder has and the one that counts. A thread
/// that has just given its batch to the pool, or gets the next one, may be seen running too, so a few samples have more.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
#[ignore = "counts the threads of the whole process: run alone, as `ci` does"]
async fn partitions_do_not_add_to_the_threads_of_the_encoder() {
    let ctx = session(16, 256);
    register(&ctx, "embedded").unwrap();
    let parts: Vec<_> = (0..16).map(|_| vec![batch(0, &texts(512)), batch(512, &texts(512))]).collect();
    let table = MemTable::try_new(parts[0][0].schema(), parts).unwrap();
    ctx.register_table("t", Arc::new(table)).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let counter = std::thread::spawn({
        let done = done.clone();
        move || {
            let mut samples = Vec::new();
            while !done.load(Ordering::Relaxed) {
                samples.push(running());
                std::thread::sleep(Duration::from_millis(2));
            }
            samples
        }
    });
    let before = encoding_totals().texts;
    let frame = ctx.sql("SELECT count(embed(text)) FROM t").await.unwrap();
    frame.collect().await.unwrap();
    done.store(true, Ordering::Relaxed);
    let mut samples = counter.join().unwrap();
    assert_eq!(encoding_totals().texts - before, 16 * 2 * texts(512).iter().flatten().count() as u64);
    samples.sort_unstable();
    let (most, allowed) = (samples[samples.len() * 9 / 10], rayon::current_num_threads() + 2);
    assert!(samples.len() > 20 && most <= allowed, "{most} threads run, expected {allowed} at most: {samples:?}");
}

//! Writers that are killed, and writers that meet: who reads the file finds all of an old content or all of a new one.
//!
//! The test program starts itself as the writers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::write_tensors;
use candle_core::{DType, Device, Tensor};

use crate::common::Random;

const TARGET: &str = "CANDLE_ATTENTION_TEST_TARGET";
const STARTED: &str = "the writer has started";
/// Numbers of a tensor: several writes of a megabyte each.
const COUNT: usize = 600_000;

/// Writes two tensors of one number, and again with the next number, until the process is killed, or `times` times.
fn write(target: &Path, start: u32, times: usize) {
    for number in (start..).take(times) {
        let tensor = Tensor::full(number, COUNT, &Device::Cpu).unwrap();
        write_tensors(target, [("a", tensor.clone()), ("b", tensor)], Default::default()).unwrap();
    }
}

/// Reads the file: all of its numbers are one number.
fn check(target: &Path) {
    let file = Checkpoint::open(target).unwrap();
    let first = file.tensor("a", &Device::Cpu).unwrap().to_vec1::<u32>().unwrap()[0];
    for name in ["a", "b"] {
        let tensor = file.tensor(name, &Device::Cpu).unwrap();
        assert_eq!((tensor.dims(), tensor.dtype()), (&[COUNT][..], DType::U32));
        assert!(tensor.to_vec1::<u32>().unwrap().iter().all(|number| *number == first), "two contents are mixed");
    }
}

/// Temporary files in a folder.
fn temporaries(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(".candle-attention-")).count()
}

/// Not a test by itself: the other process.
#[test]
#[ignore = "run by the tests of this module"]
fn writer() {
    if let Some(target) = std::env::var_os(TARGET) {
        println!("{STARTED}");
        write(Path::new(&target), std::process::id(), usize::MAX);
    }
}

/// Starts another process that writes; it has begun when this returns.
fn start(target: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "checkpoints::killed_writers::writer", "--ignored", "--nocapture"]).env(TARGET, target);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(STARTED)));
    child
}

/// Two processes write one file and are killed again and again, while this one reads it and a third writes it, too.
/// Returns the number of reads.
fn kill_writers(kills: usize) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model.safetensors");
    write(&target, 1, 1);
    let (mut random, done) = (Random::new(91), AtomicBool::new(false));
    let mut millis = |most: f64| Duration::from_millis((random.uniform() * most) as u64);
    let mut writers = [start(&target), start(&target)];
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                check(&target);
                reads += 1;
            }
            reads
        });
        for kill in 0..kills {
            std::thread::sleep(millis(60.0));
            let writer = &mut writers[kill % 2];
            writer.kill().unwrap();
            writer.wait().unwrap();
            if kill % 5 == 0 {
                write(&target, 1, 1);
            }
            *writer = start(&target);
        }
        for writer in &mut writers {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    check(&target);
    println!("{kills} writers killed, {reads} reads, {} temporary files left", temporaries(folder.path()));
    reads
}

#[test]
fn a_killed_writer_leaves_the_old_file_or_the_new_one() {
    assert!(kill_writers(12) > 0);
}

/// `CANDLE_ATTENTION_KILLS` writers, 1,000 by default.
#[test]
#[ignore = "takes minutes"]
fn many_killed_writers_leave_the_old_file_or_the_new_one() {
    let kills = std::env::var("CANDLE_ATTENTION_KILLS").ok().and_then(|kills| kills.parse().ok());
    assert!(kill_writers(kills.unwrap_or(1_000)) > 0);
}

/// Two threads and another process save one file: no save fails, and no read is broken.
#[test]
fn threads_and_processes_write_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model.safetensors");
    write(&target, 1, 1);
    let mut other = start(&target);
    std::thread::scope(|scope| {
        let writers = [10, 1_000_000].map(|first| {
            let target = &target;
            scope.spawn(move || write(target, first, 12))
        });
        while writers.iter().any(|writer| !writer.is_finished()) {
            check(&target);
        }
    });
    // It would have ended if a save had failed.
    let ended = other.try_wait().unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(ended, None, "a save of the other process failed");
    check(&target);
}

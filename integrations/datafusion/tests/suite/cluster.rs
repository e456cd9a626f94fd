//! A scheduler and two executors as processes on this machine.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::common::{
    BAD_WORD, bad_model, batch, bits, fixture, has, names, read_parquet, texts, write_files, write_parquet,
};
use crate::processes::{embed, failed, finish, first_file, interrupt, spawn, succeeded};
use crate::servers::Server;

fn folder(files: usize, rows: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("in")).unwrap();
    write_files(&folder.path().join("in"), files, rows);
    folder
}

/// Runs `embed` in one process and asserts that the files of `out/` have the same content.
fn assert_as_in_one_process(folder: &Path, args: &[&str]) {
    let (out, alone) = (folder.join("out"), folder.join("alone"));
    succeeded(&embed(&folder.join("in"), &alone, args));
    assert_eq!(names(&out), names(&alone));
    for name in names(&alone) {
        let (got, want) = (read_parquet(&out.join(&name)), read_parquet(&alone.join(&name)));
        assert_eq!(got.schema(), want.schema());
        assert_eq!(got.columns()[..2], want.columns()[..2], "{name}");
        assert_eq!(bits(got.column(2)), bits(want.column(2)), "{name}");
    }
}

#[test]
fn two_executors_give_the_bytes_of_one_process() {
    let model = format!("tiny={}", fixture("tiny-bert").display());
    let scheduler = Server::scheduler(&[&model]);
    let executors = [Server::executor(&scheduler, &[&model]), Server::executor(&scheduler, &[&model])];
    let folder = folder(6, 300);
    let url = scheduler.url();
    let output = embed(&folder.path().join("in"), &folder.path().join("out"), &["--model", &model, "--cluster", &url]);
    has(&succeeded(&output), &["texts: 1543, ", "encoder seconds: unknown, files: 6, kept: 0"]);
    has(&String::from_utf8_lossy(&output.stderr), &["1 of 6 files, ", "6 of 6 files, 1800 of 1800 rows, "]);
    assert_as_in_one_process(folder.path(), &["--model", &model]);
    let encoded = executors.map(|executor| {
        let last = executor.interrupt().pop().unwrap();
        last.strip_prefix("texts: ").unwrap().split(',').next().unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(encoded.iter().sum::<u64>(), 1543, "{encoded:?}");
}

#[test]
fn a_job_outlives_an_executor() {
    let scheduler = Server::scheduler(&["embedded"]);
    let mut first = Server::executor(&scheduler, &["embedded"]);
    let _second = Server::executor(&scheduler, &["embedded"]);
    let folder = folder(12, 1_500);
    let url = scheduler.url();
    let args = ["--model", "embedded", "--cluster", &url];
    let mut child = spawn(&folder.path().join("in"), &folder.path().join("out"), &args);
    let lines = first_file(&mut child);
    first.kill();
    let (code, stdout) = finish(child);
    let lines: Vec<String> = lines.iter().collect();
    assert_eq!(code, 0, "{lines:?}");
    has(&stdout, &["files: 12, kept: 0"]);
    assert_as_in_one_process(folder.path(), &["--model", "embedded"]);
}

#[test]
fn a_node_that_lacks_a_model_or_has_another_is_named() {
    let model = format!("tiny={}", fixture("tiny-bert").display());
    let folder = folder(1, 10);
    let run = |scheduler: &Server| {
        let args = ["--model", model.as_str(), "--cluster", &scheduler.url()];
        failed(&embed(&folder.path().join("in"), &folder.path().join("out"), &args))
    };
    let scheduler = Server::scheduler(&[&model]);
    let executor = Server::executor(&scheduler, &["small=embedded"]);
    let node = format!("executor {}", executor.address);
    has(&run(&scheduler), &["in/0.parquet: ", &format!("{node} has no model named `tiny`; it has `small`")]);
    drop(executor);
    let executor = Server::executor(&scheduler, &["tiny=embedded"]);
    let node = format!("executor {}", executor.address);
    has(&run(&scheduler), &["in/0.parquet: ", &format!("{node} has another model named `tiny`: its fingerprint is ")]);
    let scheduler = Server::scheduler(&["small=embedded"]);
    let node = format!("scheduler {}", scheduler.address);
    has(&run(&scheduler), &["in/0.parquet: ", &format!("{node} has no model named `tiny`; it has `small`")]);
    assert_eq!(names(&folder.path().join("out")), Vec::<String>::new());
}

#[test]
fn a_text_that_cannot_be_encoded_is_named_with_file_and_row() {
    let folder = folder(2, 30);
    let bad = bad_model();
    let model = format!("bad={}", bad.path().display());
    let mut rows = texts(60);
    rows[43] = Some(format!("the {BAD_WORD} sat \"here\""));
    write_parquet(&folder.path().join("in/bad.parquet"), &batch(0, &rows));
    let scheduler = Server::scheduler(&[&model]);
    let _executor = Server::executor(&scheduler, &[&model]);
    let args = ["--model", &model, "--cluster", &scheduler.url(), "--jobs", "1", "--batch-rows", "16"];
    let line = failed(&embed(&folder.path().join("in"), &folder.path().join("out"), &args));
    has(
        &line,
        &["in/bad.parquet: row 43, column `text`, `the bird sat \\\"here\\\"`: what the model computes for it is NaN"],
    );
    assert_eq!(names(&folder.path().join("out")), ["0.parquet", "1.parquet"]);
}

#[test]
fn an_interrupt_leaves_nothing_half_written() {
    let scheduler = Server::scheduler(&["embedded"]);
    let _executor = Server::executor(&scheduler, &["embedded"]);
    let folder = folder(6, 2_000);
    let (input, output, url) = (folder.path().join("in"), folder.path().join("out"), scheduler.url());
    let args = ["--model", "embedded", "--cluster", &url, "--jobs", "2"];
    let mut child = spawn(&input, &output, &args);
    let lines = first_file(&mut child);
    interrupt(&child);
    assert_eq!(finish(child).0, 130, "{:?}", lines.iter().collect::<Vec<_>>());
    let finished = names(&output);
    assert!((1..6).contains(&finished.len()) && finished.iter().all(|name| name.ends_with(".parquet")), "{finished:?}");
    has(&succeeded(&embed(&input, &output, &args)), &[&format!("kept: {}", finished.len())]);
    assert_as_in_one_process(folder.path(), &["--model", "embedded"]);
}

#[test]
fn a_scheduler_that_is_not_there_is_named() {
    let folder = folder(1, 3);
    let args = ["--cluster", "df://127.0.0.1:1", "--retries", "1"];
    let output = embed(&folder.path().join("in"), &folder.path().join("out"), &args);
    has(&failed(&output), &["in/0.parquet: "]);
    has(&String::from_utf8_lossy(&output.stderr), &["in/0.parquet: begun again after: "]);
    let executor = env!("CARGO_BIN_EXE_embed-executor");
    let output =
        Command::new(executor).args(["--scheduler", "127.0.0.1:1", "--connect-timeout", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    has(&String::from_utf8_lossy(&output.stderr), &["embed-executor: executor ", "no scheduler at 127.0.0.1:1: "]);
}

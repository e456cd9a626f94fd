//! Arguments and outputs of the programs that they cannot use.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use crate::common::{has, write_files};
use crate::processes::{command, output, succeeded};

const SQL: &str = env!("CARGO_BIN_EXE_embed-sql");

fn run(program: &str, args: &[&str]) -> Output {
    output(Command::new(program).args(args))
}

/// Asserts that a program failed with exit code 2 and a message without a panic, and returns it.
fn refused(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    stderr
}

#[test]
fn numbers_beyond_any_machine_are_refused() {
    let embed: &[&str] = &["--input", "a.parquet", "--column", "text", "--output", "out"];
    let mut cases = vec![
        (env!("CARGO_BIN_EXE_embed"), embed, vec!["--jobs", "--threads"]),
        (SQL, &["select 1"] as &[&str], vec!["--threads"]),
    ];
    #[cfg(feature = "cluster")]
    cases.extend([
        (env!("CARGO_BIN_EXE_embed-executor"), &[] as &[&str], vec!["--concurrent-tasks", "--threads"]),
        (env!("CARGO_BIN_EXE_embed-scheduler"), &[], vec!["--threads"]),
    ]);
    for (program, args, options) in cases {
        for option in options {
            for value in ["0", "1025", "1152921504606846976", "99999999999999999999", "two"] {
                let message = refused(&run(program, &[args, &[option, value]].concat()));
                has(&message, &[option, value, "expected a number from 1 to 1024"]);
            }
        }
    }
}

#[test]
fn urls_of_other_schemes_are_refused_before_anything_is_tried() {
    for url in ["http://127.0.0.1:50050", "127.0.0.1:50050", "df://", "df://here", "df://here:port", "df://:1"] {
        has(&refused(&run(SQL, &["--cluster", url, "select 1"])), &["--cluster", url, "expected df://HOST:PORT"]);
    }
}

/// `… | head` ends before the program does.
#[test]
fn nobody_has_to_read_what_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), 1, 5);
    let embed = command(folder.path(), &folder.path().join("out"), &[]);
    let mut sql = Command::new(SQL);
    sql.arg("select 1");
    for mut command in [embed, sql] {
        let (closed, open) = std::io::pipe().unwrap();
        drop(closed);
        command.stderr(open.try_clone().unwrap()).stdout(open);
        assert_eq!(command.status().unwrap().code(), Some(0), "{command:?}");
    }
    assert!(folder.path().join("out/0.parquet").exists());
}

/// Every write to `/dev/full` fails as on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_printed_is_an_error() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let done = Command::new(SQL).arg("select 1").stdout(full()).stderr(Stdio::piped()).output().unwrap();
    has(&refused(&done), &["embed-sql: standard output: No space left on device"]);
    // Standard error is for people alone.
    let quiet = Command::new(SQL).arg("select 1").stdout(Stdio::piped()).stderr(full()).output().unwrap();
    has(&succeeded(&quiet), &["| Int64(1) |"]);
}

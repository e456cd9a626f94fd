//! What the programs have in common: arguments with bounds, their output, and how they end.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::num::NonZeroUsize;
use std::process::ExitCode;

use crate::error::{Error, Result};

/// The exit code of an error.
const ERROR: u8 = 2;

/// The stack of a thread that plans queries, by recursion: what Ballista's own programs give it.
#[cfg(feature = "cluster")]
const STACK_BYTES: usize = 32 << 20;

/// The most threads or tasks that a program is asked for.
const MOST_THREADS: usize = 1024;

/// Reads a number of threads or tasks.
///
/// # Errors
/// If it is not a number from 1 to 1024.
pub fn threads(text: &str) -> std::result::Result<NonZeroUsize, String> {
    let found = text.parse().ok().filter(|threads: &NonZeroUsize| threads.get() <= MOST_THREADS);
    found.ok_or_else(|| format!("expected a number from 1 to {MOST_THREADS}"))
}

/// Reads `HOST:PORT`.
///
/// # Errors
/// If it is something else.
pub fn host_and_port(text: &str) -> std::result::Result<(String, u16), String> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host.to_string(), port.parse().ok()?)));
    parts.filter(|(host, _)| !host.is_empty()).ok_or_else(|| "expected HOST:PORT".to_string())
}

/// Reads the URL of a scheduler, `df://HOST:PORT`.
///
/// # Errors
/// If it is something else.
pub fn cluster_url(text: &str) -> std::result::Result<String, String> {
    let address = text.strip_prefix("df://").ok_or("expected df://HOST:PORT")?;
    host_and_port(address).map_err(|_| "expected df://HOST:PORT")?;
    Ok(text.to_string())
}

/// Prints lines on standard output. A reader that has closed it is no mistake.
///
/// # Errors
/// If they cannot be written, as on a full disk.
pub fn print(lines: impl Display) -> Result<()> {
    let mut out = stdout().lock();
    match writeln!(out, "{lines}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::File { path: "standard output".into(), reason: error.to_string() })
        }
        _ => Ok(()),
    }
}

/// Says on standard output that a scheduler or an executor is ready, if anybody reads it.
#[cfg(feature = "cluster")]
pub fn print_ready(what: &str, address: std::net::SocketAddr) {
    if let Err(error) = print(format_args!("{what} ready at {address}")) {
        note(error);
    }
}

/// Prints a line on standard error, if anybody reads it.
pub fn note(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// Ends a program: an error is one line on standard error, and exit code 2.
pub fn exit(program: &str, result: std::result::Result<ExitCode, impl Display>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            note(format_args!("{program}: {}", error.to_string().trim_end().replace('\n', " ")));
            ExitCode::from(ERROR)
        }
    }
}

/// The runtime of a scheduler or an executor.
///
/// # Errors
/// If no thread can be started.
#[cfg(feature = "cluster")]
pub fn cluster_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(STACK_BYTES).build()
}

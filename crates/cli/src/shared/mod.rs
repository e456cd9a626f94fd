//! The parts that commands share: their entry point, printing, files to read and to write, devices, models, progress
//! bars, interrupts.

use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

pub mod bar;
pub mod checkpoint;
pub mod device;
#[cfg(feature = "program")]
pub mod head_model;
pub mod interrupt;
pub mod model;
pub mod output;
pub mod print;
pub mod program;
pub mod read;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Parses a whole number from 1.
pub fn positive<T: std::str::FromStr + PartialOrd + From<u8>>(text: &str) -> std::result::Result<T, &'static str> {
    text.parse().ok().filter(|number| *number >= T::from(1)).ok_or("expected a whole number, at least 1")
}

/// Counts the texts that are cut.
pub fn count_cut(cut: &AtomicUsize) -> impl Fn(usize) + Sync + '_ {
    |_| {
        cut.fetch_add(1, Ordering::Relaxed);
    }
}

/// An error message that begins with the file that it is about.
pub fn about(path: &Path, error: impl Display) -> String {
    let name = print::plain(path.display());
    if path.as_os_str() == "-" { format!("standard input: {error}") } else { format!("{name}: {error}") }
}

/// The error of a file.
pub fn fail<T>(path: &Path, reason: impl Display) -> Result<T> {
    Err(about(path, reason).into())
}

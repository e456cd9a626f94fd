//! Progress: a bar on a terminal, else a line per file.

use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use candle_attention_datafusion::program::note;
use indicatif::{ProgressBar, ProgressStyle};

/// The progress of a run, shared by the files that are worked on.
pub struct Progress {
    bar: Option<ProgressBar>,
    files: u64,
    rows: u64,
    files_done: AtomicU64,
    rows_done: AtomicU64,
    started: Instant,
}

impl Progress {
    /// Of `files` files with `rows` rows together.
    pub fn new(files: u64, rows: u64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} rows, {per_sec}, {eta} left {msg}");
            ProgressBar::new(rows).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        let (files_done, rows_done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { bar, files, rows, files_done, rows_done, started: Instant::now() }
    }

    /// Rows were written.
    pub fn add_rows(&self, rows: u64) {
        self.rows_done.fetch_add(rows, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.inc(rows);
        }
    }

    /// Rows of a file that is begun again are not done.
    pub fn take_back(&self, rows: u64) {
        let done = self.rows_done.fetch_sub(rows, Ordering::Relaxed) - rows;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }

    /// A file is finished.
    pub fn add_file(&self) {
        let (done, rows) =
            (self.files_done.fetch_add(1, Ordering::Relaxed) + 1, self.rows_done.load(Ordering::Relaxed));
        match &self.bar {
            Some(bar) => bar.set_message(format!("({done} of {} files)", self.files)),
            None => {
                let seconds = self.started.elapsed().as_secs_f64();
                self.line(&format!("{done} of {} files, {rows} of {} rows, {seconds:.1} s", self.files, self.rows));
            }
        }
    }

    /// Prints a line above the bar. A closed standard error is no reason to stop.
    pub fn line(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => note(line),
        }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

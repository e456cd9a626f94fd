//! Where a run is: a bar on a terminal, and a line from time to time without one.

use std::cell::Cell;
use std::fmt::Arguments;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use super::super::shared::{Result, bar, print};

/// Progress of work on some things, such as texts.
pub struct Progress {
    bar: ProgressBar,
    /// What is done with the things, and what they are.
    doing: &'static str,
    things: &'static str,
    count: usize,
    /// Where the work began, and when.
    start: usize,
    since: Instant,
    /// Time between two lines, and the last one; `None` on a terminal.
    lines: Option<(Duration, Cell<Instant>)>,
}

impl Progress {
    /// Texts that the teacher encodes.
    pub fn of_texts(count: usize, every: Duration) -> Result<Self> {
        let doing = "encoding with the teacher";
        Ok(Self::new(bar::bar(count, doing, "texts")?, doing, "texts", 0, every))
    }

    /// The steps after `start`.
    pub fn of_steps(start: usize, count: usize, every: Duration) -> Result<Self> {
        // At most 80 columns.
        let style = ProgressStyle::with_template("{bar:10} {pos} of {len} steps, {msg}, {eta} left")?;
        let bar = ProgressBar::new(count as u64).with_style(style).with_position(start as u64);
        bar.reset_eta();
        Ok(Self::new(bar, "training", "steps", start, every))
    }

    fn new(bar: ProgressBar, doing: &'static str, things: &'static str, start: usize, every: Duration) -> Self {
        let now = Instant::now();
        let count = bar.length().unwrap_or_default() as usize;
        let lines = (!std::io::stderr().is_terminal()).then_some((every, Cell::new(now)));
        Self { bar, doing, things, count, start, since: now, lines }
    }

    /// So many are done; `state` is what else to say, such as a loss.
    pub fn at(&self, done: usize, state: &str) {
        let Some((every, last)) = &self.lines else {
            if !state.is_empty() {
                self.bar.set_message(state.to_string());
            }
            self.bar.set_position(done as u64);
            return;
        };
        if last.get().elapsed() < *every {
            return;
        }
        last.set(Instant::now());
        let rate = (done - self.start) as f64 / self.since.elapsed().as_secs_f64().max(1e-9);
        let left = self.count.saturating_sub(done) as f64 / rate.max(1e-9);
        let left = HumanDuration(Duration::from_secs(left as u64));
        let (doing, things, count) = (self.doing, self.things, self.count);
        let comma = if state.is_empty() { "" } else { ", " };
        print::to_stderr(format_args!("{doing}: {done} of {count} {things}{comma}{state}, {rate:.1}/s, {left} left"));
    }

    /// Prints a line above the bar.
    pub fn print(&self, line: Arguments) {
        self.bar.suspend(|| print::to_stderr(line));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

//! Ctrl-C: a training run finishes its step and saves; anything else, and a second Ctrl-C, ends at once.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::shared::program::INTERRUPTED;
use super::super::shared::{Result, print};

/// Listens for Ctrl-C as long as the program runs.
pub struct Interrupt {
    training: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Begins to listen. Until [`start_training`](Self::start_training), an interrupt ends the program.
    pub fn new(run: &Path) -> Result<Self> {
        let interrupt = Self { training: Arc::default(), asked: Arc::default() };
        let (training, asked) = (interrupt.training.clone(), interrupt.asked.clone());
        // Below the bar that is there on a terminal.
        let start = if std::io::stderr().is_terminal() { "\n" } else { "" };
        let line = format!("{start}error: interrupted; the same command goes on with what {} holds", run.display());
        ctrlc::set_handler(move || {
            if asked.swap(true, Ordering::SeqCst) || !training.load(Ordering::SeqCst) {
                print::to_stderr(format_args!("{line}"));
                std::process::exit(INTERRUPTED.into());
            }
        })?;
        Ok(interrupt)
    }

    /// From now on an interrupt only sets [`asked`](Self::asked), once.
    pub fn start_training(&self) {
        self.training.store(true, Ordering::SeqCst);
    }

    /// From now on an interrupt ends the program again.
    pub fn end_training(&self) {
        self.training.store(false, Ordering::SeqCst);
    }

    /// Whether there was an interrupt.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

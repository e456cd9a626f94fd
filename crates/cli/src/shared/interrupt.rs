//! Ctrl-C: ends the program with one line below its progress bar. Work that can be saved, and files that are being
//! written, hold it: then it only asks, and a second Ctrl-C ends at once.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::print;
use super::program::INTERRUPTED;

#[cfg(feature = "program")]
static LISTENS: std::sync::Once = std::sync::Once::new();
static HELD: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// Listens for Ctrl-C from now on. Where that fails, the system ends the program, as without it.
pub fn listen() {
    #[cfg(feature = "program")]
    LISTENS.call_once(|| {
        let _ = ctrlc::set_handler(|| {
            if ASKED.swap(true, SeqCst) || !HELD.load(SeqCst) {
                end();
            }
        });
    });
}

fn end() -> ! {
    if std::io::stderr().is_terminal() {
        print::to_stderr(format_args!(""));
    }
    print::to_stderr(format_args!("error: interrupted"));
    std::process::exit(INTERRUPTED.into())
}

/// From now on an interrupt only sets [`asked`], once; or, with `false`, it ends the program again.
pub fn hold(holds: bool) {
    listen();
    HELD.store(holds, SeqCst);
}

/// Whether there was an interrupt.
pub fn asked() -> bool {
    ASKED.load(SeqCst)
}

/// Does what must not stay half done, such as writing a file. An interrupt meanwhile ends the program afterwards.
pub fn finish<T>(work: impl FnOnce() -> T) -> T {
    let held = HELD.swap(true, SeqCst);
    let made = work();
    HELD.store(held, SeqCst);
    if asked() && !held {
        end();
    }
    made
}

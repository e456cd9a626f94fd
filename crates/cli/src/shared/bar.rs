//! Progress on standard error: a bar on a terminal, elsewhere a line each minute.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Result, print};

/// Work that is done sooner shows no bar.
const DELAY: Duration = Duration::from_millis(500);
/// The time between two lines where there is no terminal.
const MINUTE: Duration = Duration::from_secs(60);

/// A bar over `count` things, such as `texts`, after a word for what is done with them, such as `encoding`.
pub fn bar(count: usize, doing: &'static str, things: &str) -> Result<ProgressBar> {
    // Whole numbers: indicatif's own rate has four decimals.
    let per_second = |state: &indicatif::ProgressState, line: &mut dyn std::fmt::Write| {
        let _ = write!(line, "{:.0}/s", state.per_sec());
    };
    let template = format!("{{msg}} {{bar:30}} {{human_pos}} of {{human_len}} {things}, {{rate}}, {{eta}} left");
    let style = ProgressStyle::with_template(&template)?.with_key("rate", per_second);
    let bar = ProgressBar::with_draw_target(Some(count as u64), ProgressDrawTarget::hidden());
    let (later, things) = (bar.downgrade(), things.to_string());
    let is_terminal = std::io::stderr().is_terminal();
    // Where no thread can be started, nothing is shown.
    let _ = std::thread::Builder::new().spawn(move || {
        loop {
            std::thread::sleep(if is_terminal { DELAY } else { MINUTE });
            match later.upgrade().filter(|bar| !bar.is_finished()) {
                Some(bar) if is_terminal => return bar.set_draw_target(ProgressDrawTarget::stderr()),
                Some(bar) => print::to_stderr(format_args!("{doing}: {} of {count} {things}", bar.position())),
                None => return,
            }
        }
    });
    Ok(bar.with_style(style).with_message(doing))
}

//! Progress bars on standard error, visible on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Result;

/// Work that is done sooner shows no bar.
const DELAY: Duration = Duration::from_millis(500);

/// A bar over `count` things, such as `texts`, after a word for what is done with them, such as `encoding`.
pub fn bar(count: usize, doing: &'static str, things: &str) -> Result<ProgressBar> {
    // Whole numbers: indicatif's own rate has four decimals.
    let per_second = |state: &indicatif::ProgressState, line: &mut dyn std::fmt::Write| {
        let _ = write!(line, "{:.0}/s", state.per_sec());
    };
    let template = format!("{{msg}} {{bar:30}} {{human_pos}} of {{human_len}} {things}, {{rate}}, {{eta}} left");
    let style = ProgressStyle::with_template(&template)?.with_key("rate", per_second);
    let bar = ProgressBar::with_draw_target(Some(count as u64), ProgressDrawTarget::hidden());
    let later = bar.downgrade();
    std::thread::spawn(move || {
        std::thread::sleep(DELAY);
        if let Some(bar) = later.upgrade().filter(|bar| !bar.is_finished()) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    });
    Ok(bar.with_style(style).with_message(doing))
}

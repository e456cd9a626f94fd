//! Progress bars on standard error, visible on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

use super::Result;

/// A bar over `count` things, such as `texts`, after a word for what is done with them, such as `encoding`.
pub fn bar(count: usize, doing: &'static str, things: &str) -> Result<ProgressBar> {
    // Whole numbers: indicatif's own rate has four decimals.
    let per_second = |state: &indicatif::ProgressState, line: &mut dyn std::fmt::Write| {
        let _ = write!(line, "{:.0}/s", state.per_sec());
    };
    let template = format!("{{msg}} {{bar:30}} {{human_pos}} of {{human_len}} {things}, {{rate}}, {{eta}} left");
    let style = ProgressStyle::with_template(&template)?.with_key("rate", per_second);
    Ok(ProgressBar::new(count as u64).with_style(style).with_message(doing))
}

//! Progress on standard error: a bar on a terminal, elsewhere a line each minute.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::{Result, print};

/// Work that is done sooner shows no bar.
const DELAY: Duration = Duration::from_millis(500);
/// The time between two lines where there is no terminal.
const MINUTE: Duration = Duration::from_secs(60);

/// A bar over `count` things, such as `texts`, after a word for what is done with them, such as `encoding`.
pub fn bar(count: usize, doing: &'static str, things: &str) -> Result<ProgressBar> {
    let rate = Arc::new(Mutex::new(Rate::default()));
    let left = move |state: &ProgressState, line: &mut dyn std::fmt::Write| {
        let (now, position) = (Instant::now(), state.pos());
        let _ = match rate.lock().unwrap_or_else(PoisonError::into_inner).per_second(now, position) {
            Some(rate) => {
                let left = count.saturating_sub(position as usize) as f64 / rate;
                write!(line, "{rate:.0}/s, {:#} left", HumanDuration(Duration::from_secs_f64(left)))
            }
            None => write!(line, "starting"),
        };
    };
    let template = format!("{{msg}} {{bar:30}} {{human_pos}} of {{human_len}} {things}, {{left}}");
    let style = ProgressStyle::with_template(&template)?.with_key("left", left);
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

/// The rate since the first progress: what comes before it, such as the loading of a model, is paid once.
#[derive(Default)]
struct Rate {
    /// The position at the beginning, which is not 0 where earlier work goes on.
    start: Option<u64>,
    /// When it first changed, and to what.
    first: Option<(Instant, u64)>,
}

impl Rate {
    fn per_second(&mut self, now: Instant, position: u64) -> Option<f64> {
        let moved = position > *self.start.get_or_insert(position);
        let (since, first) = *self.first.get_or_insert(moved.then_some((now, position))?);
        let rate = (position - first) as f64 / now.duration_since(since).as_secs_f64();
        Some(rate).filter(|rate| *rate > 0.0 && rate.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_leaves_out_the_start() {
        let (start, mut rate) = (Instant::now(), Rate::default());
        let mut at = |seconds, position| rate.per_second(start + Duration::from_secs(seconds), position);
        // A minute to load, from a position of earlier work.
        assert_eq!((at(0, 50), at(60, 50), at(61, 60)), (None, None, None));
        assert_eq!((at(63, 80), at(63, 80)), (Some(10.0), Some(10.0)));
    }
}

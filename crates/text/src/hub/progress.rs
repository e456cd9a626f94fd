//! The progress bar of a download.

use indicatif::{ProgressBar, ProgressStyle};

use crate::hub::names::{RepoPath, shown};

/// A bar for one file; an invisible one unless `show`.
pub(crate) fn bar(path: &RepoPath, size: Option<u64>, show: bool) -> ProgressBar {
    let bar = if show { ProgressBar::no_length() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(shown(path.as_str()));
    if let Some(size) = size {
        bar.set_length(size);
    }
    bar
}

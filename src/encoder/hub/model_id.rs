//! Syntax of hub ids.

use crate::error::{Error, Result};

/// Checks that `id` is `name` or `owner/name`, each of letters, digits, `.`, `_` and `-`.
pub(crate) fn check_id(id: &str) -> Result<()> {
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
    };
    let parts: Vec<&str> = id.split('/').collect();
    if parts.len() <= 2 && parts.iter().all(|part| plain(part)) {
        return Ok(());
    }
    Err(Error::value("the model", id, "a folder that exists, or a hub id such as owner/name"))
}

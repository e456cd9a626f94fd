//! The environment variables of huggingface_hub.

use std::path::PathBuf;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether a variable is `1`, `ON`, `YES` or `TRUE`, in any case.
fn is_on(name: &str) -> bool {
    variable(name).is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str()))
}

pub(crate) fn endpoint() -> String {
    variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_string())
}

pub(crate) fn plain_http() -> bool {
    is_on("CANDLE_ATTENTION_PLAIN_HTTP")
}

pub(crate) fn offline() -> bool {
    is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE")
}

/// The token of the environment, else the one that `hf auth login` stored.
pub(crate) fn token() -> Option<String> {
    if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return None;
    }
    let file = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home()?.join("token")));
    let token = variable("HF_TOKEN").or_else(|| std::fs::read_to_string(file?).ok())?;
    Some(token.trim().to_string()).filter(|token| !token.is_empty())
}

/// The cache folder, `None` if the user has no home folder.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    let named = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
    named.map(PathBuf::from).or_else(|| Some(home()?.join("hub")))
}

fn home() -> Option<PathBuf> {
    if let Some(home) = variable("HF_HOME") {
        return Some(home.into());
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    Some(cache.or_else(|| Some(std::env::home_dir()?.join(".cache")))?.join("huggingface"))
}

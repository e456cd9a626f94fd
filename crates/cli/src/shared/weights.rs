//! Whether the weights of a checkpoint are finite.

use std::path::Path;

use candle_attention::checkpoint::Checkpoint;

use super::{Result, about};

/// Checks that all weights under a prefix are finite. `path` is where they come from.
pub fn check_finite(path: &Path, checkpoint: &Checkpoint, prefix: &str) -> Result<()> {
    let damaged = checkpoint.non_finite(prefix)?;
    let others = if damaged.len() > 1 { format!(" and {} more tensors", damaged.len() - 1) } else { String::new() };
    match damaged.first() {
        Some(name) => Err(about(path, &format!("NaN or an infinity in `{}`{others}", name.escape_debug())).into()),
        None => Ok(()),
    }
}

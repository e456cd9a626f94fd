//! The saved embeddings: in the user's cache folder, one file for each model, whatever is searched.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_attention::ensure;
use candle_attention_text::search::Index;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use sha2::{Digest, Sha256};

use super::super::shared::program::Interrupted;
use super::super::shared::{Result, bar, interrupt};

/// The time between two saves of unfinished work.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// The file of a model; `model` is all that the vectors depend on beside the texts.
pub fn file(model: &str) -> Option<PathBuf> {
    let name: String = Sha256::digest(model)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Some(dirs::cache_dir()?.join("candle-attention").join("search").join(name + ".index"))
}

/// Loads the saved embeddings, computes the missing ones and saves them. What cannot be read or written is no matter:
/// the search itself does not need the file.
pub fn fill(index: &mut Index, cache: Option<&Path>, encoder: &SentenceEncoder, options: &EncodeOptions) -> Result<()> {
    if let Some(cache) = cache.filter(|cache| cache.exists() && index.load_cached(cache).is_err()) {
        // It is damaged, and becomes a new one.
        let _ = std::fs::remove_file(cache);
    }
    let (had, count) = (index.len(), index.missing().len());
    if count == 0 {
        return Ok(());
    }
    interrupt::hold(cache.is_some());
    let bar = bar::bar(count, "embedding", "passages")?;
    let save = |index: &Index| cache.is_some_and(|cache| make_private(cache).is_ok() && index.save(cache).is_ok());
    let on_progress = |done: usize, _: usize| bar.set_position(done as u64);
    let mut saved = Instant::now();
    let embedded = index.embed(encoder, &options.with_on_progress(&on_progress), |index| {
        ensure!(!interrupt::asked(), candle_attention::Error::value("the embedding", "interrupted", "its end"));
        if saved.elapsed() >= SAVE_EVERY {
            save(index);
            saved = Instant::now();
        }
        Ok(())
    });
    let is_saved = save(index);
    bar.finish_and_clear();
    if interrupt::asked() {
        let goes_on = if is_saved { "; the same command goes on from there" } else { "" };
        let line = format!("interrupted after {} of {count} passages{goes_on}", index.len() - had);
        return Err(Interrupted(line).into());
    }
    embedded?;
    interrupt::hold(false);
    Ok(())
}

/// Makes the folder of a file, on Unix for its owner alone, as the folders around it that are made for it.
fn make_private(file: &Path) -> std::io::Result<()> {
    let mut folder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.recursive(true).create(file.parent().unwrap_or(file))
}

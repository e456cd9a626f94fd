//! The saved embeddings: in the user's cache folder, a file for each path that is searched, each model and each way to
//! split the path into texts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use candle_attention_text::search::Index;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use sha2::{Digest, Sha256};

use super::super::shared::program::Interrupted;
use super::super::shared::{Result, bar, interrupt};
use super::hits::Searched;
use super::sources::Source;

/// The time between two saves of unfinished work.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// The file of a source; `key` is what the vectors and the texts depend on beside the content of the source. Standard
/// input and pipes have none.
pub fn file(source: &Source, key: &str) -> Option<PathBuf> {
    let path = source.path.canonicalize().ok().filter(|path| path.is_file() || path.is_dir())?;
    let hash = Sha256::new().chain_update(key).chain_update(path.as_os_str().as_encoded_bytes()).finalize();
    let name: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Some(dirs::cache_dir()?.join("candle-attention").join("search").join(name + ".safetensors"))
}

/// Loads the saved embeddings, computes the missing ones and saves them. What cannot be read or written is no matter:
/// the search itself does not need the files.
pub fn fill(searched: &mut [Searched], encoder: &SentenceEncoder, options: &EncodeOptions) -> Result<()> {
    for Searched { index, cache, .. } in &mut *searched {
        cache.as_ref().and_then(|cache| index.load_cached(cache).ok());
    }
    let count = searched.iter().map(|searched| searched.index.missing().len()).sum();
    if count == 0 {
        return Ok(());
    }
    let can_save = searched.iter().any(|searched| searched.cache.is_some());
    interrupt::hold(can_save);
    let bar = bar::bar(count, "embedding", "passages")?;
    let mut before = 0;
    for Searched { index, cache, .. } in searched {
        let (had, missing) = (index.len(), index.missing().len());
        let save = |index: &Index| {
            let folder = cache.as_ref().and_then(|cache| Some((cache, cache.parent()?)));
            folder.is_some_and(|(cache, folder)| std::fs::create_dir_all(folder).is_ok() && index.save(cache).is_ok())
        };
        let on_progress = |done: usize, _: usize| bar.set_position((before + done) as u64);
        let mut saved = Instant::now();
        let embedded = index.embed(encoder, &options.with_on_progress(&on_progress), |index| {
            if interrupt::asked() {
                return Err(candle_attention::Error::value("the embedding", "interrupted", "its end"));
            }
            if saved.elapsed() >= SAVE_EVERY {
                save(index);
                saved = Instant::now();
            }
            Ok(())
        });
        let is_saved = missing == 0 || save(index);
        if interrupt::asked() {
            let goes_on = if is_saved { "; the same command goes on from there" } else { "" };
            let line = format!("interrupted after {} of {count} passages{goes_on}", before + index.len() - had);
            bar.finish_and_clear();
            return Err(Interrupted(line).into());
        }
        before += embedded?;
    }
    bar.finish_and_clear();
    interrupt::hold(false);
    Ok(())
}

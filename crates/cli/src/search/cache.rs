//! The saved embeddings of a source: one file for each model, beside the source.

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_attention::Error;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::search::Index;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use sha2::{Digest, Sha256};

use super::super::shared::{Result, about, bar, print};
use super::sources::Source;

/// Where embeddings are saved.
#[derive(Clone, Copy)]
pub enum Cache<'a> {
    /// Beside each source, under a name of its own for each model.
    Beside,
    /// In this file.
    File(&'a Path),
    /// Nowhere.
    None,
}

impl Cache<'_> {
    /// Checks a file that the user named: it may be replaced only if it is an index.
    pub fn check(self) -> Result<()> {
        let Self::File(path) = self else { return Ok(()) };
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            return Err(format!("--cache {}: expected a name that ends in .safetensors", path.display()).into());
        }
        Ok(Index::check_writable(path)?)
    }

    /// The file for a source: `notes.txt.search-0123abcd.safetensors` beside `notes.txt`,
    /// `.search-0123abcd.safetensors` in a folder. `model` is what the vectors depend on.
    pub fn path(self, source: &Source, model: &str) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::File(path) => Some(path.to_path_buf()),
            Self::Beside if source.path.as_os_str() == "-" => None,
            Self::Beside => {
                let hash = Sha256::digest(model);
                let name = format!(".search-{:02x}{:02x}{:02x}{:02x}.safetensors", hash[0], hash[1], hash[2], hash[3]);
                if source.is_folder {
                    return Some(source.path.join(name));
                }
                let mut path = source.path.as_os_str().to_owned();
                path.push(name);
                Some(path.into())
            }
        }
    }

    /// Checks that a file that the user named belongs to this model: another model's vectors would be lost.
    fn check_model(self, model: &str) -> Result<()> {
        let Self::File(path) = self else { return Ok(()) };
        let Ok(file) = Checkpoint::open(path) else { return Ok(()) };
        match file.metadata().get("model").is_some_and(|other| other != model) {
            true => Err(about(path, &"was made with another model, dtype or prompt; name another --cache").into()),
            false => Ok(()),
        }
    }

    /// Loads the saved embeddings of a source, computes the missing ones, and saves them every `seconds` and at the
    /// end.
    pub fn fill(
        self,
        index: &mut Index,
        source: &Source,
        model: &str,
        encoder: &SentenceEncoder,
        options: &EncodeOptions,
        seconds: u64,
    ) -> Result<()> {
        self.check_model(model)?;
        let path = self.path(source, model);
        if let Some(path) = &path {
            match index.load_cached(path) {
                Ok(_) => {}
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => print::note(format_args!("{error}; embedding anew")),
            }
        }
        let bar = bar::bar(index.missing().len(), "embedding", "texts")?;
        let on_progress = |done: usize, _: usize| bar.set_position(done as u64);
        let (saved, may_save) = (Cell::new(Instant::now()), Cell::new(true));
        let save = |index: &Index| {
            let Some(path) = path.as_ref().filter(|_| may_save.get()) else { return };
            if let Err(error) = index.save(path) {
                // The search itself does not need the file.
                bar.suspend(|| print::note(format_args!("embeddings are not saved: {error}")));
                may_save.set(false);
            }
            saved.set(Instant::now());
        };
        let after_chunk = |index: &Index| {
            if saved.get().elapsed() >= Duration::from_secs(seconds) {
                save(index);
            }
            Ok(())
        };
        let count = index.embed(encoder, &options.with_on_progress(&on_progress), after_chunk)?;
        bar.finish_and_clear();
        if count > 0 {
            save(index);
        }
        Ok(())
    }
}

//! An encoder with the options of the command line: a progress bar, a count of the texts that were cut, errors with names.

use std::cell::Cell;
use std::io::Write;

use candle_attention::encoder::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};
use indicatif::ProgressBar;

use super::super::shared::model::{Batches, Model, note_truncated};
use super::super::shared::read::Lines;
use super::super::shared::{Result, bar, print};
use super::adaptation::Adaptation;

/// Texts that are encoded between two prints of JSON lines. Of a pipe that is slower, what has arrived is encoded at once.
const CHUNK: usize = 256;

pub struct Embedder<'a> {
    encoder: SentenceEncoder,
    options: EncodeOptions<'a>,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    text: &'a str,
    embedding: Vec<f32>,
}

impl<'a> Embedder<'a> {
    pub fn load(model: &'a Model, adaptation: &'a Adaptation, batches: &Batches) -> Result<Self> {
        let folder = model.folder()?;
        let mut encoder = model.load(folder.as_deref())?;
        let options = adaptation.apply(&mut encoder, batches.options(model.prompt_name.as_deref()))?;
        Ok(Self { encoder, options })
    }

    /// Embeddings `(texts, dimensions)` in f32 on the CPU.
    pub fn embed(&self, texts: &[&str]) -> Result<Tensor> {
        let bar = if texts.len() > CHUNK { bar::bar(texts.len(), "encoding", "texts")? } else { ProgressBar::hidden() };
        let cut = Cell::new(0);
        let embeddings = self.chunk(texts, &cut, &|done, _| bar.set_position(done as u64))?;
        bar.finish_and_clear();
        note_truncated(cut.get(), texts.len(), Some(self.max_length()));
        Ok(embeddings)
    }

    /// Prints a JSON line for each text as soon as it is encoded.
    pub fn stream(&self, mut texts: impl Arrivals) -> Result<()> {
        let (mut out, cut, mut count) = (print::stdout(), Cell::new(0), 0);
        loop {
            let chunk = texts.arrived(CHUNK)?;
            if chunk.is_empty() {
                break;
            }
            count += chunk.len();
            let texts: Vec<&str> = chunk.iter().map(String::as_str).collect();
            let embeddings = self.chunk(&texts, &cut, &|_, _| {})?;
            for (i, text) in texts.into_iter().enumerate() {
                let line = serde_json::to_string(&Line { text, embedding: embeddings.get(i)?.to_vec1()? })?;
                writeln!(out, "{line}")?;
            }
            out.flush()?;
        }
        if count == 0 {
            return Err("no text: every line is blank, or there is none".into());
        }
        note_truncated(cut.get(), count, Some(self.max_length()));
        Ok(())
    }

    fn max_length(&self) -> usize {
        self.options.max_length.unwrap_or(self.encoder.max_seq_length())
    }

    fn chunk(&self, texts: &[&str], cut: &Cell<usize>, on_progress: &dyn Fn(usize, usize)) -> Result<Tensor> {
        let on_truncated = |_: usize| cut.set(cut.get() + 1);
        let options = self.options.with_on_progress(on_progress).with_on_truncated(&on_truncated);
        let embeddings = self.encoder.encode(texts, &options)?;
        Ok(embeddings.to_dtype(DType::F32)?.to_device(&Device::Cpu)?)
    }
}

/// Texts that arrive one after the other.
pub trait Arrivals {
    /// The next texts, at most `most` and at least one: those that have arrived already. None at the end.
    fn arrived(&mut self, most: usize) -> Result<Vec<String>>;
}

impl Arrivals for Lines {
    fn arrived(&mut self, most: usize) -> Result<Vec<String>> {
        let mut texts = Vec::new();
        while texts.len() < most && (texts.is_empty() || self.has_arrived()) {
            match self.next() {
                Some(text) => texts.push(text?),
                None => break,
            }
        }
        Ok(texts)
    }
}

/// Texts of the command line: all are there.
impl Arrivals for std::vec::IntoIter<String> {
    fn arrived(&mut self, most: usize) -> Result<Vec<String>> {
        Ok(self.by_ref().take(most).collect())
    }
}

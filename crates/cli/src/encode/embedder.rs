//! An encoder with the options of the command line: a progress bar, a count of the texts that were cut, errors with
//! names.

use std::cell::Cell;
use std::io::Write;

use candle_attention_text::{
    EncodeOptions, QuantizationRanges, QuantizedEmbeddings, QuantizedValues, SentenceEncoder, quantize_embeddings,
};
use candle_core::{DType, Device, Tensor};
use indicatif::ProgressBar;
use serde::Serialize;

use super::super::shared::model::{Batches, Model, note_truncated};
use super::super::shared::read::{self, Lines};
use super::super::shared::{Result, bar, print};
use super::adaptation::Adaptation;
use super::outputs::Outputs;

/// Texts that are encoded between two prints of JSON lines, sorted by length. Of a pipe that is slower, what has
/// arrived is encoded at once.
const CHUNK: usize = 8192;

/// At how many bytes of text a chunk ends: 64 MiB.
const CHUNK_BYTES: usize = 1 << 26;

/// From how many texts on a bar shows the progress.
const BAR: usize = 256;

pub struct Embedder<'a> {
    encoder: SentenceEncoder,
    options: EncodeOptions<'a>,
    outputs: &'a Outputs,
    /// The ranges of quantized embeddings, where a file gives them.
    ranges: Option<QuantizationRanges>,
}

#[derive(Serialize)]
struct Line<'a, T> {
    text: &'a str,
    embedding: T,
}

/// The vectors of the tokens of a text.
#[derive(Serialize)]
struct TokensLine<'a> {
    text: &'a str,
    embeddings: Vec<Vec<f32>>,
}

impl<'a> Embedder<'a> {
    pub fn load(model: &'a Model, adaptation: &'a Adaptation, batches: &Batches, outputs: &'a Outputs) -> Result<Self> {
        let calibration = outputs.calibration.as_deref().map(|path| read::texts(path, "text")).transpose()?;
        let folder = model.folder()?;
        let mut encoder = model.load(folder.as_deref(), model.dtype())?;
        let options = adaptation.apply(&mut encoder, batches.options(model.prompt_name.as_deref()))?;
        let options = outputs.options(&encoder, options);
        let mut embedder = Self { encoder, options, outputs, ranges: None };
        if let Some(texts) = calibration {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            embedder.ranges = Some(QuantizationRanges::of(&embedder.embed(&texts)?)?);
        }
        Ok(embedder)
    }

    /// Embeddings `(texts, dimensions)` in f32 on the CPU.
    pub fn embed(&self, texts: &[&str]) -> Result<Tensor> {
        let bar = if texts.len() > BAR { bar::bar(texts.len(), "encoding", "texts")? } else { ProgressBar::hidden() };
        let cut = Cell::new(0);
        let embeddings = self.chunk(texts, &cut, &|done, _| bar.set_position(done as u64))?;
        bar.finish_and_clear();
        self.note_cut(cut.get(), texts.len());
        Ok(embeddings)
    }

    /// Embeddings in the precision of the command line.
    pub fn quantize(&self, embeddings: &Tensor) -> Result<QuantizedEmbeddings> {
        Ok(quantize_embeddings(embeddings, self.outputs.precision, self.ranges.as_ref())?)
    }

    /// Prints a JSON line for each text as soon as it is encoded.
    pub fn stream(&self, mut texts: impl Arrivals) -> Result<()> {
        let (mut out, cut, mut count) = (print::stdout(), Cell::new(0), 0);
        let most = if self.outputs.needs_all() { (usize::MAX, usize::MAX) } else { (CHUNK, CHUNK_BYTES) };
        loop {
            let chunk = texts.arrived(most)?;
            if chunk.is_empty() {
                break;
            }
            count += chunk.len();
            let texts: Vec<&str> = chunk.iter().map(String::as_str).collect();
            match self.outputs.token_embeddings {
                true => self.print_tokens(&texts, &cut, &mut out)?,
                false => {
                    let embeddings = self.quantize(&self.chunk(&texts, &cut, &|_, _| {})?)?;
                    print_embeddings(&texts, &embeddings, &mut out)?;
                }
            }
            out.flush()?;
        }
        if count == 0 {
            return Err("no text: every line is blank, or there is none".into());
        }
        self.note_cut(cut.get(), count);
        Ok(())
    }

    fn print_tokens(&self, texts: &[&str], cut: &Cell<usize>, out: &mut impl Write) -> Result<()> {
        let on_truncated = |_: usize| cut.set(cut.get() + 1);
        // One batch at a time: the vectors of all tokens take much more memory than embeddings.
        for texts in texts.chunks(self.options.batch_size.max(1)) {
            let tokens = self.encoder.encode_tokens(texts, &self.options.with_on_truncated(&on_truncated))?;
            for (text, vectors) in texts.iter().zip(tokens) {
                let embeddings = vectors.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2()?;
                writeln!(out, "{}", serde_json::to_string(&TokensLine { text, embeddings })?)?;
            }
        }
        Ok(())
    }

    fn note_cut(&self, cut: usize, of: usize) {
        note_truncated(cut, of, Some(self.options.max_length.unwrap_or(self.encoder.max_seq_length())));
    }

    fn chunk(&self, texts: &[&str], cut: &Cell<usize>, on_progress: &dyn Fn(usize, usize)) -> Result<Tensor> {
        let on_truncated = |_: usize| cut.set(cut.get() + 1);
        let options = self.options.with_on_progress(on_progress).with_on_truncated(&on_truncated);
        let embeddings = self.encoder.encode(texts, &options)?;
        Ok(embeddings.to_dtype(DType::F32)?.to_device(&Device::Cpu)?)
    }
}

fn print_embeddings(texts: &[&str], embeddings: &QuantizedEmbeddings, out: &mut impl Write) -> Result<()> {
    fn lines<T: Serialize>(texts: &[&str], rows: std::slice::Chunks<T>, out: &mut impl Write) -> Result<()> {
        for (text, embedding) in texts.iter().zip(rows) {
            writeln!(out, "{}", serde_json::to_string(&Line { text, embedding })?)?;
        }
        Ok(())
    }

    let columns = embeddings.dims().1.max(1);
    match embeddings.values() {
        QuantizedValues::Float32(values) => lines(texts, values.chunks(columns), out),
        QuantizedValues::Int8(values) => lines(texts, values.chunks(columns), out),
        QuantizedValues::Uint8(values) => lines(texts, values.chunks(columns), out),
        _ => Err("numbers of a type that this program does not print".into()),
    }
}

/// Texts that arrive one after the other.
pub trait Arrivals {
    /// The next texts, at least one: those that have arrived already, up to so many texts and bytes. With `usize::MAX`,
    /// all that there will be. None at the end.
    fn arrived(&mut self, most: (usize, usize)) -> Result<Vec<String>>;
}

impl Arrivals for Lines {
    fn arrived(&mut self, (most, most_bytes): (usize, usize)) -> Result<Vec<String>> {
        let (mut texts, mut bytes) = (Vec::new(), 0);
        let waits = most == usize::MAX;
        while texts.len() < most && bytes < most_bytes && (waits || texts.is_empty() || self.has_arrived()) {
            let Some(text) = self.next().transpose()? else { break };
            bytes += text.len();
            texts.push(text);
        }
        Ok(texts)
    }
}

/// Texts of the command line: all are there.
impl Arrivals for std::vec::IntoIter<String> {
    fn arrived(&mut self, (most, _): (usize, usize)) -> Result<Vec<String>> {
        Ok(self.by_ref().take(most).collect())
    }
}

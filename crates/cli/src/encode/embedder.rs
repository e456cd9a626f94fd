//! An encoder with the options of the command line: a progress bar, a count of the texts that were cut, errors with
//! names.

use std::io::Write;
use std::path::PathBuf;

use candle_attention_text::{
    EncodeOptions, QuantizationRanges, QuantizedEmbeddings, QuantizedValues, SentenceEncoder, quantize_embeddings,
};
use candle_core::Tensor;
use serde::Serialize;

use super::super::shared::model::{Batches, MAX_LENGTH, Model, embeddings, with_progress};
use super::super::shared::{Result, print, read};
use super::lines::{self, Arrivals, CHUNK_BYTES};
use super::outputs::{Adaptation, Outputs};

/// Texts that are encoded between two prints of JSON lines, sorted by length; fewer of a pipe that is slower.
const CHUNK: usize = 8192;

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

impl<'a> Embedder<'a> {
    /// Loads the model of a folder, or the embedded one.
    pub fn load(
        model: &'a Model,
        folder: Option<PathBuf>,
        adaptation: &'a Adaptation,
        batches: &Batches,
        outputs: &'a Outputs,
    ) -> Result<Self> {
        let calibration = outputs.calibration.as_deref().map(|path| read::texts(path, "text")).transpose()?;
        let mut encoder = model.load(folder.as_deref(), model.compute.compute_type())?;
        let options = adaptation.apply(&mut encoder, batches.options(model.prompt_name.as_deref()))?;
        let options = outputs.options(&encoder, options);
        if let Some(asked) = options.truncate_dim {
            let most = encoder.encode(&[], &options.with_truncate_dim(usize::MAX))?.dim(1)?;
            if asked > most {
                let found = format!("at most {most}, the numbers of an embedding by {}", model.name());
                return Err(format!("--truncate-dim is {asked}, expected {found}").into());
            }
        }
        let mut embedder = Self { encoder, options, outputs, ranges: None };
        if let Some(texts) = calibration {
            let embeddings = embedder.embed(&read::borrowed(&texts))?;
            embedder.ranges = Some(QuantizationRanges::from_embeddings(&embeddings)?);
        }
        Ok(embedder)
    }

    /// Embeddings `(texts, dimensions)` in f32 on the CPU.
    pub fn embed(&self, texts: &[&str]) -> Result<Tensor> {
        let (what, if_cut) = (("encoding", texts.len()), (self.cut_at(), MAX_LENGTH));
        with_progress(what, &self.options, if_cut, |options| embeddings(&self.encoder, texts, options))
    }

    /// Embeddings in the precision of the command line.
    pub fn quantize(&self, embeddings: &Tensor) -> Result<QuantizedEmbeddings> {
        Ok(quantize_embeddings(embeddings, self.outputs.precision, self.ranges.as_ref())?)
    }

    /// Prints a JSON line for each text as soon as it is encoded.
    pub fn stream(&self, texts: Arrivals) -> Result<()> {
        let most = if self.outputs.needs_all() { (usize::MAX, usize::MAX) } else { (CHUNK, CHUNK_BYTES) };
        lines::stream(texts, most, &self.options, self.cut_at(), |texts, options, out| {
            if !self.outputs.token_embeddings {
                return print_embeddings(texts, &self.quantize(&embeddings(&self.encoder, texts, options)?)?, out);
            }
            // One batch at a time: the vectors of all tokens take much more memory than embeddings.
            let mut batches = texts.chunks(options.batch_size.max(1));
            batches.try_for_each(|texts| lines::print_tokens(texts, self.encoder.encode_tokens(texts, options)?, out))
        })
    }

    /// The number of tokens at which a text is cut.
    fn cut_at(&self) -> Option<usize> {
        Some(self.encoder.max_seq_length_for(&self.options))
    }
}

fn print_embeddings(texts: &[&str], embeddings: &QuantizedEmbeddings, out: &mut impl Write) -> Result<()> {
    fn lines<T: Serialize>(texts: &[&str], rows: std::slice::Chunks<T>, out: &mut impl Write) -> Result<()> {
        for (text, embedding) in texts.iter().zip(rows) {
            print::json(out, &Line { text, embedding })?;
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

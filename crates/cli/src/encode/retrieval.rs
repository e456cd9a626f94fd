//! JSON lines of models that make sparse vectors, or a vector per token.

use std::cell::Cell;
use std::io::Write;

use candle_attention_text::{EncodeOptions, EncoderKind, MultiVectorEncoder, SparseEncoder};
use candle_core::{DType, Device};
use serde::Serialize;

use super::super::shared::model::{Batches, Model, check_weights, note_truncated};
use super::super::shared::{Result, print};
use super::adaptation::Adaptation;
use super::embedder::Arrivals;
use super::outputs::{Kind, Outputs};

/// At how many bytes of text a chunk ends: 64 MiB.
const CHUNK_BYTES: usize = 1 << 26;

/// A model of one of the two kinds, with the options of the command line.
pub struct Retrieval<'a> {
    encoder: Encoder,
    options: EncodeOptions<'a>,
    kind: Option<Kind>,
}

enum Encoder {
    Sparse(SparseEncoder),
    MultiVector(Box<MultiVectorEncoder>),
}

#[derive(Serialize)]
struct SparseLine<'a> {
    text: &'a str,
    indices: &'a [u32],
    values: &'a [f32],
}

#[derive(Serialize)]
struct VectorsLine<'a> {
    text: &'a str,
    embeddings: Vec<Vec<f32>>,
}

impl<'a> Retrieval<'a> {
    /// The model, if it is of one of these kinds. It only prints JSON lines, and options for other vectors are refused.
    pub fn open(
        model: &'a Model,
        adaptation: &Adaptation,
        batches: &Batches,
        outputs: &'a Outputs,
        json: bool,
    ) -> Result<Option<Self>> {
        let Some(folder) = model.folder()? else { return Ok(None) };
        let kind = EncoderKind::of_folder(&folder)?;
        let what = match kind {
            EncoderKind::Sparse => "sparse vectors",
            EncoderKind::MultiVector => "a vector per token",
            _ => return Ok(None),
        };
        if !json {
            return Err(format!("{}: the model makes {what}, which are printed with --json only", model.name()).into());
        }
        if let Some(option) = adaptation.given().or(outputs.of_one_vector()) {
            return Err(format!("{option} is not for this model: it makes {what}").into());
        }
        let encoder = match kind {
            EncoderKind::Sparse => Encoder::Sparse(SparseEncoder::from_folder(&folder, model.dtype(), &model.device)?),
            _ => {
                let encoder = MultiVectorEncoder::from_folder(&folder, model.dtype(), &model.device)?;
                Encoder::MultiVector(Box::new(encoder))
            }
        };
        check_weights(&folder)?;
        let mut options = batches.options(model.prompt_name.as_deref());
        options.prompt = outputs.prompt.as_deref();
        Ok(Some(Self { encoder, options, kind: outputs.kind }))
    }

    /// Prints a JSON line for each text as soon as it is encoded.
    pub fn stream(&self, mut texts: impl Arrivals) -> Result<()> {
        let (mut out, cut, mut count) = (print::stdout(), Cell::new(0), 0);
        let on_truncated = |_: usize| cut.set(cut.get() + 1);
        let options = self.options.with_on_truncated(&on_truncated);
        // One batch at a time: the vectors of all tokens take much memory.
        let most = (options.batch_size.max(1), CHUNK_BYTES);
        loop {
            let chunk = texts.arrived(most)?;
            if chunk.is_empty() {
                break;
            }
            count += chunk.len();
            let texts: Vec<&str> = chunk.iter().map(String::as_str).collect();
            self.print(&texts, &options, &mut out)?;
            out.flush()?;
        }
        if count == 0 {
            return Err("no text: every line is blank, or there is none".into());
        }
        note_truncated(cut.get(), count, options.max_length);
        Ok(())
    }

    fn print(&self, texts: &[&str], options: &EncodeOptions, out: &mut impl Write) -> Result<()> {
        match &self.encoder {
            Encoder::Sparse(encoder) => {
                let vectors = match self.kind {
                    Some(Kind::Query) => encoder.encode_query(texts, options),
                    Some(Kind::Document) => encoder.encode_document(texts, options),
                    None => encoder.encode(texts, options),
                };
                for (text, vector) in texts.iter().zip(vectors?) {
                    let line = SparseLine { text, indices: &vector.indices, values: &vector.values };
                    writeln!(out, "{}", serde_json::to_string(&line)?)?;
                }
            }
            Encoder::MultiVector(encoder) => {
                let vectors = match self.kind {
                    Some(Kind::Query) => encoder.encode_query(texts, options),
                    Some(Kind::Document) | None => encoder.encode_document(texts, options),
                };
                for (text, vectors) in texts.iter().zip(vectors?) {
                    let embeddings = vectors.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2()?;
                    writeln!(out, "{}", serde_json::to_string(&VectorsLine { text, embeddings })?)?;
                }
            }
        }
        Ok(())
    }
}

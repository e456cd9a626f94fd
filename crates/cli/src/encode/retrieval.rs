//! JSON lines of models that make sparse vectors, or a vector per token.

use std::path::Path;

use candle_attention_text::{EncodeOptions, EncoderKind, MultiVectorEncoder, SparseEncoder, SparseVector};
use serde::Serialize;

use super::super::shared::checkpoint::check_weights;
use super::super::shared::model::{Batches, Model};
use super::super::shared::{Result, print};
use super::lines::{self, Arrivals, CHUNK_BYTES};
use super::outputs::{Kind, Outputs};

#[derive(Serialize)]
struct SparseLine<'a> {
    text: &'a str,
    #[serde(flatten)]
    vector: SparseVector,
}

/// Prints a JSON line for each text as soon as it is encoded by the model of a folder.
pub fn stream(model: &Model, folder: &Path, batches: &Batches, outputs: &Outputs, texts: Arrivals) -> Result<()> {
    let (compute_type, device) = (model.compute.compute_type(), &model.compute.device);
    let mut options = batches.options(model.prompt_name.as_deref());
    options.prompt = outputs.prompt.as_deref();
    // One batch at a time: the vectors of all tokens take much memory.
    let (most, cut_at) = ((options.batch_size.max(1), CHUNK_BYTES), options.max_length);
    if EncoderKind::from_folder(folder)? == EncoderKind::Sparse {
        let encoder = SparseEncoder::from_folder(folder, compute_type, device)?;
        check_weights(folder)?;
        return lines::stream(texts, most, &options, cut_at, |texts, options, out| {
            let vectors = match outputs.kind {
                Some(Kind::Query) => encoder.encode_query(texts, options),
                Some(Kind::Document) => encoder.encode_document(texts, options),
                None => encoder.encode(texts, options),
            };
            for (text, vector) in texts.iter().zip(vectors?) {
                print::json(out, &SparseLine { text, vector })?;
            }
            Ok(())
        });
    }
    let encoder = MultiVectorEncoder::from_folder(folder, compute_type, device)?;
    check_weights(folder)?;
    lines::stream(texts, most, &options, cut_at, |texts, options: &EncodeOptions, out| {
        let vectors = match outputs.kind {
            Some(Kind::Query) => encoder.encode_query(texts, options),
            Some(Kind::Document) | None => encoder.encode_document(texts, options),
        };
        lines::print_tokens(texts, vectors?, out)
    })
}

//! Late chunking: embeddings of parts of a text, each with the whole text as its context.

use std::ops::Range;

use candle_attention::{Error, Result};
use candle_core::Tensor;

use crate::model::hidden_states::first_not_finite;
use crate::sentence::SentenceEncoder;
use crate::text::in_flight::MOST_QUEUED;
use crate::text::options::EncodeOptions;

impl SentenceEncoder {
    /// One embedding per span of bytes of `text`, `(spans, embedding_size)`: late chunking
    /// ([Günther 2024](https://arxiv.org/abs/2409.04701)).
    ///
    /// The text runs through the model once, as a whole. The vectors of the tokens of each span are averaged, whatever
    /// the model's own pooling, and go through the modules that follow it. A token belongs to every span that shares a
    /// byte with it; special tokens and the prompt belong to none.
    ///
    /// ```
    /// use candle_attention_text::{EncodeOptions, SentenceEncoder};
    /// use candle_core::{DType, Device};
    /// let encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
    /// let text = "Berlin is a city. It has many parks.";
    /// let sentences = [0..17, 18..36];
    /// let embeddings = encoder.encode_spans(text, &sentences, &EncodeOptions::default())?;
    /// assert_eq!(embeddings.dims(), [2, 128]);
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// A span that is not inside the text, or without a token: an empty one, or one beyond the maximum length; a model
    /// with several pooling modes; those of [`encode`](Self::encode).
    pub fn encode_spans(&self, text: &str, spans: &[Range<usize>], options: &EncodeOptions) -> Result<Tensor> {
        options.check()?;
        let (encoder, options) = &self.route_of(options)?;
        let transformer = encoder.transformer()?;
        let modes = transformer.pooling.output_size(1);
        if modes != 1 {
            let expected = "1, to average spans in its place";
            return Err(Error::value("the number of pooling modes of the model", modes, expected));
        }
        let tokenizer = transformer.tokenizer_for(options)?;
        let (tokens, bytes) = tokenizer.encode_with_bytes(text, encoder.prompt(options)?)?;
        if let Some(on_truncated) = options.on_truncated.filter(|_| tokens.truncated) {
            on_truncated(0);
        }
        let places = spans.iter().map(|span| tokens_of(span, text, &bytes)).collect::<Result<Vec<_>>>()?;
        if spans.is_empty() {
            return encoder.no_embeddings(options);
        }
        let (batcher, (models, _)) = (&transformer.batcher, encoder.models_for(transformer, 1, options)?);
        let permit = batcher.in_flight.begin(tokens.len(), MOST_QUEUED);
        let hidden = batcher.hidden(&models[0], &[tokens])?.text(0)?.to_dtype(encoder.input.dtype())?; // (tokens, width)
        permit.finish()?;
        let mean = |places: &Vec<u32>| {
            let places = Tensor::new(places.as_slice(), hidden.device())?;
            Ok(hidden.index_select(&places, 0)?.mean_keepdim(0)?)
        };
        let means = places.iter().map(mean).collect::<Result<Vec<_>>>()?;
        let embeddings = encoder.finish(Tensor::cat(&means, 0)?, options)?;
        match first_not_finite(&embeddings)? {
            Some(i) => Err(Error::not_finite(format_args!("the embedding of span {i}"), batcher.dtype)),
            None => Ok(embeddings),
        }
    }
}

/// The tokens that share a byte with a span.
fn tokens_of(span: &Range<usize>, text: &str, bytes: &[Range<usize>]) -> Result<Vec<u32>> {
    if span.end > text.len() || span.start > span.end {
        let expected = format!("a range inside the text of {} bytes", text.len());
        return Err(Error::value("a span", format!("{span:?}"), expected));
    }
    let shares = |token: &Range<usize>| token.start < span.end && token.end > span.start;
    let tokens: Vec<u32> = (0..).zip(bytes).filter(|(_, token)| shares(token)).map(|(i, _)| i).collect();
    if tokens.is_empty() {
        let end = bytes.iter().map(|token| token.end).max().unwrap_or(0);
        let expected = format!("at least 1: the tokens of the text end at byte {end}");
        return Err(Error::value(format!("the number of tokens of span {span:?}"), 0, expected));
    }
    Ok(tokens)
}

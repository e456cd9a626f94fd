//! The hits of a query: distinct texts, each by the best of its windows.

use candle_attention_text::search::Vectors;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use rayon::prelude::*;

use super::super::shared::{Result, bar};
use super::sources::{Corpus, Passage};

/// A text that was found.
pub struct Hit<'a> {
    pub score: f32,
    pub text: &'a str,
    /// The part of the text that is nearest to the query; all of a short one.
    pub window: &'a str,
    /// Where the text stands: passages with the same text are one hit.
    pub passages: &'a [Passage],
}

/// The texts that are searched, with their vectors.
pub struct Searched<'a> {
    pub corpus: &'a Corpus,
    texts: Vec<&'a str>,
    /// The parts of the texts that fit into the model; of a short text, all of it.
    windows: Vec<&'a str>,
    /// The number of the text of each window.
    text_of: Vec<usize>,
    /// The vectors of the windows.
    vectors: Vectors,
}

impl<'a> Searched<'a> {
    /// Cuts the texts of a corpus into windows, and embeds these.
    pub fn new(corpus: &'a Corpus, encoder: &SentenceEncoder, options: &EncodeOptions) -> Result<Self> {
        let texts = corpus.texts();
        let windows_of = |text: &&'a str| -> candle_attention::Result<Vec<&'a str>> {
            let ranges = encoder.windows(text, options)?;
            Ok(ranges.into_iter().map(|range| &text[range]).filter(|window| !window.is_empty()).collect())
        };
        let split: Vec<_> = texts.par_iter().map(windows_of).collect::<candle_attention::Result<_>>()?;
        let text_of = (0..).zip(&split).flat_map(|(number, parts)| parts.iter().map(move |_| number)).collect();
        let windows = split.concat();
        let bar = bar::bar(windows.len(), "embedding", "passages")?;
        let on_progress = |done: usize, _: usize| bar.set_position(done as u64);
        let mut vectors = Vectors::new(encoder.embedding_size())?;
        vectors.embed(&windows, encoder, &options.with_on_progress(&on_progress))?;
        bar.finish_and_clear();
        Ok(Self { corpus, texts, windows, text_of, vectors })
    }

    /// All texts with at least the score `least`, the nearest to a query vector first.
    pub fn hits(&self, query: &[f32], least: f32) -> Result<impl Iterator<Item = Hit<'_>> + use<'_>> {
        let near = self.vectors.search(query, usize::MAX)?.into_iter().take_while(move |ranked| ranked.score >= least);
        let mut seen = vec![false; self.texts.len()];
        Ok(near.filter_map(move |ranked| {
            let text = self.text_of[ranked.index];
            let is_new = !std::mem::replace(&mut seen[text], true);
            is_new.then(|| Hit {
                score: ranked.score,
                text: self.texts[text],
                window: self.windows[ranked.index],
                passages: &self.corpus.passages[text],
            })
        }))
    }
}

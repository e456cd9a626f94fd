//! The hits of a query: the best window of each passage, near-equal passages folded into one.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use candle_attention_text::search::Index;

use super::super::shared::Result;
use super::passages::Passage;
use super::sources::{Corpus, Source};

/// A source that can be searched.
pub struct Searched<'a> {
    pub source: &'a Source,
    pub corpus: &'a Corpus<'a>,
    pub index: Index<'a>,
    /// Where the embeddings are saved.
    pub cache: Option<PathBuf>,
}

/// Where a passage is.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub source: &'a Source,
    pub passage: &'a Passage,
}

/// A passage that was found.
pub struct Hit<'a> {
    pub score: f32,
    pub place: Place<'a>,
    /// The part of the passage that is nearest to the query; all of a short passage.
    pub window: &'a str,
    /// The passages that say nearly the same, nearest first.
    pub similar: Vec<Place<'a>>,
    words: Vec<u64>,
}

/// Which passages are one hit.
#[derive(Clone, Copy, PartialEq)]
pub enum Fold {
    None,
    /// Those whose best windows have [`NEAR_EQUAL`] of their words in common.
    NearEqual,
    /// Those of a file.
    File,
}

/// What a user asks of the hits.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub top_k: usize,
    pub min_score: Option<f32>,
    pub fold: Fold,
}

/// The share of words that two passages have in common, of the words of both, from which they are one hit.
const NEAR_EQUAL: f32 = 0.8;

impl<'a> Place<'a> {
    pub fn file(self) -> &'a Path {
        &self.source.documents[self.passage.document].path
    }
}

/// The passages nearest to a query vector, best first. All windows are ranked, so that what is folded into a hit does
/// not depend on the number of hits.
pub fn hits<'a>(searched: &'a [Searched], query: &[f32], wanted: Wanted) -> Result<Vec<Hit<'a>>> {
    let mut candidates = Vec::new();
    for (i, searched) in searched.iter().enumerate() {
        let ranked = searched.index.search(query, usize::MAX)?;
        candidates.extend(ranked.into_iter().map(|ranked| (ranked.score, i, ranked.index)));
    }
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let (mut hits, mut seen): (Vec<Hit>, HashSet<(usize, usize)>) = (Vec::new(), HashSet::new());
    for (score, of, window) in candidates {
        let is_full = hits.len() == wanted.top_k && wanted.fold != Fold::NearEqual;
        if is_full || wanted.min_score.is_some_and(|least| score < least) {
            break;
        }
        let Searched { source, corpus, .. } = searched[of];
        let text = corpus.text_of[window];
        if !seen.insert((of, text)) {
            continue;
        }
        let window = corpus.windows[window];
        let words = if wanted.fold == Fold::NearEqual { words(window) } else { Vec::new() };
        for passage in &corpus.texts[text].1 {
            let place = Place { source, passage };
            let twin = hits.iter().position(|hit| match wanted.fold {
                Fold::None => false,
                Fold::NearEqual => hit.window == window || near_equal(&hit.words, &words),
                Fold::File => hit.place.file() == place.file(),
            });
            match twin {
                Some(twin) => hits[twin].similar.push(place),
                None if hits.len() == wanted.top_k => break,
                None => hits.push(Hit { score, place, window, similar: Vec::new(), words: words.clone() }),
            }
        }
    }
    Ok(hits)
}

/// Hashes of the distinct words of a text, without case and punctuation, ascending: this is done for every window.
fn words(text: &str) -> Vec<u64> {
    let hash = |word: &str| {
        let mut hasher = DefaultHasher::new();
        word.chars().flat_map(char::to_lowercase).for_each(|c| hasher.write_u32(c.into()));
        hasher.finish()
    };
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let mut words: Vec<u64> = words.map(hash).collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// Whether two sets of words are nearly the same, by Jaccard's index. Texts without words are never.
fn near_equal(a: &[u64], b: &[u64]) -> bool {
    if (a.len().min(b.len()) as f32) < NEAR_EQUAL * a.len().max(b.len()) as f32 {
        return false;
    }
    let common = a.iter().filter(|word| b.binary_search(word).is_ok()).count();
    common > 0 && common as f32 >= NEAR_EQUAL * (a.len() + b.len() - common) as f32
}

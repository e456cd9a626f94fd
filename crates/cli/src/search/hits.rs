//! The hits of a query: the best window of each passage, near-equal passages folded into one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use candle_attention_text::search::Index;

use super::super::shared::Result;
use super::Search;
use super::sources::{Corpus, Passage, Windows};

/// A passage that was found.
pub struct Hit<'a> {
    pub score: f32,
    pub passage: Passage,
    pub text: &'a str,
    /// The part of the text that is nearest to the query; all of a short one.
    pub window: &'a str,
    /// The passages that say nearly the same, nearest first.
    pub similar: Vec<Passage>,
    words: Vec<u64>,
}

/// The share of words that two passages have in common, of the words of both, from which they are one hit.
const NEAR_EQUAL: f32 = 0.8;

/// The corpus that is searched, with its vectors.
pub struct Searched<'a> {
    pub corpus: &'a Corpus,
    pub texts: &'a [&'a str],
    pub windows: &'a Windows<'a>,
    pub index: Index<'a>,
}

impl<'a> Searched<'a> {
    /// The passages nearest to a query vector, best first. All windows are ranked, so that what is folded into a hit
    /// does not depend on the number of hits.
    pub fn hits(&self, query: &[f32], options: &Search) -> Result<Vec<Hit<'a>>> {
        let (top_k, by_file) = (options.top_k as usize, options.files_with_matches);
        let folds = !by_file && !options.no_fold;
        let (mut hits, mut seen, mut files) = (Vec::<Hit>::new(), vec![false; self.texts.len()], HashMap::new());
        for ranked in self.index.search(query, usize::MAX)? {
            if hits.len() == top_k && !folds || options.min_score.is_some_and(|least| ranked.score < least) {
                break;
            }
            let (number, window) = (self.windows.text_of[ranked.index], self.windows.texts[ranked.index]);
            if std::mem::replace(&mut seen[number as usize], true) {
                continue;
            }
            let words = if folds { words(window) } else { Vec::new() };
            let is_twin = |hit: &Hit| hit.window == window || near_equal(&hit.words, &words);
            let mut twin = if folds { hits.iter().position(is_twin) } else { None };
            for &passage in &self.corpus.passages[number as usize] {
                let twin_of_file = if by_file { files.get(&passage.document).copied() } else { twin };
                match twin_of_file {
                    Some(hit) => hits[hit].similar.push(passage),
                    None if hits.len() == top_k => break,
                    None => {
                        files.insert(passage.document, hits.len());
                        twin = folds.then_some(hits.len());
                        let (text, words) = (self.texts[number as usize], words.clone());
                        hits.push(Hit { score: ranked.score, passage, text, window, similar: Vec::new(), words });
                    }
                }
            }
        }
        Ok(hits)
    }
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

//! The hits of a query: the best window of each line, near-equal lines folded into one.

use std::collections::HashSet;

use candle_attention_text::search::Index;

use super::super::shared::Result;
use super::sources::{Corpus, Place, Source};

/// A source that can be searched.
pub struct Searched<'a> {
    pub source: &'a Source,
    pub corpus: &'a Corpus<'a>,
    pub index: Index<'a>,
}

/// A line that was found.
pub struct Hit<'a> {
    pub score: f32,
    pub source: &'a Source,
    pub text: &'a str,
    pub places: &'a [Place],
    /// The part of the line that is nearest to the query; all of a short line.
    pub window: &'a str,
    /// The places of lines that say nearly the same, nearest first.
    pub similar: Vec<(&'a Source, Place)>,
    words: HashSet<String>,
}

/// What a user asks of the hits.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub top_k: usize,
    pub min_score: Option<f32>,
    /// Whether lines that say nearly the same are one hit.
    pub fold: bool,
}

/// The share of words that two lines have in common, of the words of both, from which they are one hit.
const NEAR_EQUAL: f32 = 0.8;

/// The lines nearest to a query vector, best first. Windows of one line and near-equal lines are one hit, so all
/// windows are ranked.
pub fn hits<'a>(searched: &'a [Searched], query: &[f32], wanted: Wanted) -> Result<Vec<Hit<'a>>> {
    let mut candidates = Vec::new();
    for (i, searched) in searched.iter().enumerate() {
        let ranked = searched.index.search(query, usize::MAX)?;
        candidates.extend(ranked.into_iter().map(|ranked| (ranked.score, i, ranked.index)));
    }
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let (mut hits, mut seen): (Vec<Hit>, HashSet<(usize, usize)>) = (Vec::new(), HashSet::new());
    for (score, of, window) in candidates {
        if wanted.min_score.is_some_and(|least| score < least) {
            break;
        }
        let Searched { source, corpus, .. } = searched[of];
        let line = corpus.line_of[window];
        if !seen.insert((of, line)) {
            continue;
        }
        let ((text, places), window) = (&corpus.lines[line], corpus.windows[window]);
        let words = words(window);
        let twin = hits.iter().position(|hit| wanted.fold && near_equal(&hit.words, &words));
        match twin {
            Some(twin) => hits[twin].similar.extend(places.iter().map(|place| (source, *place))),
            None if hits.len() == wanted.top_k => break,
            None => hits.push(Hit { score, source, text, places, window, similar: Vec::new(), words }),
        }
    }
    Ok(hits)
}

/// The words of a text, without case and punctuation.
fn words(text: &str) -> HashSet<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

/// Whether two sets of words are nearly the same, by Jaccard's index. Texts without words are never.
fn near_equal(a: &HashSet<String>, b: &HashSet<String>) -> bool {
    let common = a.intersection(b).count();
    common > 0 && common as f32 >= NEAR_EQUAL * (a.len() + b.len() - common) as f32
}

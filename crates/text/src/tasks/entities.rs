//! Entities: labelled tokens of a text, grouped as the `token-classification` pipeline of transformers groups them
//! (`pipelines/token_classification.py`).

use candle_attention::Result;

/// How the tokens of a text become entities; the names are those of transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Aggregation {
    /// Each token is an entity of its own.
    None,
    /// Neighboring tokens of one label are an entity. `B-` begins a new one, `I-` continues.
    #[default]
    Simple,
    /// As `Simple` on words, each with the label of its first token.
    First,
    /// As `Simple` on words, each with the label of the largest mean score over its tokens.
    Average,
    /// As `Simple` on words, each with the label of the token with the largest score.
    Max,
}

/// A part of a text with a label.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Entity {
    /// The label, from `id2label`; of grouped tokens without `B-` or `I-` before it (`entity_group` in transformers).
    pub entity: String,
    /// The probability of the label, from 0 to 1; of grouped tokens or words, their mean.
    pub score: f32,
    /// The tokens as the tokenizer's decoder joins them. A single token is as in the vocabulary.
    pub word: String,
    /// Where it begins in the text, in characters (not bytes).
    pub start: usize,
    /// Where it ends, in characters.
    pub end: usize,
    /// The number of the token, special tokens included; only without aggregation.
    pub index: Option<usize>,
}

/// A token of a text, and the scores of its labels.
pub(crate) struct ScoredToken {
    pub word: String,
    pub scores: Vec<f32>,
    pub start: usize,
    pub end: usize,
    pub index: usize,
    /// Whether it continues the word of the token before it.
    pub is_subword: bool,
}

/// Groups the tokens of a text. `join` makes one text of tokens.
pub(crate) fn entities(
    tokens: &[ScoredToken],
    labels: &[String],
    aggregation: Aggregation,
    join: &impl Fn(Vec<String>) -> Result<String>,
) -> Result<Vec<Entity>> {
    let token_entity = |token: &ScoredToken| {
        let (best, score) = largest(&token.scores);
        let (entity, word) = (labels[best].clone(), token.word.clone());
        Entity { entity, score, word, start: token.start, end: token.end, index: Some(token.index) }
    };
    let parts: Vec<Entity> = match aggregation {
        Aggregation::None => return Ok(tokens.iter().map(token_entity).collect()),
        Aggregation::Simple => tokens.iter().map(token_entity).collect(),
        _ => {
            let words = tokens.chunk_by(|_, next| next.is_subword);
            words.map(|tokens| word(tokens, labels, aggregation, join)).collect::<Result<_>>()?
        }
    };
    parts.chunk_by(|last, next| continues(&last.entity, &next.entity)).map(|parts| group(parts, join)).collect()
}

/// The entities of overlapping windows, in the order of the text: of those that overlap the longest, and of those the
/// most probable.
pub(crate) fn without_overlaps(mut entities: Vec<Entity>) -> Vec<Entity> {
    entities.sort_by_key(|entity| entity.start);
    let mut kept: Vec<Entity> = Vec::new();
    for entity in entities {
        match kept.last_mut().filter(|last| entity.start < last.end) {
            Some(last) => {
                let (length, last_length) = (entity.end - entity.start, last.end - last.start);
                if length > last_length || length == last_length && entity.score > last.score {
                    *last = entity;
                }
            }
            None => kept.push(entity),
        }
    }
    kept
}

/// The tokens of a word, with one label.
fn word(
    tokens: &[ScoredToken],
    labels: &[String],
    aggregation: Aggregation,
    join: &impl Fn(Vec<String>) -> Result<String>,
) -> Result<Entity> {
    let (best, score) = match aggregation {
        Aggregation::Average => {
            let mean = |label: usize| tokens.iter().map(|token| token.scores[label]).sum::<f32>() / tokens.len() as f32;
            largest(&(0..labels.len()).map(mean).collect::<Vec<_>>())
        }
        Aggregation::Max => {
            let best: Vec<(usize, f32)> = tokens.iter().map(|token| largest(&token.scores)).collect();
            best[largest(&best.iter().map(|(_, score)| *score).collect::<Vec<_>>()).0]
        }
        _ => largest(&tokens[0].scores),
    };
    let word = join(tokens.iter().map(|token| token.word.clone()).collect())?;
    let (start, end) = (tokens[0].start, tokens[tokens.len() - 1].end);
    Ok(Entity { entity: labels[best].clone(), score, word, start, end, index: None })
}

/// Neighboring tokens or words as one entity.
fn group(parts: &[Entity], join: &impl Fn(Vec<String>) -> Result<String>) -> Result<Entity> {
    let entity = &parts[0].entity;
    Ok(Entity {
        entity: entity.split_once('-').map_or(entity.as_str(), |(_, tag)| tag).to_string(),
        score: parts.iter().map(|part| part.score).sum::<f32>() / parts.len() as f32,
        word: join(parts.iter().map(|part| part.word.clone()).collect())?,
        start: parts[0].start,
        end: parts[parts.len() - 1].end,
        index: None,
    })
}

/// Whether a label continues the entity of the label before it: the same tag, and no `B-`.
fn continues(last: &str, next: &str) -> bool {
    let tag = |label: &str| label.strip_prefix("B-").or(label.strip_prefix("I-")).unwrap_or(label).to_string();
    !next.starts_with("B-") && tag(last) == tag(next)
}

/// The first of the largest numbers, and its index. There is at least one.
fn largest(numbers: &[f32]) -> (usize, f32) {
    let larger = |best: (usize, f32), next: (usize, f32)| if next.1 > best.1 { next } else { best };
    numbers.iter().copied().enumerate().fold((0, f32::NEG_INFINITY), larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in the documentation of transformers, with its three strategies.
    #[test]
    fn tokens_are_grouped_as_documented() {
        let labels = ["O", "B-ENT", "I-ENT", "B-NAME", "I-NAME"].map(String::from);
        let token = |word: &str, is_subword, label: usize, score: f32, start: usize| {
            let mut scores = vec![(1.0 - score) / 4.0; 5];
            scores[label] = score;
            ScoredToken { word: word.into(), scores, start, end: start + word.len(), index: start, is_subword }
        };
        let tokens = [
            token("micro", false, 1, 0.6, 0),
            token("soft", true, 4, 0.9, 5),
            token("com", false, 2, 0.8, 10),
            token("pany", true, 2, 0.8, 13),
            token("inc", false, 1, 0.7, 18),
        ];
        let join = |words: Vec<String>| Ok(words.join("+"));
        let said = |aggregation| -> Vec<String> {
            let entities = entities(&tokens, &labels, aggregation, &join).unwrap();
            entities.iter().map(|e| format!("{} {} {}..{}", e.entity, e.word, e.start, e.end)).collect()
        };
        assert_eq!(said(Aggregation::None)[1], "I-NAME soft 5..9");
        let simple = ["ENT micro 0..5", "NAME soft 5..9", "ENT com+pany 10..17", "ENT inc 18..21"];
        assert_eq!(said(Aggregation::Simple), simple);
        assert_eq!(said(Aggregation::First), ["ENT micro+soft+com+pany 0..17", "ENT inc 18..21"]);
        let other = ["NAME micro+soft 0..9", "ENT com+pany 10..17", "ENT inc 18..21"];
        assert_eq!(said(Aggregation::Average), other);
        assert_eq!(said(Aggregation::Max), other);
        assert!(entities(&[], &labels, Aggregation::First, &join).unwrap().is_empty());
    }
}

//! The merges of a SentencePiece vocabulary.

use std::collections::HashMap;

/// The most merges. Gemma's vocabulary of 262,144 pieces has some 515,000.
const MAX_MERGES: usize = 1 << 20;

/// The largest sum of the squares of the pieces' lengths in bytes: each cut of a piece compares both parts, and may be
/// a merge, which is written out as text. Gemma's is some 2^25.
const MAX_WORK: usize = 1 << 27;

/// The pairs of pieces that make up a piece, those of the highest score first: BPE by these merges gives the pieces
/// that SentencePiece gives by scores. GGUF has the scores alone, `tokenizer.json` the merges alone. `None` if there
/// are more than 2^20, or pieces so long that looking for them would take minutes or their text much memory.
///
/// Pairs of one piece are in the order of their ids; pieces of one score, by the lengths of the parts, as transformers'
/// converter has them.
pub(super) fn merges(pieces: &[(String, f64)]) -> Option<Vec<[&str; 2]>> {
    let work = pieces.iter().map(|(piece, _)| piece.len().saturating_mul(piece.len()));
    if work.fold(0, usize::saturating_add) > MAX_WORK {
        return None;
    }
    let ids: HashMap<&str, usize> = pieces.iter().enumerate().map(|(id, (piece, _))| (piece.as_str(), id)).collect();
    let mut all = Vec::new();
    for (piece, score) in pieces {
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let mut pairs: Vec<[usize; 2]> =
            cuts.filter_map(|(first, second)| Some([*ids.get(first)?, *ids.get(second)?])).collect();
        pairs.sort_unstable();
        all.extend(pairs.into_iter().map(|pair| (*score, pair.map(|id| pieces[id].0.as_str()))));
        if all.len() > MAX_MERGES {
            return None;
        }
    }
    let lengths = |pair: &[&str; 2]| pair.map(|piece| piece.chars().count());
    all.sort_by(|(a, pair_a), (b, pair_b)| b.total_cmp(a).then_with(|| lengths(pair_b).cmp(&lengths(pair_a))));
    Some(all.into_iter().map(|(_, pair)| pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cut of every piece is a merge: a file of a megabyte would stand for gigabytes of text.
    #[test]
    fn text_that_grows_with_the_cube_of_the_file_is_refused() {
        let pieces = |count: usize| (1..=count).map(|length| ("a".repeat(length), 0.0)).collect::<Vec<_>>();
        assert_eq!(merges(&pieces(100)).map(|merges| merges.len()), Some(99 * 100 / 2));
        // Below the other limit.
        let pieces = pieces(1400);
        assert!(1399 * 1400 / 2 < MAX_MERGES && merges(&pieces).is_none());
    }

    /// All words of two letters: 8 MB of short pieces would stand for 4 million merges.
    #[test]
    fn many_merges_of_short_pieces_are_refused() {
        let words =
            |length: u32| (0..1u32 << length).map(move |word| format!("{word:0width$b}", width = length as usize));
        let pieces = |longest: u32| (1..=longest).flat_map(words).map(|piece| (piece, 0.0)).collect::<Vec<_>>();
        assert_eq!(merges(&pieces(5)).map(|merges| merges.len()), Some(4 + 2 * 8 + 3 * 16 + 4 * 32));
        assert!(merges(&pieces(17)).is_none());
    }
}

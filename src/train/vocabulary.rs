//! A WordPiece vocabulary of the texts, with BERT's rules around it.

use std::collections::{BTreeMap, HashMap};

use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Tokenizer, Trainer,
};

use crate::error::{Error, Result};

/// The special tokens, by id.
pub(super) const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
pub(super) const MASK: u32 = 4;

/// Letters and signs that get a token of their own, the most frequent ones; each takes two, one within words.
const ALPHABET: usize = 96;

fn wrong(error: impl std::fmt::Display) -> Error {
    Error::Tokenizer(error.to_string())
}

fn normalizer() -> BertNormalizer {
    BertNormalizer::new(true, true, None, true)
}

/// Lower-cased WordPieces: the joins most frequent in the texts, `size` in all.
pub(super) fn train(texts: &[String], size: usize) -> Result<Tokenizer> {
    let words = |text: &str| {
        let mut text = NormalizedString::from(text);
        normalizer().normalize(&mut text)?;
        let mut text = PreTokenizedString::from(text);
        BertPreTokenizer.pre_tokenize(&mut text)?;
        let words = text.get_splits(OffsetReferential::Normalized, OffsetType::Byte).into_iter();
        Ok::<Vec<String>, tokenizers::Error>(words.map(|(word, ..)| word.to_string()).collect())
    };
    // The trainer numbers letters in an order that it draws, and by their numbers it settles which of two joins is first;
    // only what it takes for special tokens is numbered as given.
    let letters = letters(texts, words)?;
    let within = letters.iter().map(|letter| format!("##{letter}"));
    let given = SPECIAL.map(String::from).into_iter().chain(letters.iter().map(char::to_string)).chain(within);
    let given = given.map(|token| AddedToken::from(token, true)).collect();
    let trainer = WordPieceTrainer::builder().vocab_size(size).special_tokens(given).show_progress(false);
    let mut trainer = trainer.limit_alphabet(letters.len()).initial_alphabet(letters.into_iter().collect()).build();
    trainer.feed(texts.iter(), words).map_err(wrong)?;
    let mut model = WordPiece::builder().unk_token(SPECIAL[1].to_string()).build().map_err(wrong)?;
    Trainer::train(&trainer, &mut model).map_err(wrong)?;

    let mut tokenizer = Tokenizer::new(model);
    tokenizer.add_special_tokens(SPECIAL.map(|token| AddedToken::from(token, true))).map_err(wrong)?;
    tokenizer.with_normalizer(Some(normalizer())).map_err(wrong)?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    let found = tokenizer.get_vocab_size(true);
    if found != size {
        let allowed = match found < size {
            true => format!("at most {found}, all that the texts give"),
            false => format!("at least {found}, the letters of the texts"),
        };
        return Err(Error::config("vocab_size", size, allowed));
    }
    let special = [2, 3].map(|id| (SPECIAL[id], id as u32)).to_vec();
    let template = TemplateProcessing::builder()
        .try_single("[CLS] $A [SEP]")
        .map_err(wrong)?
        .try_pair("[CLS] $A [SEP] $B:1 [SEP]:1")
        .map_err(wrong)?
        .special_tokens(special)
        .build()
        .map_err(wrong)?;
    tokenizer.with_post_processor(Some(template));
    Ok(tokenizer)
}

/// The letters that get a token of their own, sorted.
fn letters(texts: &[String], words: impl Fn(&str) -> tokenizers::Result<Vec<String>>) -> Result<Vec<char>> {
    let mut counts: HashMap<char, usize> = HashMap::new();
    for text in texts {
        for word in words(text).map_err(wrong)? {
            word.chars().for_each(|letter| *counts.entry(letter).or_default() += 1);
        }
    }
    let by_count: BTreeMap<_, _> = counts.into_iter().map(|(letter, n)| ((std::cmp::Reverse(n), letter), ())).collect();
    let mut letters: Vec<char> = by_count.into_keys().map(|(_, letter)| letter).take(ALPHABET).collect();
    letters.sort_unstable();
    Ok(letters)
}

/// The ids of each text, special ones included, at most `max_length`.
pub(super) fn encode(tokenizer: &Tokenizer, texts: &[String], max_length: usize) -> Result<Vec<Vec<u32>>> {
    let mut tokenizer = tokenizer.clone();
    let truncation = tokenizers::TruncationParams { max_length, ..Default::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(wrong)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let encodings = tokenizer.encode_batch_fast(texts, true).map_err(wrong)?;
    Ok(encodings.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
}

/// Each token of the vocabulary as a text, in the order of ids; nothing for the special ones.
pub(super) fn words(tokenizer: &Tokenizer) -> Vec<String> {
    let word = |id: u32| {
        let token = tokenizer.id_to_token(id).unwrap_or_default();
        if (id as usize) < SPECIAL.len() { String::new() } else { token.trim_start_matches("##").to_string() }
    };
    (0..tokenizer.get_vocab_size(true) as u32).map(word).collect()
}

/// The vocabulary as `tokenizer.json` has it.
pub(super) fn to_json(tokenizer: &Tokenizer) -> Result<String> {
    tokenizer.to_string(false).map_err(wrong)
}

/// Reads [`to_json`]'s text.
pub(super) fn from_json(json: &str) -> Result<Tokenizer> {
    json.parse().map_err(wrong)
}

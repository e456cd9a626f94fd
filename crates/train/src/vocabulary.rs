//! Training of a WordPiece vocabulary with BERT's normalization and special tokens.

use std::collections::HashMap;

use candle_attention::{Error, Result};
use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    Tokenizer, Trainer,
};

/// The special tokens, by id.
const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// Number of characters that get tokens of their own, the most frequent ones: two each, at the start of a word and
/// within one.
const ALPHABET: usize = 96;

pub(super) fn tokenizer_error(error: impl std::fmt::Display) -> Error {
    Error::Tokenizer(error.to_string())
}

fn normalizer() -> BertNormalizer {
    BertNormalizer::new(true, true, None, true)
}

/// Trains a lower-case WordPiece vocabulary on the texts: of `most` tokens, or of all that the texts give if these are
/// fewer.
pub(super) fn train(texts: &[String], most: usize) -> Result<Tokenizer> {
    let words = |text: &str| {
        let mut text = NormalizedString::from(text);
        normalizer().normalize(&mut text)?;
        let mut text = PreTokenizedString::from(text);
        BertPreTokenizer.pre_tokenize(&mut text)?;
        let words = text.get_splits(OffsetReferential::Normalized, OffsetType::Byte).into_iter();
        Ok::<Vec<String>, tokenizers::Error>(words.map(|(word, ..)| word.to_string()).collect())
    };
    // The trainer numbers characters in a random order and breaks ties between merges by these numbers. Only special
    // tokens are numbered in the order given, so all characters are passed as special tokens: the vocabulary is then
    // reproducible.
    let (letters, characters) = letters(texts, words)?;
    let within = letters.iter().map(|letter| format!("##{letter}"));
    let given = SPECIAL.map(String::from).into_iter().chain(letters.iter().map(char::to_string)).chain(within);
    let given: Vec<AddedToken> = given.map(|token| AddedToken::from(token, true)).collect();
    // The trainer allocates for as many tokens as it is told. Each merge leaves one character less to be merged.
    let size = most.min(given.len().saturating_add(characters));
    let trainer = WordPieceTrainer::builder().vocab_size(size).special_tokens(given).show_progress(false);
    let mut trainer = trainer.limit_alphabet(letters.len()).initial_alphabet(letters.into_iter().collect()).build();
    trainer.feed(texts.iter(), words).map_err(tokenizer_error)?;
    let mut model = WordPiece::builder().unk_token(SPECIAL[1].to_string()).build().map_err(tokenizer_error)?;
    Trainer::train(&trainer, &mut model).map_err(tokenizer_error)?;

    let mut tokenizer = Tokenizer::new(model);
    tokenizer.add_special_tokens(SPECIAL.map(|token| AddedToken::from(token, true))).map_err(tokenizer_error)?;
    tokenizer.with_normalizer(Some(normalizer())).map_err(tokenizer_error)?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    let special = [2, 3].map(|id| (SPECIAL[id], id as u32)).to_vec();
    let template = TemplateProcessing::builder()
        .try_single("[CLS] $A [SEP]")
        .map_err(tokenizer_error)?
        .try_pair("[CLS] $A [SEP] $B:1 [SEP]:1")
        .map_err(tokenizer_error)?
        .special_tokens(special)
        .build()
        .map_err(tokenizer_error)?;
    tokenizer.with_post_processor(Some(template));
    let found = tokenizer.get_vocab_size(true);
    if found > most {
        let allowed = format!("at least {found}, for the characters of the texts");
        return Err(Error::config("vocab_size", most, allowed));
    }
    Ok(tokenizer)
}

/// The characters that get tokens of their own, sorted, and the number of all characters of the texts.
fn letters(texts: &[String], words: impl Fn(&str) -> tokenizers::Result<Vec<String>>) -> Result<(Vec<char>, usize)> {
    let mut counts: HashMap<char, usize> = HashMap::new();
    for text in texts {
        for word in words(text).map_err(tokenizer_error)? {
            word.chars().for_each(|letter| *counts.entry(letter).or_default() += 1);
        }
    }
    let characters = counts.values().sum();
    let mut by_count: Vec<(usize, char)> = counts.into_iter().map(|(letter, n)| (n, letter)).collect();
    by_count.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut letters: Vec<char> = by_count.into_iter().map(|(_, letter)| letter).take(ALPHABET).collect();
    letters.sort_unstable();
    Ok((letters, characters))
}

/// The token ids of each text, including the special tokens, truncated to `max_length`.
pub(super) fn encode(tokenizer: &Tokenizer, texts: &[String], max_length: usize) -> Result<Vec<Vec<u32>>> {
    let mut tokenizer = tokenizer.clone();
    let truncation = tokenizers::TruncationParams { max_length, ..Default::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(tokenizer_error)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let encodings = tokenizer.encode_batch_fast(texts, true).map_err(tokenizer_error)?;
    Ok(encodings.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
}

/// All tokens of the vocabulary as texts, in the order of their ids; empty texts for the special tokens.
pub(super) fn words(tokenizer: &Tokenizer) -> Vec<String> {
    let word = |id: u32| {
        let token = tokenizer.id_to_token(id).unwrap_or_default();
        if (id as usize) < SPECIAL.len() { String::new() } else { token.trim_start_matches("##").to_string() }
    };
    (0..tokenizer.get_vocab_size(true) as u32).map(word).collect()
}

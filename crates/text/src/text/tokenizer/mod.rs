//! The tokenizer of a model folder, and the texts it takes.
//!
//! The steps of the tokenizers library are run from here instead of by its `encode`: it normalizes without a bound,
//! keeps the parts of a text that are cut off (for a pair every combination of them), and panics on some files.

mod agreement;
mod file;
mod growth;
mod parts;
mod spans;
mod vocabulary;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::parallelism::MaybeParallelRefIterator;
use tokenizers::{Encoding, Model, OffsetType, PostProcessor, PreTokenizer, TruncationDirection};

use crate::folder::ModelFolder;
pub(crate) use crate::text::tokenizer::file::MAX_TOKENIZER_BYTES;
use crate::text::tokenizer::growth::Stepwise;
use candle_attention::io::foreign_content;
use candle_attention::{Error, Result};

/// The longest text, in bytes: 16 MiB. Normalizing a text and splitting it into words takes some hundred times its
/// memory, and a text without words is read to its end. The Bible has 4 MB.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 24;

/// The bytes of a text that are read in any case.
const MIN_START_BYTES: usize = 1 << 16;

/// The tokenizer of a `tokenizer.json`, with the maximum length of the model instead of the file's truncation and
/// padding.
#[derive(Clone)]
pub(crate) struct Tokenizer {
    inner: Arc<Inner>,
    pub max_length: usize,
    /// Whether special tokens are put around a text.
    special: bool,
    /// A token that is put into each text, and its place.
    inserted: Option<(usize, u32)>,
    /// Whether the place of each token is kept.
    places: bool,
    /// The tokens that neighboring parts of a long text share, if it is not cut.
    stride: Option<usize>,
}

/// The content of the file.
struct Inner {
    tokenizer: tokenizers::Tokenizer,
    /// The steps of its normalizer.
    normalizer: Vec<NormalizerWrapper>,
}

/// The most bytes of a text that are tokenized for one token of a window. Words of published vocabularies have about
/// five letters; a longer word, which is one unknown token, is cut here. It bounds the work for a text without spaces.
const MAX_BYTES_PER_TOKEN: usize = 32;

/// The tokens of a text or of a pair of texts, special tokens included.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    pub ids: Vec<u32>,
    /// The segment type of each token.
    pub types: Vec<u32>,
    /// The place of each token in the text, if the tokenizer [keeps places](Tokenizer::with_places).
    pub places: Vec<Place>,
    /// Whether tokens of the text were cut off.
    pub truncated: bool,
}

/// Where a token is in its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The first character of the text that it stands for.
    pub start: usize,
    /// The character after the last one.
    pub end: usize,
    /// Whether the tokenizer added it to the text.
    pub special: bool,
}

/// The tokens that are kept of a text or a pair.
struct Kept {
    encoding: Encoding,
    /// Number of tokens that are kept of each text, without special ones.
    #[cfg_attr(not(feature = "visualize"), expect(dead_code))]
    counts: Vec<usize>,
    /// Whether tokens were cut off.
    truncated: bool,
}

/// The end of a text, which was cut.
#[cfg(feature = "visualize")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// Number of tokens that were cut.
    pub tokens: usize,
    /// The byte of the text where they start.
    pub start: usize,
}

/// A text or a pair with the places of its tokens.
#[cfg(feature = "visualize")]
pub(crate) struct Located {
    pub encoding: Encoding,
    /// Each text as it was read. The places are in bytes of it.
    pub texts: Vec<String>,
    /// The end that was cut from each text.
    pub rests: Vec<Option<Rest>>,
}

impl Tokens {
    /// The tokens of an encoding, without their places.
    pub fn new(encoding: &Encoding, truncated: bool) -> Self {
        let (ids, types) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
        Self { ids, types, places: Vec::new(), truncated }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Without the vocabulary.
impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vocab_size = self.inner.tokenizer.get_vocab_size(true);
        f.debug_struct("Tokenizer").field("vocab_size", &vocab_size).finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub(crate) fn load(folder: ModelFolder, path: &Path, max_length: usize, lower_case: bool) -> Result<Self> {
        let json = folder.read(path, MAX_TOKENIZER_BYTES)?;
        Self::from_json(&json, max_length, lower_case).map_err(|e| Error::file(path, e))
    }

    /// The tokenizer of the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the content is malformed or beyond a limit, or if `max_length` leaves no room for a
    /// token of the text.
    pub(crate) fn from_json(json: &[u8], max_length: usize, lower_case: bool) -> Result<Self> {
        let inner = guarded(|| {
            file::check(json)?;
            // `from_str` is compiled in the library, `from_bytes` would be compiled here.
            let mut tokenizer = tokenizers::Tokenizer::from_str(std::str::from_utf8(json)?)?;
            if lower_case {
                lower_case_first(&mut tokenizer)?;
            }
            let normalizer = growth::steps(tokenizer.get_normalizer());
            Ok(Inner { tokenizer, normalizer })
        });
        // Only a file that is none is looked at for what it is: reading a large one twice takes time.
        let inner = inner.map_err(|error| match foreign_content(json) {
            Some(what) => Error::Tokenizer(format!("the file is {what}")),
            None => error,
        })?;
        let inner = Arc::new(inner);
        let tokenizer = Self { inner, max_length, special: true, inserted: None, places: false, stride: None };
        guarded(|| tokenizer.room(false))?;
        Ok(tokenizer)
    }

    /// This tokenizer without special tokens around a text, for texts that have them inside.
    pub(crate) fn without_special_tokens(&self) -> Self {
        Self { special: false, ..self.clone() }
    }

    /// This tokenizer with another maximum length.
    ///
    /// # Errors
    /// If it leaves no room for a token of the text.
    pub(crate) fn with_max_length(&self, max_length: usize) -> Result<Self> {
        let special = guarded(|| Ok(self.special_tokens(false)))?;
        if max_length <= special {
            let expected = format!("more than the {special} special tokens of a text");
            return Err(Error::config("max_length", max_length, expected));
        }
        Ok(Self { max_length, ..self.clone() })
    }

    /// This tokenizer, which then keeps the place of each token in its text, the prompt included.
    pub(crate) fn with_places(&self) -> Self {
        Self { places: true, ..self.clone() }
    }

    /// This tokenizer, which then puts the token `id` into each text, as token `at`, within the maximum length.
    ///
    /// # Errors
    /// As [`with_max_length`](Self::with_max_length).
    pub(crate) fn with_inserted(&self, at: usize, id: u32) -> Result<Self> {
        let shorter = self.with_max_length(self.max_length.saturating_sub(1))?;
        Ok(Self { inserted: Some((at, id)), ..shorter })
    }

    /// The tokens of each text after `prompt`, none longer than the maximum: of a pair, the longer text is cut first.
    pub(crate) fn encode(&self, texts: &[Text], prompt: &str) -> Result<Vec<Tokens>> {
        let tokens = |text: &Text| {
            let (first, second) = self.read(*text, prompt);
            let offsets = if self.places { OffsetType::Char } else { OffsetType::None };
            let Kept { encoding, truncated, .. } = self.encoding(&first, second.as_deref(), offsets)?;
            let mut tokens = Tokens::new(&encoding, truncated);
            if self.places {
                tokens.places = places(&encoding);
            }
            if let Some((at, id)) = self.inserted {
                let at = at.min(tokens.len());
                tokens.ids.insert(at, id);
                tokens.types.insert(at, 0);
            }
            Ok(tokens)
        };
        texts.maybe_par_iter().map(tokens).collect()
    }

    /// The tokens with their places, and what was cut.
    #[cfg(feature = "visualize")]
    pub(crate) fn encode_with_offsets(&self, text: Text) -> Result<Located> {
        let (first, second) = self.read(text, "");
        let Kept { encoding, counts, truncated } = self.encoding(&first, second.as_deref(), OffsetType::Byte)?;
        let texts: Vec<String> = [Some(first), second].into_iter().flatten().map(Cow::into_owned).collect();
        let rests = if truncated {
            texts.iter().zip(counts).map(|(text, kept)| self.rest(text, kept)).collect::<Result<_>>()?
        } else {
            vec![None; texts.len()]
        };
        Ok(Located { encoding, texts, rests })
    }

    /// The end of a text after its first `kept` tokens.
    #[cfg(feature = "visualize")]
    fn rest(&self, text: &str, kept: usize) -> Result<Option<Rest>> {
        let whole = guarded(|| self.sequence(text, 0, OffsetType::Byte, None))?;
        let start = whole.get_offsets().get(kept).map(|(start, _)| *start);
        Ok(start.map(|start| Rest { tokens: whole.len() - kept, start }))
    }

    /// A text or a pair as the tokenizer reads it.
    fn read<'a>(&self, text: Text<'a>, prompt: &str) -> (Cow<'a, str>, Option<Cow<'a, str>>) {
        let (first, second) = text.parts();
        let first = if prompt.is_empty() { Cow::Borrowed(first) } else { Cow::Owned(format!("{prompt}{first}")) };
        (first, second.map(Cow::Borrowed))
    }

    /// The tokens of a text or a pair, and what is kept of each text.
    fn encoding(&self, first: &str, second: Option<&str>, offsets: OffsetType) -> Result<Kept> {
        [Some(first), second].into_iter().flatten().try_for_each(check_length)?;
        guarded(|| {
            let room = self.room(second.is_some())?;
            // One more than is kept at most, which shows that there are more.
            let most = self.max_length.saturating_add(1);
            let first = self.first_tokens(first, 0, offsets, most)?;
            let second = second.map(|text| self.first_tokens(text, 1, offsets, most)).transpose()?;
            let found = (first.len(), second.as_ref().map_or(0, Encoding::len));
            let (kept_first, kept_second) = kept(found.0, found.1, room);
            let truncated = (kept_first, kept_second) != found;
            let counts = if second.is_some() { vec![kept_first, kept_second] } else { vec![kept_first] };
            let (first, second) = (part(&first, 0..kept_first), second.map(|second| part(&second, 0..kept_second)));
            Ok(Kept { encoding: self.process(first, second)?, counts, truncated })
        })
    }

    /// The tokens of a text or a pair with the special ones.
    fn process(&self, first: Encoding, second: Option<Encoding>) -> tokenizers::Result<Encoding> {
        let joined = match self.inner.tokenizer.get_post_processor() {
            Some(processor) => processor.process(first, second, self.special)?,
            None => {
                let sequences = [Some(first), second].into_iter().flatten().collect();
                let mut joined = <dyn PostProcessor>::default_process(sequences, self.special)?;
                joined.pop().ok_or("no tokens at all")?
            }
        };
        if joined.len() > self.max_length {
            let found = format!("its post-processor made {} tokens", joined.len());
            return Err(format!("{found}, expected at most {}", self.max_length).into());
        }
        Ok(joined)
    }

    /// The first tokens of one text without special ones: all, or at least `most`. Of a long text, no more is
    /// normalized and split into words than these need.
    fn first_tokens(&self, text: &str, type_id: u32, offsets: OffsetType, most: usize) -> tokenizers::Result<Encoding> {
        let limit = |tokens| Some((tokens, TruncationDirection::Right));
        // Tokens near the cut can be others than in the whole text, so there are to be as many again before it.
        let (enough, mut length) =
            (most.saturating_mul(2), most.saturating_mul(MAX_BYTES_PER_TOKEN).max(MIN_START_BYTES));
        while length < text.len() {
            let start = &text[..text.floor_char_boundary(length)];
            let found = self.sequence(start, type_id, offsets, limit(enough))?;
            if found.len() >= enough {
                return Ok(found);
            }
            length = length.saturating_mul(4);
        }
        self.sequence(text, type_id, offsets, limit(most))
    }

    /// The tokens of one text without special ones: all, or at least as many as the limit.
    fn sequence(
        &self,
        text: &str,
        type_id: u32,
        offsets: OffsetType,
        limit: Option<(usize, TruncationDirection)>,
    ) -> tokenizers::Result<Encoding> {
        let normalizer = Stepwise::new(&self.inner.normalizer, text.len());
        let mut parts = self.inner.tokenizer.get_added_vocabulary().extract_and_normalize(Some(&normalizer), text);
        normalizer.result()?;
        if let Some(pre_tokenizer) = self.inner.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts)?;
        }
        self.inner.tokenizer.get_model().tokenize_in_pretokenized(&mut parts, limit)?;
        parts.into_encoding(None, type_id, offsets)
    }

    /// The number of special tokens around a text or a pair.
    fn special_tokens(&self, pair: bool) -> usize {
        let processor = self.inner.tokenizer.get_post_processor().filter(|_| self.special);
        processor.map_or(0, |processor| processor.added_tokens(pair))
    }

    /// How many tokens of a text or a pair fit beside the special tokens.
    fn room(&self, pair: bool) -> tokenizers::Result<usize> {
        let (what, needed) = if pair { ("a pair of texts", 2) } else { ("a text", 1) };
        let special = self.special_tokens(pair);
        match self.max_length.checked_sub(special) {
            Some(room) if room >= needed => Ok(room),
            _ => Err(format!(
                "the maximum length is {}, expected at least {}: {what} gets {special} special tokens",
                self.max_length,
                special.saturating_add(needed)
            )
            .into()),
        }
    }
}

/// Runs code of the tokenizers library, and makes an error of a panic. The message of the panic is still printed,
/// because only the program may replace the hook that does so.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| Error::Tokenizer(e.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
            let text = text.unwrap_or("a panic without a message");
            Err(Error::Tokenizer(format!("`tokenizer.json` is malformed: {text}")))
        }
    }
}

/// Puts a step that lower-cases each character in front of the normalizer, unless that holds one, as
/// sentence-transformers does. Special tokens are found before it, in the text as it is.
fn lower_case_first(tokenizer: &mut tokenizers::Tokenizer) -> tokenizers::Result<()> {
    let mut steps = growth::steps(tokenizer.get_normalizer());
    if !steps.iter().any(|step| matches!(step, NormalizerWrapper::Lowercase(_))) {
        steps.insert(0, Lowercase.into());
        tokenizer.with_normalizer(Some(NormalizerWrapper::from(Sequence::new(steps))))?;
    }
    Ok(())
}

/// Refuses a text of more than [`MAX_TEXT_BYTES`].
fn check_length(text: &str) -> Result<()> {
    if text.len() > MAX_TEXT_BYTES {
        let expected = format!("at most {MAX_TEXT_BYTES}: cut it, only its first tokens are used");
        return Err(Error::value("the length of a text in bytes", text.len(), expected));
    }
    Ok(())
}

/// How many tokens are kept of two sequences of `first` and `second` tokens, as the library cuts the longest first.
fn kept(first: usize, second: usize, room: usize) -> (usize, usize) {
    if first + second <= room {
        return (first, second);
    }
    let shorter = first.min(second);
    let (short, long) = match room.checked_sub(shorter) {
        Some(rest) if rest >= shorter => (shorter, rest),
        _ => (room / 2, room - room / 2),
    };
    if first > second { (long, short) } else { (short, long) }
}

/// Some of the tokens. The library's `truncate` would keep the rest.
fn part(encoding: &Encoding, tokens: Range<usize>) -> Encoding {
    Encoding::new(
        encoding.get_ids()[tokens.clone()].to_vec(),
        encoding.get_type_ids()[tokens.clone()].to_vec(),
        encoding.get_tokens()[tokens.clone()].to_vec(),
        encoding.get_word_ids()[tokens.clone()].to_vec(),
        encoding.get_offsets()[tokens.clone()].to_vec(),
        encoding.get_special_tokens_mask()[tokens.clone()].to_vec(),
        encoding.get_attention_mask()[tokens].to_vec(),
        Vec::new(),
        Default::default(),
    )
}

/// The place of each token of an encoding.
fn places(encoding: &Encoding) -> Vec<Place> {
    let offsets = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
    offsets.map(|(&(start, end), &mask)| Place { start, end, special: mask == 1 }).collect()
}

/// The input of a model: a text, or a pair of texts. `"a text".into()`, `("one", "two").into()`.
///
/// A text has at most 16 MiB. Of longer texts than the model takes, only the first tokens are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text<'a> {
    /// One text.
    One(&'a str),
    /// A pair, such as a question and an answer, or a premise and a hypothesis.
    Pair(&'a str, &'a str),
}

impl<'a> Text<'a> {
    /// The only or first text, and the second one.
    pub(crate) fn parts(self) -> (&'a str, Option<&'a str>) {
        match self {
            Self::One(text) => (text, None),
            Self::Pair(first, second) => (first, Some(second)),
        }
    }

    /// The length in bytes, of a pair together.
    pub(crate) fn bytes(self) -> usize {
        let (first, second) = self.parts();
        first.len() + second.map_or(0, str::len)
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self::One(text)
    }
}

impl<'a> From<(&'a str, &'a str)> for Text<'a> {
    fn from((first, second): (&'a str, &'a str)) -> Self {
        Self::Pair(first, second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps run from here give what the library's own `encode` gives.
    #[test]
    fn tokens_equal_those_of_the_library() {
        let json = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../weights/tokenizer.json")).unwrap();
        let words = "The cafe\u{301} [MASK] of 你好 costs 12.5 unbelievable dollars [SEP] today, doesn't it?";
        let texts: Vec<String> = (0..60).map(|n| words.chars().cycle().take(n * 3).collect()).collect();
        for max_length in [4, 5, 8, 9, 64] {
            let ours = Tokenizer::from_json(&json, max_length, false).unwrap();
            let mut theirs = tokenizers::Tokenizer::from_bytes(&json).unwrap();
            theirs.with_truncation(Some(tokenizers::TruncationParams { max_length, ..Default::default() })).unwrap();
            theirs.with_padding(None);
            let mut whole = theirs.clone();
            whole.with_truncation(None).unwrap();
            let same = |text: Text, want: Encoding| {
                let tokens = ours.encode(&[text], "").unwrap().remove(0);
                assert_eq!(
                    (tokens.ids.as_slice(), tokens.types.as_slice()),
                    (want.get_ids(), want.get_type_ids()),
                    "{text:?}"
                );
            };
            for (i, text) in texts.iter().enumerate() {
                same(Text::One(text), theirs.encode_fast(text.as_str(), true).unwrap());
                // No room for both texts is an error here.
                if max_length < 5 {
                    continue;
                }
                for other in texts[i % 7..].iter().step_by(7) {
                    let pair = (text.as_str(), other.as_str());
                    same(pair.into(), theirs.encode_fast(pair, true).unwrap());
                    #[cfg(feature = "visualize")]
                    {
                        let Located { encoding: ours, rests, .. } = ours.encode_with_offsets(pair.into()).unwrap();
                        let theirs = theirs.encode(pair, true).unwrap();
                        assert_eq!(ours.get_offsets(), theirs.get_offsets());
                        assert_eq!(ours.get_tokens(), theirs.get_tokens());
                        assert_eq!(ours.get_special_tokens_mask(), theirs.get_special_tokens_mask());
                        let of = |encoding: &Encoding| {
                            (0..encoding.len()).map(|i| encoding.token_to_sequence(i)).collect::<Vec<_>>()
                        };
                        assert_eq!(of(&ours), of(&theirs));
                        let cut: usize = rests.iter().flatten().map(|rest| rest.tokens).sum();
                        assert_eq!(ours.len() + cut, whole.encode(pair, true).unwrap().len());
                    }
                }
            }
        }
    }

    /// Of a long text only the start is read, and its tokens are those of the whole text.
    #[test]
    fn the_first_tokens_are_those_of_the_whole_text() {
        let json = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../weights/tokenizer.json")).unwrap();
        let tokenizer = Tokenizer::from_json(&json, 64, false).unwrap();
        let words: String = (0..40_000).map(|i| format!("word{i} of 你好 ")).collect();
        for text in [words, "?! ".repeat(100_000), "ab".repeat(100_000), " ".repeat(200_000), "a ".repeat(40_000)] {
            let first = tokenizer.first_tokens(&text, 0, OffsetType::Byte, 65).unwrap();
            let whole = tokenizer.sequence(&text, 0, OffsetType::Byte, None).unwrap();
            let kept = whole.len().min(65);
            assert_eq!(first.get_ids()[..kept], whole.get_ids()[..kept]);
            assert_eq!(first.get_offsets()[..kept], whole.get_offsets()[..kept]);
            assert!(first.len() <= whole.len().min(130), "{} tokens", first.len());
        }
    }

    #[test]
    fn no_room_for_a_text_is_an_error() {
        let json = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../weights/tokenizer.json")).unwrap();
        let error = Tokenizer::from_json(&json, 2, false).unwrap_err().to_string();
        assert!(error.contains("the maximum length is 2, expected at least 3"), "{error}");
        let tokenizer = Tokenizer::from_json(&json, 4, false).unwrap();
        let error = tokenizer.encode(&[("a", "b").into()], "").unwrap_err().to_string();
        assert!(error.contains("the maximum length is 4, expected at least 5: a pair of texts"), "{error}");
    }
}

//! Normalization one step at a time, so that a chain of replacements cannot make a text grow without end.

use std::sync::{Mutex, PoisonError};

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

/// The longest text that a step puts in, in bytes: also the prefix or suffix of a letter, and a replacement in the
/// character map of a SentencePiece normalizer. The longest published one, of U+FDFA, has 33.
pub(super) const MAX_CONTENT_BYTES: usize = 64;

/// How many times longer a text may become when it is normalized. NFKD makes one character of 3 bytes 33 bytes long,
/// and the byte-level alphabet takes two bytes for one of others.
const MAX_GROWTH: usize = 32;

/// Bytes that a text may grow in any case, so that a prefix can be put before a short one.
const SLACK_BYTES: usize = 1 << 16;

/// The longest text that a step of a normalizer may make, in bytes: 256 MiB. The library needs 17 bytes for each.
const MAX_NORMALIZED_BYTES: usize = 1 << 28;

/// The steps of a normalizer, which may be none.
pub(super) fn steps(normalizer: Option<&NormalizerWrapper>) -> Vec<NormalizerWrapper> {
    match normalizer {
        Some(NormalizerWrapper::Sequence(inner)) => inner.as_ref().iter().flat_map(|step| steps(Some(step))).collect(),
        step => step.cloned().into_iter().collect(),
    }
}

/// The steps of a normalizer, applied to the parts of a text of `length` bytes.
///
/// The library ignores the errors of normalizers where it normalizes texts; they are kept here.
pub(super) struct Stepwise<'a> {
    steps: &'a [NormalizerWrapper],
    length: usize,
    /// Bytes of the parts that are normalized already, or the first error.
    done: Mutex<tokenizers::Result<usize>>,
}

impl<'a> Stepwise<'a> {
    pub(super) fn new(steps: &'a [NormalizerWrapper], length: usize) -> Self {
        Self { steps, length, done: Mutex::new(Ok(0)) }
    }

    /// The first error, if there was one; what was normalized is then to be thrown away.
    pub(super) fn result(self) -> tokenizers::Result<()> {
        self.done.into_inner().unwrap_or_else(PoisonError::into_inner).map(drop)
    }

    /// Applies a step after `before` bytes of other parts.
    fn step(&self, step: &NormalizerWrapper, text: &mut NormalizedString, before: usize) -> tokenizers::Result<()> {
        let check = |found: usize, most: usize| {
            let error = || {
                format!("a text of {} bytes has {found} when it is normalized, expected at most {most}", self.length)
            };
            if found > most { Err(tokenizers::Error::from(error())) } else { Ok(()) }
        };
        check(text.get().len().saturating_mul(growth(step)), MAX_NORMALIZED_BYTES)?;
        step.normalize(text)?;
        check(before + text.get().len(), self.length.saturating_mul(MAX_GROWTH).saturating_add(SLACK_BYTES))
    }
}

impl Normalizer for Stepwise<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(before) = *done {
            let applied = self.steps.iter().try_for_each(|step| self.step(step, text, before));
            *done = applied.map(|()| before + text.get().len());
        }
        Ok(())
    }
}

/// How many times longer a step makes a text of at least one byte, at most.
fn growth(step: &NormalizerWrapper) -> usize {
    match step {
        // Each byte may be an occurrence, and an expression may match nothing before and after it.
        NormalizerWrapper::Replace(replace) => 2 * replace.content.len() + 1,
        NormalizerWrapper::Prepend(_) | NormalizerWrapper::Precompiled(_) => MAX_CONTENT_BYTES + 1,
        // By NFKD, U+FDFA, 3 bytes, becomes 33; all others make less of a text.
        _ => 11,
    }
}

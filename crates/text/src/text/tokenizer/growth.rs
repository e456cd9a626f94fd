//! Normalization one step at a time, so that a chain of replacements cannot make a text grow without end.

use std::sync::{Mutex, PoisonError};

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

use crate::text::tokenizer::expression::Expression;
use crate::text::tokenizer::file::MAX_REPLACEMENT_BYTES;

/// How many times longer a text may become when it is normalized. NFKD makes one character of 3 bytes 33 bytes long,
/// and the byte-level alphabet takes two bytes for one of others.
const MAX_GROWTH: usize = 32;

/// Bytes that a text may grow in any case, so that a prefix can be put before a short one.
const SLACK_BYTES: usize = 1 << 16;

/// The longest text that a step of a normalizer may make, in bytes: 128 MiB. The library needs 17 bytes for each.
const MAX_NORMALIZED_BYTES: usize = 1 << 27;

/// The steps of a normalizer, or none: each with its regular expression, if it has one.
#[derive(Debug, Default)]
pub(super) struct NormalizerSteps(Vec<(NormalizerWrapper, Option<Expression>)>);

impl NormalizerSteps {
    pub(super) fn new(normalizer: Option<&NormalizerWrapper>) -> tokenizers::Result<Self> {
        let mut steps = Self::default();
        normalizer.map_or(Ok(()), |step| steps.push(step))?;
        Ok(steps)
    }

    fn push(&mut self, step: &NormalizerWrapper) -> tokenizers::Result<()> {
        if let NormalizerWrapper::Sequence(steps) = step {
            return steps.as_ref().iter().try_for_each(|step| self.push(step));
        }
        self.0.push((step.clone(), expression_of(step)?));
        Ok(())
    }
}

/// The steps of a normalizer, applied to the parts of a text of `length` bytes.
///
/// The library ignores the errors of normalizers where it normalizes texts; they are kept here.
pub(super) struct Stepwise<'a> {
    steps: &'a NormalizerSteps,
    length: usize,
    /// Bytes of the parts that are normalized already, or the first error.
    done: Mutex<tokenizers::Result<usize>>,
}

impl<'a> Stepwise<'a> {
    pub(super) fn new(steps: &'a NormalizerSteps, length: usize) -> Self {
        Self { steps, length, done: Mutex::new(Ok(0)) }
    }

    /// The first error, if there was one; what was normalized is then to be thrown away.
    pub(super) fn result(self) -> tokenizers::Result<()> {
        self.done.into_inner().unwrap_or_else(PoisonError::into_inner).map(drop)
    }

    /// Applies a step after `before` bytes of other parts.
    fn step(
        &self,
        (step, expression): &(NormalizerWrapper, Option<Expression>),
        text: &mut NormalizedString,
        before: usize,
    ) -> tokenizers::Result<()> {
        let most = text.get().len().saturating_mul(growth(step));
        if most > MAX_NORMALIZED_BYTES {
            let found = format!("a text of {} bytes may have {most} when it is normalized", self.length);
            return Err(format!("{found}, expected at most {MAX_NORMALIZED_BYTES}: cut it").into());
        }
        match (step, expression) {
            (NormalizerWrapper::Replace(replace), Some(expression)) => text.replace(expression, &replace.content)?,
            _ => step.normalize(text)?,
        }
        let found = before + text.get().len();
        let allowed = self.length.saturating_mul(MAX_GROWTH).saturating_add(SLACK_BYTES);
        if found > allowed {
            let text = format!("a text of {} bytes has {found} when it is normalized", self.length);
            return Err(format!("{text}, expected at most {allowed}").into());
        }
        Ok(())
    }
}

impl Normalizer for Stepwise<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(before) = *done {
            let applied = self.steps.0.iter().try_for_each(|step| self.step(step, text, before));
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
        NormalizerWrapper::Prepend(prepend) => prepend.prepend.len() + 1,
        NormalizerWrapper::Precompiled(_) => MAX_REPLACEMENT_BYTES,
        // U+FDFA, 3 bytes, becomes 33.
        NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFKD(_) => 11,
        // U+0390, 2 bytes, becomes 6; a Chinese character gets two spaces.
        NormalizerWrapper::BertNormalizer(_) => 6,
        NormalizerWrapper::NFC(_) | NormalizerWrapper::NFD(_) | NormalizerWrapper::Lowercase(_) => 3,
        NormalizerWrapper::ByteLevel(_) => 2,
        _ => 1,
    }
}

/// The expression of a normalizer that replaces its matches.
fn expression_of(normalizer: &NormalizerWrapper) -> tokenizers::Result<Option<Expression>> {
    let NormalizerWrapper::Replace(replace) = normalizer else { return Ok(None) };
    // The pattern is a private field.
    let step = serde_json::to_value(replace)?;
    step["pattern"]["Regex"].as_str().map(Expression::new).transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::tokenizer::expression::TEXTS;

    #[test]
    fn replacements_equal_those_of_the_library() {
        for expression in [r"\s+(?!\S)", "a*", r"(?<=1)\d|\u{e9}", " "] {
            let step = json!({"type": "Replace", "pattern": {"Regex": expression}, "content": "_-"});
            let theirs: NormalizerWrapper = serde_json::from_value(step).unwrap();
            let ours = expression_of(&theirs).unwrap().unwrap();
            for text in TEXTS {
                let [mut got, mut want] = [NormalizedString::from(text), NormalizedString::from(text)];
                got.replace(&ours, "_-").unwrap();
                theirs.normalize(&mut want).unwrap();
                assert_eq!(got, want, "`{expression}` in {text:?}");
            }
        }
        let plain = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b"});
        assert!(expression_of(&serde_json::from_value(plain).unwrap()).unwrap().is_none());
    }
}

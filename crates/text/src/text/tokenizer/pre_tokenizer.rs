//! The pre-tokenizer of a file in steps, of which those with a regular expression are run here: see [`Expression`].

use tokenizers::pattern::Invert;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

use crate::text::tokenizer::expression::Expression;

/// Words, numbers, spaces and the rest, as GPT-2 splits them: its `encoder.py`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The steps of a pre-tokenizer, or none.
#[derive(Debug, Default)]
pub(super) struct PreTokenizerSteps(Vec<Step>);

#[derive(Debug)]
enum Step {
    Split { expression: Expression, behavior: SplitDelimiterBehavior, invert: bool },
    ByteLevel { gpt2: Expression, byte_level: ByteLevel },
    Other(PreTokenizerWrapper),
}

impl PreTokenizerSteps {
    pub(super) fn new(pre_tokenizer: Option<&PreTokenizerWrapper>) -> tokenizers::Result<Self> {
        let mut steps = Self::default();
        pre_tokenizer.map_or(Ok(()), |step| steps.push(step))?;
        Ok(steps)
    }

    fn push(&mut self, step: &PreTokenizerWrapper) -> tokenizers::Result<()> {
        let step = match step {
            PreTokenizerWrapper::Sequence(steps) => return steps.as_ref().iter().try_for_each(|step| self.push(step)),
            PreTokenizerWrapper::Split(split) => match &split.pattern {
                SplitPattern::Regex(expression) => Step::Split {
                    expression: Expression::new(expression)?,
                    behavior: split.behavior,
                    invert: split.invert,
                },
                SplitPattern::String(_) => Step::Other(step.clone()),
            },
            PreTokenizerWrapper::ByteLevel(byte_level) if byte_level.use_regex => {
                Step::ByteLevel { gpt2: Expression::new(GPT2)?, byte_level: *byte_level }
            }
            _ => Step::Other(step.clone()),
        };
        self.0.push(step);
        Ok(())
    }

    /// Splits and rewrites the parts of a text.
    pub(super) fn apply(&self, parts: &mut PreTokenizedString) -> tokenizers::Result<()> {
        for step in &self.0 {
            match step {
                Step::Split { expression, behavior, invert } => parts.split(|_, text| match invert {
                    true => text.split(Invert(expression), *behavior),
                    false => text.split(expression, *behavior),
                })?,
                Step::ByteLevel { gpt2, byte_level } => {
                    parts.split(|_, mut text| {
                        if byte_level.add_prefix_space && !text.get().starts_with(' ') {
                            text.prepend(" ");
                        }
                        text.split(gpt2, SplitDelimiterBehavior::Isolated)
                    })?;
                    byte_level.use_regex(false).add_prefix_space(false).pre_tokenize(parts)?;
                }
                Step::Other(step) => step.pre_tokenize(parts)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::text::tokenizer::expression::TEXTS;

    /// Pre-tokenizers with expressions give the pieces that the library gives.
    #[test]
    fn pieces_equal_those_of_the_library() {
        let split = |expression: &str, behavior: &str, invert: bool| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert});
        let byte_level = |prefix: bool, regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
        let mut kinds = vec![byte_level(true, true), byte_level(false, true), byte_level(true, false)];
        kinds.push(json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false}));
        for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"] {
            kinds.extend([split(GPT2, behavior, false), split(r"\p{L}+(?=\s)|a*", behavior, true)]);
        }
        let all = json!({"type": "Sequence", "pretokenizers": [kinds[6], {"type": "Digits", "individual_digits": true}, kinds[0]]});
        kinds.push(all);
        for kind in kinds {
            let theirs: PreTokenizerWrapper = serde_json::from_value(kind.clone()).unwrap();
            let ours = PreTokenizerSteps::new(Some(&theirs)).unwrap();
            for text in TEXTS {
                let pieces = |apply: &dyn Fn(&mut PreTokenizedString) -> tokenizers::Result<()>| {
                    let mut parts = PreTokenizedString::from(text);
                    apply(&mut parts).unwrap();
                    let offsets = (tokenizers::OffsetReferential::Original, tokenizers::OffsetType::Byte);
                    let pieces = parts.get_splits(offsets.0, offsets.1);
                    pieces.into_iter().map(|(piece, offsets, _)| (piece.to_string(), offsets)).collect::<Vec<_>>()
                };
                let (got, want) = (pieces(&|parts| ours.apply(parts)), pieces(&|parts| theirs.pre_tokenize(parts)));
                assert_eq!(got, want, "{kind} of {text:?}");
            }
        }
    }
}

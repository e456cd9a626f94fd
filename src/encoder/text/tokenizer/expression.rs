//! The regular expressions of a tokenizer, with an error where the tokenizers library has none.
//!
//! An expression with look-around, as GPT-2's, is searched by backtracking, which fancy-regex ends after a million steps
//! or a million stored places: a million spaces in a row are enough. The library then takes the rest of the text as one
//! piece and reports nothing, which gives other tokens than the Python library (whose engine, Oniguruma, has other limits).

use fancy_regex::{Expr, Regex};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{NormalizedString, Offsets, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

/// Words, numbers, spaces and the rest, as GPT-2 splits them: its `encoder.py`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// How many characters and classes of characters an expression has, those of a counted repetition as often as it counts.
/// Classes are also as long as they are written. Calls of groups count more than is allowed.
pub(super) fn work(expression: &str) -> tokenizers::Result<usize> {
    fn of(expression: &Expr) -> usize {
        let all = |parts: &[Expr]| parts.iter().map(of).fold(0, usize::saturating_add);
        match expression {
            Expr::Literal { val, .. } => val.len(),
            Expr::Delegate { inner, .. } => 4 + inner.len(),
            Expr::Concat(parts) | Expr::Alt(parts) => all(parts),
            Expr::Group(part) | Expr::LookAround(part, _) | Expr::AtomicGroup(part) => of(part),
            Expr::Repeat { child, lo, hi, .. } => {
                let count = if *hi == usize::MAX { *lo } else { *hi };
                of(child).saturating_mul(count.max(1))
            }
            Expr::Conditional { condition, true_branch, false_branch } => {
                [condition, true_branch, false_branch].map(|part| of(part)).into_iter().fold(0, usize::saturating_add)
            }
            Expr::SubroutineCall(_) | Expr::UnresolvedNamedSubroutineCall { .. } => usize::MAX,
            _ => 1,
        }
    }
    Ok(of(&Expr::parse_tree(expression)?.expr))
}

/// A regular expression.
#[derive(Debug)]
pub(super) struct Expression(Regex);

impl Expression {
    fn new(expression: &str) -> tokenizers::Result<Self> {
        Ok(Self(Regex::new(expression)?))
    }

    /// Replaces all that match.
    pub(super) fn replace(&self, text: &mut NormalizedString, content: &str) -> tokenizers::Result<()> {
        text.replace(self, content)
    }
}

impl Pattern for &Expression {
    /// All of the text in pieces: those that match, and those between them.
    fn find_matches(&self, text: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut pieces = Vec::new();
        let mut end = 0;
        for found in self.0.find_iter(text) {
            let found = found.map_err(|e| {
                let text = format!("a text of {} bytes, at byte {end}", text.len());
                format!("the expression `{}` could not be searched in {text}: {e}", self.0.as_str())
            })?;
            if end != found.start() {
                pieces.push(((end, found.start()), false));
            }
            pieces.push(((found.start(), found.end()), true));
            end = found.end();
        }
        if end != text.len() {
            pieces.push(((end, text.len()), false));
        }
        Ok(pieces)
    }
}

/// The expression of a normalizer that replaces its matches.
pub(super) fn of_normalizer(normalizer: &NormalizerWrapper) -> tokenizers::Result<Option<Expression>> {
    let NormalizerWrapper::Replace(_) = normalizer else { return Ok(None) };
    // The pattern is a private field.
    let step = serde_json::to_value(normalizer)?;
    step["pattern"]["Regex"].as_str().map(Expression::new).transpose()
}

/// A pre-tokenizer in steps.
#[derive(Debug, Default)]
pub(super) struct Steps(Vec<Step>);

#[derive(Debug)]
enum Step {
    Split { expression: Expression, behavior: SplitDelimiterBehavior, invert: bool },
    ByteLevel { gpt2: Expression, byte_level: ByteLevel },
    Other(PreTokenizerWrapper),
}

impl Steps {
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
                Step::Split { expression, behavior, invert: true } => {
                    parts.split(|_, text| text.split(Invert(expression), *behavior))?;
                }
                Step::Split { expression, behavior, invert: false } => {
                    parts.split(|_, text| text.split(expression, *behavior))?;
                }
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

    const TEXTS: [&str; 6] =
        ["", " ", "It's 12.5  dollars,\n\n\tdoesn't it?  ", "你好 caf\u{e9} e\u{301} 1\u{ff12}3", "aaa", "  a\u{a0}b "];

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
            let ours = Steps::new(Some(&theirs)).unwrap();
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

    #[test]
    fn replacements_equal_those_of_the_library() {
        for expression in [r"\s+(?!\S)", "a*", r"(?<=1)\d|\u{e9}", " "] {
            let step = json!({"type": "Replace", "pattern": {"Regex": expression}, "content": "_-"});
            let theirs: NormalizerWrapper = serde_json::from_value(step).unwrap();
            let ours = of_normalizer(&theirs).unwrap().unwrap();
            for text in TEXTS {
                let [mut got, mut want] = [NormalizedString::from(text), NormalizedString::from(text)];
                ours.replace(&mut got, "_-").unwrap();
                tokenizers::Normalizer::normalize(&theirs, &mut want).unwrap();
                assert_eq!(got, want, "`{expression}` in {text:?}");
            }
        }
        let plain = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b"});
        assert!(of_normalizer(&serde_json::from_value(plain).unwrap()).unwrap().is_none());
    }
}

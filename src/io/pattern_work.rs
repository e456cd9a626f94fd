//! The work of regular expressions of files that others wrote, counted before any is compiled.

use fancy_regex::Expr;

use crate::error::{Error, Result};

/// The longest pattern, in bytes. Published ones have up to 1,000.
const MAX_PATTERN_BYTES: usize = 1 << 12;

/// The most work of all patterns of a file: an automaton takes some 90 KB for a class of all letters, which counts 48.
const MAX_PATTERN_WORK: usize = 1 << 16;

/// The work of the regular expressions of a file so far.
#[derive(Debug, Default)]
pub struct PatternWork(usize);

impl PatternWork {
    /// Adds the work of a pattern of the key or part `name`, before it is compiled.
    ///
    /// # Errors
    /// A pattern that is not valid or longer than 4,096 bytes; patterns whose automata would take more than some
    /// hundred megabytes together.
    pub fn add(&mut self, name: &str, pattern: &str) -> Result<()> {
        let length = pattern.len();
        if length > MAX_PATTERN_BYTES {
            let what = format!("the number of bytes of a pattern of `{name}`");
            return Err(Error::value(what, length, format!("at most {MAX_PATTERN_BYTES}")));
        }
        let tree = Expr::parse_tree(pattern).map_err(|e| {
            Error::value(format!("a pattern of `{name}`"), pattern, format!("a regular expression: {e}"))
        })?;
        self.0 = self.0.saturating_add(work(&tree.expr));
        if self.0 > MAX_PATTERN_WORK {
            let what = format!(
                "the work of the patterns up to those of `{name}`, by characters and classes, repeated ones counted \
                     as often,"
            );
            Err(Error::value(what, self.0, format!("at most {MAX_PATTERN_WORK}")))
        } else {
            Ok(())
        }
    }
}

/// The size of the automaton of an expression, in characters: a class of characters counts 32 and 8 for each byte, and
/// what is repeated counts as often as it is repeated. An expression that calls groups counts more than is allowed.
fn work(expression: &Expr) -> usize {
    let all = |parts: &[Expr]| parts.iter().map(work).fold(0, usize::saturating_add);
    match expression {
        Expr::Literal { val, .. } => val.len(),
        Expr::Delegate { inner, .. } => 8 * (4 + inner.len()),
        Expr::Concat(parts) | Expr::Alt(parts) => all(parts),
        Expr::Group(part) | Expr::LookAround(part, _) | Expr::AtomicGroup(part) => work(part),
        Expr::Repeat { child, lo, hi, .. } => {
            let count = if *hi == usize::MAX { *lo } else { *hi };
            work(child).saturating_mul(count.max(1))
        }
        Expr::Conditional { condition, true_branch, false_branch } => {
            [condition, true_branch, false_branch].map(|part| work(part)).into_iter().fold(0, usize::saturating_add)
        }
        Expr::SubroutineCall(_) | Expr::UnresolvedNamedSubroutineCall { .. } => usize::MAX,
        _ => 8,
    }
}

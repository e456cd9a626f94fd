//! The biases, norms and sinks that transformers gives the layers of a model type, by the keys of its configuration.
//!
//! transformers creates the parameters of a layer by the configuration: what a file lacks, it draws at random; what a
//! file has beyond them, it ignores. Neither is the model that was trained, so a file that contradicts its own
//! configuration is an error here.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layer::Layer;

/// A parameter that only some layers have: its letter in `layer_tensors.txt`, and its name.
const PARAMETERS: [(char, &str); 10] = [
    ('q', "q_proj.bias"),
    ('k', "k_proj.bias"),
    ('v', "v_proj.bias"),
    ('o', "o_proj.bias"),
    ('n', "q_norm.weight"),
    ('b', "q_norm.bias"),
    ('c', "k_norm.bias"),
    ('s', "sinks"),
    ('t', "relative_position_bias_table"),
    ('r', "rel_pos_h"),
];

/// When layers have some parameters.
struct Rule {
    /// The letters of the parameters.
    letters: &'static str,
    /// The key that decides, the value with which layers have them, and the value if it is not stated. `None`: all
    /// layers have them.
    key: Option<(&'static str, bool, bool)>,
}

/// The rules by `model_type`: a line of `layer_tensors.txt` each, written by `tests/golden/layer_tensors.py`.
static RULES: LazyLock<HashMap<&str, Vec<Rule>>> = LazyLock::new(|| {
    let rule = |word: &'static str| match word.split_once(':') {
        None => Rule { letters: word, key: None },
        Some((letters, key)) => {
            let (key, stated) = key.split_once('=').unwrap_or((key, ""));
            let name = key.trim_start_matches('!');
            Rule { letters, key: Some((name, name == key, stated == "true")) }
        }
    };
    let lines = include_str!("layer_tensors.txt").lines().filter(|line| !line.starts_with('#'));
    let words = lines.map(|line| line.split_once(' ').unwrap_or((line, "")));
    words.map(|(name, rules)| (name, rules.split_ascii_whitespace().map(rule).collect())).collect()
});

impl Layer<'_> {
    /// Checks that the layer, which transformers' own class runs, has the parameters that its configuration says it
    /// has. `has`: whether the checkpoint holds a parameter, by its letter and its name.
    pub(crate) fn check_tensors(&self, has: impl Fn(char, &str) -> bool) -> Result<()> {
        let Some(rules) = RULES.get(self.model_type) else { return Ok(()) };
        for (letter, name) in PARAMETERS {
            let rule = rules.iter().find(|rule| rule.letters.contains(letter));
            // Layers of one model differ in it.
            if rule.is_some_and(|rule| rule.letters.ends_with('?')) {
                continue;
            }
            let stated = match rule.and_then(|rule| rule.key) {
                Some((key, value, default)) => Some((key, value, self.flag(key)?.unwrap_or(default))),
                None => None,
            };
            let is_expected = stated.map_or(rule.is_some(), |(_, value, stated)| value == stated);
            let words = |is_there: bool| if is_there { "present" } else { "absent" };
            let why = match stated {
                Some((key, _, stated)) => format!("`{key}` is {stated}"),
                None => {
                    format!("layers of `{}` {} it", self.model_type, if is_expected { "have" } else { "do not have" })
                }
            };
            let expected = || format!("{}: {why}", words(is_expected));
            let what = || format!("`{name}` of `{}`", self.prefix);
            ensure!(has(letter, name) == is_expected, Error::value(what(), words(!is_expected), expected()));
        }
        Ok(())
    }
}

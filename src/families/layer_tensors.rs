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
#[rustfmt::skip]
const PARAMETERS: [(char, &str); 12] = [
    ('q', "q_proj.bias"), ('k', "k_proj.bias"), ('v', "v_proj.bias"), ('o', "o_proj.bias"), ('n', "q_norm.weight"),
    ('b', "q_norm.bias"), ('c', "k_norm.bias"), ('g', "gate_bias"), ('i', "attn_sub_norm.bias"), ('s', "sinks"),
    ('t', "relative_position_bias_table"), ('r', "rel_pos_h"),
];

/// When layers have some parameters.
struct Rule {
    /// The letters of the parameters.
    letters: &'static str,
    /// Which layers have them: the `last` one, those with a `window` or with `none`, of `self`-attention; empty: all.
    layers: &'static str,
    /// The keys that decide, one of which is enough, the value with which layers have them, and the value if it is not
    /// stated. `None`: all layers have them.
    keys: Option<(&'static str, bool, bool)>,
}

/// The rules by `model_type`: a line of `layer_tensors.txt` each, written by `tests/golden/layer_tensors.py`.
static RULES: LazyLock<HashMap<&str, Vec<Rule>>> = LazyLock::new(|| {
    let rule = |word: &'static str| {
        let (whose, key) = word.split_once(':').map_or((word, None), |(whose, key)| (whose, Some(key)));
        let (letters, layers) = whose.split_once('@').unwrap_or((whose, ""));
        let keys = key.map(|key| {
            let (names, stated) = key.split_once('=').unwrap_or((key, ""));
            (names.trim_start_matches('!'), !names.starts_with('!'), stated == "true")
        });
        Rule { letters, layers, keys }
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
            let found = rules.iter().find(|rule| rule.letters.contains(letter) && self.is_among(rule.layers));
            // Layers of one model differ in it.
            if found.is_some_and(|rule| rule.letters.ends_with('?')) {
                continue;
            }
            let state = |(keys, value, default): (&'static str, bool, bool)| {
                let flags = keys.split('|').map(|key| Ok(self.flag(key)?.unwrap_or(default)));
                Ok::<_, Error>((keys, value, flags.collect::<Result<Vec<_>>>()?.contains(&true)))
            };
            let stated = found.and_then(|rule| rule.keys).map(state).transpose()?;
            let is_expected = stated.map_or(found.is_some(), |(_, value, stated)| value == stated);
            let words = |is_there: bool| if is_there { "present" } else { "absent" };
            let have = if is_expected { "have" } else { "do not have" };
            let why = match stated {
                Some((keys, _, stated)) => format!("`{}` is {stated}", keys.replace('|', "` or `")),
                None => format!("layers of `{}` {have} it", self.model_type),
            };
            let expected = || format!("{}: {why}", words(is_expected));
            let what = || format!("`{name}` of `{}`", self.prefix);
            ensure!(has(letter, name) == is_expected, Error::value(what(), words(!is_expected), expected()));
        }
        Ok(())
    }

    /// Whether the layer is one of those that a rule is for. Keys of another kind are errors of the configuration.
    fn is_among(&self, layers: &str) -> bool {
        match layers {
            "" => true,
            "self" => !self.cross,
            "last" => self.number("num_hidden_layers").is_ok_and(|layers| layers == Some(self.index + 1)),
            _ => self.has_window().is_ok_and(|has_window| has_window == (layers == "window")),
        }
    }
}

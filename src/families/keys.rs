//! Config keys that change attention: a layer reads them, or a configuration that sets them is refused, unless
//! transformers ignores the key ([`known`](crate::families::config_classes)).
//!
//! [`RecordedSection`] notes what the code of a layer reads while it configures the layer, so that no list has to say
//! it again. A layer reads a key of its family also where the key does not matter: before the branch that needs it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::ensure;
use crate::error::{Error, Result};
use crate::families::config_classes::is_ignored;
use crate::families::family::{Family, LayerPositions, RotaryLayers};
use crate::families::layer::Layer;

/// A check that a value does not pass for absent, and the name of the values that pass it.
type Kind = (fn(&Value) -> bool, &'static str);

const NUMBER: Kind = (Value::is_number, "a number");
const FLAG: Kind = (Value::is_boolean, "true or false");
const SET: Kind = (Value::is_object, "a set of parameters");
/// Every value: the code that reads it checks.
const ANY: Kind = (|_| true, "");

/// Each key that changes attention, with its kind and what it sets: those of the lines of `keys.txt`.
pub(super) fn keys_that_change() -> impl Iterator<Item = (&'static str, Kind, &'static str)> {
    let lines = include_str!("keys.txt").lines().filter(|line| !line.starts_with('#'));
    let group = |line: &'static str| {
        let mut parts = line.split(": ");
        let kind = match parts.next()? {
            "number" => NUMBER,
            "flag" => FLAG,
            "set" => SET,
            "any" => ANY,
            other => unreachable!("kind `{other}` in keys.txt"),
        };
        let what = parts.next()?;
        Some(parts.next()?.split(' ').map(move |key| (key, kind, what)))
    };
    lines.filter_map(group).flatten()
}

/// Other numbers, at the top or in a set of rotary parameters, whose kind is checked whether a layer reads them or not.
#[rustfmt::skip]
const NUMBERS: &[&str] = &[
    "factor", "attention_factor", "llama_4_scaling_beta", "alpha", "attn_scale", "floor_scale", "beta_fast", "beta_slow",
    "mscale", "mscale_all_dim", "low_freq_factor", "high_freq_factor", "rms_norm_eps", "layer_norm_eps",
    "layer_norm_epsilon", "norm_eps",
];
/// Other flags whose kind is checked whether a layer reads them or not.
const FLAGS: &[&str] = &["is_causal", "use_sliding_window"];

/// A section of a `config.json`, and the keys that have been read of it.
pub(crate) struct RecordedSection<'a> {
    pub json: &'a Value,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> RecordedSection<'a> {
    pub fn new(json: &'a Value) -> Self {
        Self { json, read: RefCell::default() }
    }

    /// The value of a key, which counts as read.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.note(&[key]);
        self.json.get(key)
    }

    /// Counts keys as read whose value something else has, such as the weights.
    pub fn note(&self, keys: &[&str]) {
        self.read.borrow_mut().extend(keys.iter().map(|key| (*key).to_string()));
    }
}

/// Checks the kinds of keys, also in sets of rotary parameters and in the sets of each kind of layer.
fn check_kinds(keys: &Value, is_read: &dyn Fn(&str) -> bool) -> Result<()> {
    let with_kind = |keys: &'static [&str], kind: Kind| keys.iter().map(move |key| (*key, kind));
    let listed = keys_that_change().filter(|(key, ..)| is_read(key)).map(|(key, kind, _)| (key, kind));
    for (key, (fits, kind)) in listed.chain(with_kind(NUMBERS, NUMBER)).chain(with_kind(FLAGS, FLAG)) {
        match keys.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(value) if !fits(value) => return Err(Error::value(format!("config key `{key}`"), value, kind)),
            Some(value) if kind == SET.1 => check_kinds(value, &|_| true)?,
            Some(_) => {}
        }
    }
    let mut sets = ["full_attention", "sliding_attention"].into_iter().filter_map(|kind| keys.get(kind));
    sets.try_for_each(|set| check_kinds(set, &|_| true))
}

impl Layer<'_> {
    pub(super) fn unsupported(&self, key: &str, value: &Value, what: &str) -> Error {
        let (key, value, model_type) = (key.to_string(), value.to_string(), self.model_type.to_string());
        Error::UnsupportedKey { key, value, model_type, what: what.to_string() }
    }

    /// Whether the layer has read a key so far, or its row lists it as one that it reads or ignores.
    pub(super) fn has_read(&self, key: &str) -> bool {
        let Family { own_keys, ignored_keys, .. } = self.family;
        self.section.read.borrow().contains(key) || own_keys.contains(&key) || ignored_keys.contains(&key)
    }

    /// Checks that the layer, which is configured, has read every key of its section that changes attention.
    /// `has_class`: whether transformers' own class runs the file, which ignores keys that it does not have.
    pub(crate) fn check_keys_are_read(&self, has_class: bool) -> Result<()> {
        const POSITIONS: &str = "position_embedding_type";
        // Jina-BERT has code of its own, and no class has ALiBi by this key.
        if let Some(alibi) = self.section.json.get(POSITIONS).filter(|stated| has_class && *stated == "alibi") {
            return Err(self.unsupported(
                POSITIONS,
                alibi,
                "ALiBi, for which the file has to name its code (`auto_map`)",
            ));
        }
        for (key, _, what) in keys_that_change() {
            match self.section.json.get(key) {
                None | Some(Value::Null | Value::Bool(false)) => {}
                // All of a head is rotated, as if nothing were stated.
                Some(value) if ["rotary_pct", "rotary_emb_fraction"].contains(&key) && value.as_f64() == Some(1.0) => {}
                Some(_) if self.has_read(key) || has_class && is_ignored(key, self) => {}
                Some(value) => return Err(self.unsupported(key, value, what)),
            }
        }
        Ok(())
    }

    /// Checks the kinds of the keys that the layer has read, so that none passes for absent.
    pub(crate) fn check_kinds(&self) -> Result<()> {
        // Ultrabert's files have a list there, whose kind is checked where it is read.
        let is_list = |key: &str| key == "rope_theta" && self.reads("attention_windows");
        check_kinds(self.section.json, &|key| self.has_read(key) && !is_list(key))
    }

    /// Checks the keys that the family's row requires and forbids.
    pub(super) fn check_keys(&self) -> Result<()> {
        let (section, family) = (self.section.json, self.family);
        for key in family.required_keys {
            if section.get(key).is_none_or(Value::is_null) {
                let expected = format!("stated: no default of `{}` is known", self.model_type);
                return Err(Error::config(key, "absent", expected));
            }
        }
        for (key, what) in family.forbidden_keys {
            let (key, must_hold) = key.strip_suffix("=false").map_or((*key, false), |key| (key, true));
            let is_wrong = |value: &&Value| match value {
                Value::Bool(false) => must_hold,
                Value::Null => false,
                _ => !must_hold,
            };
            if let Some(value) = section.get(key).filter(is_wrong) {
                return Err(self.unsupported(key, value, what));
            }
        }
        for required in family.required_values {
            let value = section.get(required.key).unwrap_or(&Value::Null);
            let is_here = required.below.is_none_or(|part| self.is_below(part));
            let is_right = !is_here || value.as_str() == Some(required.value);
            ensure!(is_right, self.unsupported(required.key, value, required.otherwise));
        }
        let key = "position_embedding_type";
        match section.get(key) {
            Some(value) if !self.has_positions(value.as_str().unwrap_or_default()) => {
                Err(self.unsupported(key, value, "positions inside attention"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the family has a value of `position_embedding_type`.
    fn has_positions(&self, value: &str) -> bool {
        let rotary = match self.family.positions {
            LayerPositions::Rotary(row) => Some(row),
            _ => None,
        };
        match value {
            "" | "absolute" => true,
            "rotary" | "rope" => rotary.is_some(),
            "rope_gptj" => rotary.is_some_and(|row| row.interleaved),
            // The row decides what the value means, as `nope` in Granite's hybrids. ALiBi is Jina-BERT's alone.
            other if other != "alibi" && rotary.is_some_and(|row| matches!(row.layers, RotaryLayers::IfStated(_))) => {
                true
            }
            other => self.reads_value("position_embedding_type", other),
        }
    }
}

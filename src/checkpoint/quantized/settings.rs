//! The keys of `config.json` that describe quantized modules.

use std::path::Path;

use serde_json::Value;

use super::module::{Checked, Fault};
use crate::error::Result;
use crate::io::{is_present, read_json};

/// The keys of `config.json` that hold it: MLX has the first, everything else the second.
const SECTIONS: [&str; 2] = ["quantization", "quantization_config"];

/// The part of a `config.json` that describes quantized modules; none without a file.
#[derive(Clone, Default)]
pub(crate) struct Settings(Option<Value>);

impl Settings {
    /// Those of the model that a `config.json` describes: its own, or of the first part that has some.
    pub fn new(config: &Value) -> Self {
        let own = |section: &Value| {
            SECTIONS.iter().find_map(|key| section.get(key).filter(|value| value.is_object())).cloned()
        };
        let parts = || config.as_object().into_iter().flatten().find_map(|(_, part)| own(part));
        Self(own(config).or_else(parts))
    }

    /// Those of the `config.json` in the folder of a file of weights, if there is one.
    pub fn beside(weights: &Path) -> Result<Self> {
        let path = weights.with_file_name("config.json");
        if is_present(&path)? { Ok(Self::new(&read_json(&path)?)) } else { Ok(Self::default()) }
    }

    /// The value of a key for a module: MLX may give a module values of its own under its name.
    pub fn value(&self, module: &str, key: &str) -> Option<&Value> {
        let settings = self.0.as_ref()?;
        settings.get(module).and_then(|own| own.get(key)).or_else(|| settings.get(key)).filter(|value| !value.is_null())
    }

    /// A positive number that the format cannot be read without.
    pub fn number(&self, module: &str, key: &str, name: &str) -> Checked<usize> {
        let value = self.value(module, key);
        let number = value.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        number.ok_or_else(|| {
            let found = value.map_or("no".to_string(), |value| format!("{value} as"));
            self.fault(name, &format!("{found} `{key}`"), "a positive number")
        })
    }

    /// Checks the text of a key, which may be absent.
    pub fn check_text(&self, module: &str, key: &str, expected: &str, name: &str) -> Checked<()> {
        match self.value(module, key) {
            Some(value) if !value.as_str().is_some_and(|text| text.eq_ignore_ascii_case(expected)) => {
                let found = value.as_str().map_or_else(|| value.to_string(), str::to_string);
                Err(self.fault(name, &format!("the `{key}` {found}"), expected))
            }
            _ => Ok(()),
        }
    }

    /// The sizes of blocks that compressed-tensors states for a group of modules.
    pub fn block_structure(&self) -> Option<&Value> {
        let groups = self.0.as_ref()?.get("config_groups")?.as_object()?;
        groups.values().find_map(|group| group.get("weights")?.get("block_structure").filter(|value| !value.is_null()))
    }

    /// The name of a transform of compressed-tensors that the model computes at run time, such as a rotation of inputs.
    /// Those of weights are in the stored numbers.
    pub fn run_time_transform(&self) -> Option<&str> {
        let is_stored = |apply: &Value| matches!(apply["location"].as_str(), Some("weight_input" | "weight_output"));
        let are_stored = |scheme: &Value| scheme["apply"].as_array().is_some_and(|all| all.iter().all(is_stored));
        let schemes = self.0.as_ref()?.get("transform_config")?.get("config_groups")?.as_object()?;
        schemes.iter().find(|(_, scheme)| !are_stored(scheme)).map(|(name, _)| name.as_str())
    }

    /// Whether there are any.
    pub fn are_known(&self) -> bool {
        self.0.is_some()
    }

    /// The fault of the tensor `name` whose settings are `found`.
    pub fn fault(&self, name: &str, found: &str, expected: &str) -> Fault {
        let found = if self.are_known() {
            format!("has {found} in the `quantization_config` of config.json")
        } else {
            "is quantized, and there is no config.json with a `quantization_config`".to_string()
        };
        Fault::new(name, found, format!("{expected} (files in memory take it by `with_quantization_config`)"))
    }
}

/// Removes from a parsed `config.json` what it states about quantized modules: for a folder whose weights are written
/// dequantized, which transformers would read as quantized otherwise.
pub fn remove_quantization_config(config: &mut Value) {
    let Some(keys) = config.as_object_mut() else { return };
    let remove = |keys: &mut serde_json::Map<String, Value>| SECTIONS.iter().for_each(|key| _ = keys.remove(*key));
    remove(keys);
    keys.values_mut().filter_map(Value::as_object_mut).for_each(remove);
}

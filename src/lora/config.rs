//! `adapter_config.json`: which weights an adapter changes, and by how much.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::ensure;
use crate::error::{Error, Result};
use crate::io::read_json;
use crate::setters;

/// The largest rank. Published adapters have up to 512.
pub(super) const MAX_RANK: usize = 1 << 16;

/// Keys that concern training, other programs or how the adapter was made, and not what it computes. An initialization
/// that changes the base model is told by `init_lora_weights`.
#[rustfmt::skip]
const WITHOUT_EFFECT: [&str; 14] = [
    "lora_dropout", "inference_mode", "auto_mapping", "revision", "peft_version", "loftq_config", "eva_config",
    "corda_config", "lora_ga_config", "velora_config", "runtime_config", "megatron_core", "qalora_group_size",
    "peft_type",
];

/// Values of `init_lora_weights` that change the weights of the base model, which the base of a checkpoint does not
/// have.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Which biases an adapter replaces: the key `bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoraBias {
    /// None of them.
    #[default]
    None,
    /// Those of all layers.
    All,
    /// Those of the layers with a low-rank change.
    LoraOnly,
}

/// Modules by their names: the keys `target_modules` and `exclude_modules`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
pub enum TargetModules {
    /// Modules whose name is one of these, or ends with one of them after a dot.
    Names(Vec<String>),
    /// Modules whose whole name matches this regular expression. As a target, `all-linear` is every linear layer.
    Pattern(String),
}

/// The configuration of a LoRA adapter, with the keys of PEFT's `LoraConfig`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LoraConfig {
    /// The rank of the changes.
    pub r: usize,
    /// The changes are multiplied by `lora_alpha / r`.
    pub lora_alpha: f64,
    /// Whether they are multiplied by `lora_alpha / √r` instead ([Kalajdzievski
    /// 2023](https://arxiv.org/abs/2312.03732)).
    pub use_rslora: bool,
    /// Whether each output has a magnitude of its own (DoRA, [Liu 2024](https://arxiv.org/abs/2402.09353)).
    pub use_dora: bool,
    /// Whether square weights are stored `(in, out)`, as GPT-2's. The shape shows it for all others.
    pub fan_in_fan_out: bool,
    /// Which biases are replaced.
    pub bias: LoraBias,
    /// Which modules are changed.
    pub target_modules: TargetModules,
    /// Which of them are not changed after all.
    pub exclude_modules: Option<TargetModules>,
    /// Modules of which the adapter holds all weights, such as a new head.
    pub modules_to_save: Vec<String>,
    /// Ranks of modules that differ from `r`: by the end of the module's name, or a regular expression for it.
    pub rank_pattern: BTreeMap<String, usize>,
    /// Values of `lora_alpha` of modules that differ from it.
    pub alpha_pattern: BTreeMap<String, f64>,
    /// The indices of the layers that are changed; empty for all.
    pub layers_to_transform: Vec<usize>,
    /// The names before these indices, such as `layer`; empty for any.
    pub layers_pattern: Vec<String>,
    /// Rows of tables of embeddings, which the adapter holds: by the end of the table's name, or of the table of words
    /// alone, whose name is empty then.
    pub trainable_token_indices: BTreeMap<String, Vec<usize>>,
    /// The use of the adapted model, such as `FEATURE_EXTRACTION`. Without effect.
    pub task_type: Option<String>,
    /// The folder or the hub id of the base model.
    pub base_model_name_or_path: Option<String>,
}

impl LoraConfig {
    /// Changes of rank `r` of the modules with these names, with `lora_alpha` as their factor times `r`.
    pub fn new(r: usize, lora_alpha: f64, target_modules: &[&str]) -> Self {
        Self {
            r,
            lora_alpha,
            use_rslora: false,
            use_dora: false,
            fan_in_fan_out: false,
            bias: LoraBias::None,
            target_modules: TargetModules::Names(target_modules.iter().map(|name| name.to_string()).collect()),
            exclude_modules: None,
            modules_to_save: Vec::new(),
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            layers_to_transform: Vec::new(),
            layers_pattern: Vec::new(),
            trainable_token_indices: BTreeMap::new(),
            task_type: None,
            base_model_name_or_path: None,
        }
    }

    setters! {
        /// Sets whether the factor is `lora_alpha / √r`.
        with_use_rslora, use_rslora: bool = use_rslora;
        /// Sets whether each output has a magnitude of its own.
        with_use_dora, use_dora: bool = use_dora;
        /// Sets which modules are changed.
        with_target_modules, target_modules: TargetModules = target_modules;
        /// Sets ranks of modules that differ from `r`.
        with_rank_pattern, rank_pattern: BTreeMap<String, usize> = rank_pattern;
        /// Sets values of `lora_alpha` of modules that differ from it.
        with_alpha_pattern, alpha_pattern: BTreeMap<String, f64> = alpha_pattern;
        /// Sets the layers that are changed.
        with_layers_to_transform, layers_to_transform: Vec<usize> = layers_to_transform;
        /// Sets what the adapted model is for.
        with_task_type, task_type: String = Some(task_type);
        /// Sets the folder or the hub id of the base model.
        with_base_model_name_or_path, base_model_name_or_path: String = Some(base_model_name_or_path);
    }

    /// Reads an `adapter_config.json`.
    ///
    /// # Errors
    /// A file that is missing or malformed; a `peft_type` other than `LORA`; a key that would change the result and
    /// that this version does not apply; a rank or a factor out of range. The error holds the path.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::from_json(&read_json(path)?).map_err(|e| Error::file(path, e))
    }

    /// Reads the keys of an `adapter_config.json`.
    ///
    /// # Errors
    /// The errors of [`from_file`](Self::from_file), without a path.
    pub fn from_json(keys: &Value) -> Result<Self> {
        let Value::Object(keys) = keys else { return Err(Error::value("the configuration", keys, "a JSON object")) };
        match keys.get("peft_type") {
            Some(Value::String(kind)) if kind == "LORA" => {}
            other => return Err(unexpected("peft_type", other.unwrap_or(&Value::Null), "LORA")),
        }
        let mut keys = Keys(keys.clone());
        let mut config = Self::new(keys.take("r", "a rank")?.unwrap_or(8), 8.0, &[]);
        config.lora_alpha = keys.take("lora_alpha", "a number")?.unwrap_or(8.0);
        config.use_rslora = keys.take("use_rslora", "true or false")?.unwrap_or(false);
        config.use_dora = keys.take("use_dora", "true or false")?.unwrap_or(false);
        config.fan_in_fan_out = keys.take("fan_in_fan_out", "true or false")?.unwrap_or(false);
        config.bias = keys.take("bias", "none, all or lora_only")?.unwrap_or_default();
        if let Some(targets) = keys.take_modules("target_modules")? {
            config.target_modules = targets;
        }
        config.exclude_modules = keys.take_modules("exclude_modules")?;
        config.modules_to_save = keys.take("modules_to_save", "a list of names")?.unwrap_or_default();
        config.rank_pattern = keys.take("rank_pattern", "ranks by names")?.unwrap_or_default();
        config.alpha_pattern = keys.take("alpha_pattern", "numbers by names")?.unwrap_or_default();
        config.layers_to_transform = keys.take_one_or_more("layers_to_transform", "an index or a list of them")?;
        config.layers_pattern = keys.take_one_or_more("layers_pattern", "a name or a list of them")?;
        config.trainable_token_indices = keys.take_tokens("trainable_token_indices")?;
        config.task_type = keys.take("task_type", "a name")?;
        config.base_model_name_or_path = keys.take("base_model_name_or_path", "a folder or a hub id")?;
        keys.check_others()?;
        config.validate()?;
        Ok(config)
    }

    /// Checks ranks and factors.
    ///
    /// # Errors
    /// [`Error::Config`] with the key, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        for rank in self.rank_pattern.values().chain([&self.r]) {
            ensure!((1..=MAX_RANK).contains(rank), Error::config("r", rank, format!("1 to {MAX_RANK}")));
        }
        for alpha in self.alpha_pattern.values().chain([&self.lora_alpha]) {
            ensure!((*alpha as f32).is_finite(), Error::config("lora_alpha", alpha, "a finite number"));
        }
        Ok(())
    }

    /// The number of names and patterns that a module may be compared with.
    pub(super) fn names(&self) -> usize {
        let modules = [Some(&self.target_modules), self.exclude_modules.as_ref()].into_iter().flatten();
        let modules = modules.map(|modules| if let TargetModules::Names(names) = modules { names.len() } else { 1 });
        modules.sum::<usize>()
            + self.modules_to_save.len()
            + self.rank_pattern.len()
            + self.alpha_pattern.len()
            + self.layers_to_transform.len()
            + self.layers_pattern.len()
            + self.trainable_token_indices.len()
    }

    /// The factor of a change of rank `r`.
    pub(super) fn scale(&self, r: usize, alpha: f64) -> f64 {
        let r = r as f64;
        alpha / if self.use_rslora { r.sqrt() } else { r }
    }
}

/// The keys of an `adapter_config.json` that have not been read yet.
struct Keys(Map<String, Value>);

impl Keys {
    /// Takes the value at `key`; `None` if it is absent or null.
    fn take<T: DeserializeOwned>(&mut self, key: &str, expected: &str) -> Result<Option<T>> {
        match self.0.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(&value).map(Some).map_err(|_| unexpected(key, &value, expected)),
        }
    }

    fn take_one_or_more<T: DeserializeOwned>(&mut self, key: &str, expected: &str) -> Result<Vec<T>> {
        match self.0.get(key) {
            Some(Value::Array(_)) => Ok(self.take(key, expected)?.unwrap_or_default()),
            _ => Ok(self.take(key, expected)?.into_iter().collect()),
        }
    }

    fn take_modules(&mut self, key: &str) -> Result<Option<TargetModules>> {
        match self.0.get(key) {
            Some(Value::String(_)) => Ok(self.take(key, "a regular expression")?.map(TargetModules::Pattern)),
            _ => Ok(self.take(key, "a list of names or a regular expression")?.map(TargetModules::Names)),
        }
    }

    fn take_tokens(&mut self, key: &str) -> Result<BTreeMap<String, Vec<usize>>> {
        const EXPECTED: &str = "indices of tokens, or such lists by the names of tables";
        match self.0.get(key) {
            Some(Value::Array(_)) => {
                Ok(self.take(key, EXPECTED)?.map(|rows| (String::new(), rows)).into_iter().collect())
            }
            _ => Ok(self.take(key, EXPECTED)?.unwrap_or_default()),
        }
    }

    /// Refuses every other key that is set, and an initialization that changed the base model.
    fn check_others(mut self) -> Result<()> {
        if let Some(Value::String(how)) = self.0.remove("init_lora_weights")
            && CHANGES_BASE.iter().any(|start| how.to_lowercase().starts_with(start))
        {
            let expected = "one that leaves the base model as it is; PEFT converts the adapter when it saves it with \
                            path_initial_model_for_weight_conversion";
            return Err(Error::value("adapter config key `init_lora_weights`", how, expected));
        }
        match self.0.iter().find(|(key, value)| !WITHOUT_EFFECT.contains(&key.as_str()) && !is_unset(value)) {
            Some((key, value)) => Err(unexpected(key, value, "null or false: this version does not apply it")),
            None => Ok(()),
        }
    }
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn unexpected(key: &str, value: &Value, expected: &str) -> Error {
    Error::value(format!("adapter config key `{key}`"), value, expected)
}

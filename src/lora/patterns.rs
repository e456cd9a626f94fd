//! Which modules a configuration names, by names and regular expressions, as PEFT matches them.

use std::collections::BTreeMap;

use fancy_regex::{Regex, RegexBuilder};

use crate::error::{Error, Result};
use crate::lora::config::{LoraConfig, TargetModules};

/// Steps and bytes that one regular expression may take. Those of published adapters take some hundred steps.
const MAX_STEPS: usize = 100_000;
const MAX_BYTES: usize = 1 << 20;

/// The most comparisons of a module with a name or a pattern for one adapter.
const MAX_COMPARISONS: usize = 1 << 22;

/// The patterns of a configuration, compiled.
pub(super) struct Patterns<'a> {
    config: &'a LoraConfig,
    targets: Option<Regex>,
    excluded: Option<Regex>,
    saved: Vec<Regex>,
    layers: Vec<Regex>,
    ranks: Vec<(Regex, usize)>,
    alphas: Vec<(Regex, f64)>,
}

impl<'a> Patterns<'a> {
    /// `modules` is the number of modules that are to be compared.
    pub(super) fn new(config: &'a LoraConfig, modules: usize) -> Result<Self> {
        config.validate()?;
        let whole = |targets: &TargetModules, key| match targets {
            TargetModules::Pattern(pattern) if pattern != ALL_LINEAR => {
                compile(key, &format!("^(?:{pattern})$")).map(Some)
            }
            _ => Ok(None),
        };
        let excluded = config.exclude_modules.as_ref();
        let saved = config.modules_to_save.iter();
        let layers = config.layers_pattern.iter();
        let patterns = Self {
            config,
            targets: whole(&config.target_modules, "target_modules")?,
            excluded: excluded.map_or(Ok(None), |excluded| whole(excluded, "exclude_modules"))?,
            saved: saved
                .map(|name| compile("modules_to_save", &format!(r"^(?:|.*\.){name}(?:$|\.)")))
                .collect::<Result<_>>()?,
            layers: layers
                .map(|name| compile("layers_pattern", &format!(r"^(?:|.*?\.){name}\.(\d+)\.")))
                .collect::<Result<_>>()?,
            ranks: by_name("rank_pattern", &config.rank_pattern)?,
            alphas: by_name("alpha_pattern", &config.alpha_pattern)?,
        };
        let all = config.target_modules.count()
            + excluded.map_or(0, TargetModules::count)
            + patterns.saved.len()
            + patterns.layers.len()
            + patterns.ranks.len()
            + patterns.alphas.len();
        match all.saturating_mul(modules) > MAX_COMPARISONS {
            true => {
                let found = format!("{all} for {modules} modules");
                Err(Error::value("the number of names and patterns of an adapter", found, "fewer"))
            }
            false => Ok(patterns),
        }
    }

    /// Whether the configuration names a module as one to change.
    pub(super) fn targets(&self, module: &str) -> Result<bool> {
        if let Some(excluded) = &self.config.exclude_modules
            && is_named(excluded, self.excluded.as_ref(), module)?
        {
            return Ok(false);
        }
        if self.is_saved(module)? || !is_named(&self.config.target_modules, self.targets.as_ref(), module)? {
            return Ok(false);
        }
        let indices = &self.config.layers_to_transform;
        if indices.is_empty() || matches!(self.config.target_modules, TargetModules::Pattern(_)) {
            return Ok(true);
        }
        Ok(self.layer_of(module)?.is_some_and(|index| indices.contains(&index)))
    }

    /// Whether the configuration names every linear layer.
    pub(super) fn names_all(&self) -> bool {
        matches!(&self.config.target_modules, TargetModules::Pattern(pattern) if pattern == ALL_LINEAR)
    }

    /// Whether the adapter holds all weights of a module.
    pub(super) fn is_saved(&self, module: &str) -> Result<bool> {
        for saved in &self.saved {
            if matches(saved, module)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The rank of the change of a module.
    pub(super) fn rank(&self, module: &str) -> Result<usize> {
        Ok(lookup("rank_pattern", &self.ranks, module)?.unwrap_or(self.config.r))
    }

    /// The factor of the change of a module.
    pub(super) fn scale(&self, module: &str) -> Result<f64> {
        let alpha = lookup("alpha_pattern", &self.alphas, module)?.unwrap_or(self.config.lora_alpha);
        Ok(self.config.scale(self.rank(module)?, alpha))
    }

    /// The index of the layer that a module belongs to.
    fn layer_of(&self, module: &str) -> Result<Option<usize>> {
        if self.layers.is_empty() {
            // The first number after at least two names and before another one.
            let parts: Vec<&str> = module.split('.').collect();
            let inner = parts.get(2..parts.len().saturating_sub(1)).unwrap_or_default();
            return Ok(inner.iter().find_map(|part| part.parse().ok()));
        }
        for pattern in &self.layers {
            let found = pattern.captures(module).map_err(|e| not_searched(pattern, e))?;
            if let Some(index) = found.and_then(|found| found.get(1)) {
                return Ok(index.as_str().parse().ok());
            }
        }
        Ok(None)
    }
}

const ALL_LINEAR: &str = "all-linear";

fn is_named(modules: &TargetModules, pattern: Option<&Regex>, module: &str) -> Result<bool> {
    match (modules, pattern) {
        (TargetModules::Names(names), _) => Ok(names.iter().any(|name| is_or_ends_with(module, name))),
        (TargetModules::Pattern(_), Some(pattern)) => matches(pattern, module),
        (TargetModules::Pattern(_), None) => Ok(true),
    }
}

fn is_or_ends_with(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Patterns for the end of a module's name.
fn by_name<T: Copy>(key: &'static str, values: &BTreeMap<String, T>) -> Result<Vec<(Regex, T)>> {
    values.iter().map(|(name, value)| Ok((compile(key, &format!(r"^(?:.*\.)?(?:{name})$"))?, *value))).collect()
}

/// The value of the patterns that match. PEFT takes the first in the order of the file, which JSON does not promise.
fn lookup<T: Copy + PartialEq>(key: &'static str, patterns: &[(Regex, T)], module: &str) -> Result<Option<T>> {
    let mut found = None;
    for (pattern, value) in patterns {
        if !matches(pattern, module)? {
            continue;
        }
        if found.is_some_and(|found| found != *value) {
            return Err(Error::config(key, format!("two values for `{module}`"), "one value for each module"));
        }
        found = Some(*value);
    }
    Ok(found)
}

fn matches(pattern: &Regex, module: &str) -> Result<bool> {
    pattern.is_match(module).map_err(|e| not_searched(pattern, e))
}

fn not_searched(pattern: &Regex, error: fancy_regex::Error) -> Error {
    Error::value(format!("a pattern of an adapter, `{}`,", pattern.as_str()), error, "one that can be searched")
}

fn compile(key: &'static str, pattern: &str) -> Result<Regex> {
    let built = RegexBuilder::new(pattern).backtrack_limit(MAX_STEPS).delegate_size_limit(MAX_BYTES).build();
    built.map_err(|e| Error::config(key, pattern, format!("a regular expression: {e}")))
}

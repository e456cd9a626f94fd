//! Which modules a configuration names, by names and regular expressions, as PEFT matches them.

use std::collections::BTreeMap;

use fancy_regex::{Regex, RegexBuilder};

use crate::error::{Error, Result};
use crate::io::PatternWork;
use crate::lora::config::{LoraConfig, TargetModules};

/// Steps that one regular expression may take. Those of published adapters take some hundred.
const MAX_STEPS: usize = 100_000;

/// The most comparisons of a tensor or a module with a name or a pattern for one adapter.
const MAX_COMPARISONS: usize = 1 << 23;

/// The patterns of a configuration, compiled.
pub(super) struct Patterns<'a> {
    config: &'a LoraConfig,
    targets: Option<Regex>,
    excluded: Option<Regex>,
    saved: Vec<Regex>,
    layers: Vec<Regex>,
    ranks: Vec<(Ending, usize)>,
    alphas: Vec<(Ending, f64)>,
}

/// A pattern for the end of a module's name.
enum Ending {
    /// A name, in which a dot stands for any character. Adapters may have thousands.
    Plain(String),
    Pattern(Regex),
}

impl<'a> Patterns<'a> {
    /// `modules` is the number of modules that are to be compared, or of tensors in their place.
    pub(super) fn new(config: &'a LoraConfig, modules: usize) -> Result<Self> {
        config.validate()?;
        let names = config.names();
        if names.saturating_mul(modules) > MAX_COMPARISONS {
            let found = format!("{names} for {modules} tensors or modules");
            return Err(Error::value("the number of names and patterns of an adapter", found, "fewer"));
        }
        let mut compiler = Compiler::default();
        let mut whole = |key, targets: Option<&TargetModules>| match targets {
            Some(TargetModules::Pattern(pattern)) if pattern != ALL_LINEAR => {
                compiler.compile(key, &format!("^(?:{pattern})$")).map(Some)
            }
            _ => Ok(None),
        };
        Ok(Self {
            config,
            targets: whole("target_modules", Some(&config.target_modules))?,
            excluded: whole("exclude_modules", config.exclude_modules.as_ref())?,
            saved: compiler.all("modules_to_save", &config.modules_to_save, [r"^(?:|.*\.)", r"(?:$|\.)"])?,
            layers: compiler.all("layers_pattern", &config.layers_pattern, [r"^(?:|.*?\.)", r"\.(\d+)\."])?,
            ranks: compiler.endings("rank_pattern", &config.rank_pattern)?,
            alphas: compiler.endings("alpha_pattern", &config.alpha_pattern)?,
        })
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

/// The value of the patterns that match. PEFT takes the first in the order of the file, which JSON does not promise.
fn lookup<T: Copy + PartialEq>(key: &'static str, patterns: &[(Ending, T)], module: &str) -> Result<Option<T>> {
    let mut found = None;
    for (pattern, value) in patterns {
        if !pattern.matches(module)? {
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

impl Ending {
    fn matches(&self, module: &str) -> Result<bool> {
        match self {
            Self::Plain(name) => {
                let mut end = module.chars().rev();
                let is_end = name.chars().rev().all(|c| end.next().is_some_and(|found| c == found || c == '.'));
                Ok(is_end && matches!(end.next(), None | Some('.')))
            }
            Self::Pattern(pattern) => matches(pattern, module),
        }
    }
}

/// Compiles the patterns of a configuration.
#[derive(Default)]
struct Compiler(PatternWork);

impl Compiler {
    fn compile(&mut self, key: &'static str, pattern: &str) -> Result<Regex> {
        self.0.add(key, pattern)?;
        let built = RegexBuilder::new(pattern).backtrack_limit(MAX_STEPS).build();
        built.map_err(|e| Error::config(key, pattern, format!("a regular expression: {e}")))
    }

    /// Names, each between the same two expressions.
    fn all(&mut self, key: &'static str, names: &[String], [before, after]: [&str; 2]) -> Result<Vec<Regex>> {
        names.iter().map(|name| self.compile(key, &format!("{before}{name}{after}"))).collect()
    }

    fn endings<T: Copy>(&mut self, key: &'static str, values: &BTreeMap<String, T>) -> Result<Vec<(Ending, T)>> {
        let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        let ending = |(name, value): (&String, &T)| {
            let ending = if is_plain(name) {
                Ending::Plain(name.clone())
            } else {
                Ending::Pattern(self.compile(key, &format!(r"^(?:.*\.)?(?:{name})$"))?)
            };
            Ok((ending, *value))
        };
        values.iter().map(ending).collect()
    }
}

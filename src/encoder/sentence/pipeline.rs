//! The modules of a sentence-transformers model that run after the transformer: pooling, dense layers, normalization.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use candle_core::{Device, Tensor};

use crate::encoder::folder::{ModelFolder, Module};
use crate::encoder::heads::pooling::{Pooling, PoolingMode, l2_normalize};
use crate::encoder::model::config::BertConfig;
use crate::encoder::sentence::dense::Dense;
use crate::error::{Error, Result};
use crate::io::json;

/// `config_sentence_transformers.json`.
#[derive(Clone, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Prompts {
    pub prompts: BTreeMap<String, String>,
    pub default_prompt_name: Option<String>,
}

/// The longest prompt, in bytes: it is tokenized with each text. Published ones have up to 500.
const MAX_PROMPT_BYTES: usize = 1 << 14;

impl Prompts {
    /// Reads the file of a model's folder; without it there are no prompts.
    pub(crate) fn load(folder: ModelFolder) -> Result<Self> {
        let path = folder.path.join("config_sentence_transformers.json");
        let all: Self = folder.json_or_default(&path)?;
        match all.prompts.iter().find(|(_, prompt)| prompt.len() > MAX_PROMPT_BYTES) {
            Some((name, prompt)) => {
                let found = format!("the prompt `{name}` has {} bytes", prompt.len());
                Err(Error::file(path, format!("{found}, expected at most {MAX_PROMPT_BYTES}")))
            }
            None => Ok(all),
        }
    }

    /// The prompt of a name, or the default one.
    ///
    /// # Errors
    /// If no prompt has the name.
    pub(crate) fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt_name.as_deref()) else {
            return Ok("");
        };
        self.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let known = self.prompts.keys().map(String::as_str).collect::<Vec<_>>();
            let known =
                if known.is_empty() { "none: the model has no prompts".to_string() } else { known.join(" or ") };
            Error::value("prompt_name", name, known)
        })
    }
}

/// The names: prompts can be long.
impl fmt::Debug for Prompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.prompts.keys()).finish()
    }
}

/// The modules after the transformer, in their order.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline {
    pub pooling: Pooling,
    /// Whether the tokens of a prompt count in pooling.
    pub include_prompt: bool,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    Normalize,
    Dense(Dense),
}

#[derive(serde::Deserialize)]
struct PoolingConfig {
    pooling_mode: Option<OneOrMore>,
    #[serde(default = "yes")]
    include_prompt: bool,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

/// The most pooling modes: each makes an embedding longer by the width of the model. Six modes exist.
const MAX_POOLING_MODES: usize = 16;

fn yes() -> bool {
    true
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(PoolingMode),
    More(Vec<PoolingMode>),
}

/// The boolean keys of earlier versions, in the order in which their vectors are concatenated.
const POOLING_KEYS: [(&str, PoolingMode); 6] = [
    ("pooling_mode_cls_token", PoolingMode::Cls),
    ("pooling_mode_max_tokens", PoolingMode::Max),
    ("pooling_mode_mean_tokens", PoolingMode::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", PoolingMode::WeightedMean),
    ("pooling_mode_lasttoken", PoolingMode::LastToken),
];

impl PoolingConfig {
    fn modes(&self) -> Result<Vec<PoolingMode>> {
        let modes = match &self.pooling_mode {
            Some(OneOrMore::One(mode)) => vec![*mode],
            Some(OneOrMore::More(modes)) => modes.clone(),
            None => {
                let mut modes = Vec::new();
                for (key, mode) in POOLING_KEYS {
                    match self.others.get(key) {
                        Some(serde_json::Value::Bool(true)) => modes.push(mode),
                        None | Some(serde_json::Value::Bool(false) | serde_json::Value::Null) => {}
                        Some(other) => return Err(Error::config(key, other, "true or false")),
                    }
                }
                if modes.is_empty() { vec![PoolingMode::Mean] } else { modes }
            }
        };
        match modes.len() > MAX_POOLING_MODES {
            true => {
                let found = format!("{} modes", modes.len());
                Err(Error::config("pooling_mode", found, format!("at most {MAX_POOLING_MODES}")))
            }
            false => Ok(modes),
        }
    }
}

impl Pipeline {
    /// Without modules, the mean of the tokens or, of a language model that sees earlier tokens alone, the last one.
    pub(crate) fn without_modules(config: &BertConfig) -> Result<Self> {
        let causal = config.is_language_model() && config.key_flag("is_causal")? != Some(false);
        let mode = if causal { PoolingMode::LastToken } else { PoolingMode::Mean };
        Ok(Self { pooling: Pooling::new(vec![mode])?, include_prompt: true, steps: Vec::new() })
    }

    /// Reads the modules after the transformer. `width` is that of the hidden states.
    pub(crate) fn load(folder: &Path, modules: &[Module], width: usize, device: &Device) -> Result<Self> {
        let mean = || Pooling::new(vec![PoolingMode::Mean]);
        let (mut pooling, mut include_prompt, mut steps) = (None, true, Vec::new());
        let mut width = width;
        for module in &modules[1..] {
            let path = folder.join(&module.path);
            match module.kind() {
                "Pooling" if pooling.is_none() => {
                    let config: PoolingConfig = json(&path.join("config.json"))?;
                    include_prompt = config.include_prompt;
                    let chosen =
                        config.modes().and_then(Pooling::new).map_err(|e| Error::file(path.join("config.json"), e))?;
                    width = chosen.output_size(width);
                    pooling = Some(chosen);
                }
                "Normalize" if pooling.is_some() => steps.push(Step::Normalize),
                "Dense" if pooling.is_some() => {
                    let dense = Dense::load(&path, width, device)?;
                    width = dense.output_size();
                    steps.push(Step::Dense(dense));
                }
                // Dropout is the identity outside training.
                "Dropout" => {}
                other => {
                    let reason = format!("module `{other}` at this place is not one this version runs");
                    return Err(Error::file(folder.join("modules.json"), reason));
                }
            }
        }
        let pooling = match pooling {
            Some(pooling) => pooling,
            None => mean()?,
        };
        Ok(Self { pooling, include_prompt, steps })
    }

    /// The mean of the tokens, normalized to unit length.
    pub(crate) fn unit_means() -> Result<Self> {
        Ok(Self { pooling: Pooling::new(vec![PoolingMode::Mean])?, include_prompt: true, steps: vec![Step::Normalize] })
    }

    /// hidden `(b, s, width)`, mask `(b, s)` with 1 = counts → `(b, size)`.
    pub(crate) fn forward(&self, hidden: &Tensor, mask: &Tensor) -> Result<Tensor> {
        self.finish(self.pooling.forward(hidden, mask)?)
    }

    /// What comes after pooling, `(b, width)` → `(b, size)`.
    pub(crate) fn finish(&self, pooled: Tensor) -> Result<Tensor> {
        self.steps.iter().try_fold(pooled, |xs, step| step.forward(&xs))
    }

    /// The size of an embedding for hidden states of `width`.
    pub(crate) fn output_size(&self, width: usize) -> usize {
        let dense = self.steps.iter().rev().find_map(|step| match step {
            Step::Dense(dense) => Some(dense.output_size()),
            Step::Normalize => None,
        });
        dense.unwrap_or_else(|| self.pooling.output_size(width))
    }
}

impl Step {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Normalize => l2_normalize(xs),
            Self::Dense(dense) => dense.forward(xs),
        }
    }
}

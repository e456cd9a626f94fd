//! The modules of a sentence-transformers model that run after the transformer: pooling, dense layers, normalization.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::{Checkpoint, WeightSource};
use crate::encoder::folder::Module;
use crate::encoder::heads::pooling::{Pooling, PoolingMode, l2_normalize};
use crate::error::{Error, Result};
use crate::io::json;
use crate::ops::Linear;
use crate::weights::LinearWeights;

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
    Dense { dense: Linear, activation: fn(&Tensor) -> candle_core::Result<Tensor> },
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

/// The largest number of features that a dense module may have. The widest published one has 4,096.
const MAX_DENSE_FEATURES: usize = 1 << 24;

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

#[derive(serde::Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    bias: bool,
    #[serde(default = "tanh")]
    activation_function: String,
    #[serde(default)]
    use_residual: bool,
}

fn tanh() -> String {
    "torch.nn.modules.activation.Tanh".to_string()
}

impl Pipeline {
    /// Reads the modules after the transformer. `width` is that of the hidden states.
    pub(crate) fn load(folder: &Path, modules: Option<&[Module]>, width: usize, device: &Device) -> Result<Self> {
        let mean = || Pooling::new(vec![PoolingMode::Mean]);
        let Some(modules) = modules else {
            return Ok(Self { pooling: mean()?, include_prompt: true, steps: Vec::new() });
        };
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
                    let (step, out) = load_dense(path, width, device)?;
                    width = out;
                    steps.push(step);
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
            Step::Dense { dense, .. } => Some(dense.out_features()),
            Step::Normalize => None,
        });
        dense.unwrap_or_else(|| self.pooling.output_size(width))
    }
}

fn load_dense(path: PathBuf, width: usize, device: &Device) -> Result<(Step, usize)> {
    let file = path.join("config.json");
    let config: DenseConfig = json(&file)?;
    if config.in_features != width {
        return Err(Error::file(file, format!("in_features is {}, expected {width}", config.in_features)));
    }
    if !(1..=MAX_DENSE_FEATURES).contains(&config.out_features) {
        let reason = format!("out_features is {}, expected 1 to {MAX_DENSE_FEATURES}", config.out_features);
        return Err(Error::file(file, reason));
    }
    if config.use_residual {
        return Err(Error::file(file, "use_residual is true, which this version does not run"));
    }
    let activation = match config.activation_function.rsplit('.').next().unwrap_or_default() {
        "Identity" => |xs: &Tensor| Ok(xs.clone()),
        "Tanh" => Tensor::tanh,
        "ReLU" => Tensor::relu,
        "GELU" => Tensor::gelu_erf,
        "SiLU" => Tensor::silu,
        other => return Err(Error::file(file, format!("activation_function `{other}` is not one this version knows"))),
    };
    // In f32 whatever the model's dtype: it works on pooled vectors, which are f32.
    let source = Checkpoint::open(path)?.at("linear", DType::F32, device);
    let out = config.out_features;
    let bias = config.bias.then(|| source.get("bias", &[out])).transpose()?;
    let weights = LinearWeights { weight: source.get("weight", &[out, width])?, bias };
    let mut dense = Linear::new("dense module", weights, out, width)?;
    dense.pack()?;
    Ok((Step::Dense { dense, activation }, out))
}

impl Step {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Normalize => l2_normalize(xs),
            Self::Dense { dense, activation } => {
                let dtype = xs.dtype();
                let ys = dense.forward(&xs.to_dtype(DType::F32)?.unsqueeze(1)?, dtype)?.squeeze(1)?;
                Ok(activation(&ys)?)
            }
        }
    }
}

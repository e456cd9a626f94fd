//! The modules of a sentence-transformers model that work on embeddings: dense layers, layer norms, normalization.

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ensure;
use candle_attention::norm::Norm;
use candle_attention::{Error, NormKind, Result};
use candle_core::{DType, Device, Module as _, Tensor};
use serde::de::IgnoredAny;

use crate::folder::{ModelFolder, Module};
use crate::model::places::load_all;
use crate::model::pooling::l2_normalize;
use crate::sentence::dense::Dense;

/// The key under which a module finds an embedding, and leaves it.
const EMBEDDING: &str = "sentence_embedding";

/// The epsilon of `torch.nn.LayerNorm`, which the module does not change.
const LAYER_NORM_EPS: f64 = 1e-5;

/// The modules after pooling, in their order.
#[derive(Clone, Default)]
pub(crate) struct Modules {
    steps: Vec<Step>,
    /// The size of an embedding; `None` where no module changes it.
    size: Option<usize>,
}

#[derive(Debug, Clone)]
enum Step {
    Normalize,
    LayerNorm(Norm),
    Dense(Box<Dense>),
    /// `round(127 · tanh(x))`, a number of int8 (pplx-embed).
    Int8,
}

/// Between which keys a module works; a module without a file works on embeddings.
#[derive(Default, serde::Deserialize)]
struct Keys {
    module_input_name: Option<String>,
    module_output_name: Option<String>,
    #[serde(flatten)]
    own: BTreeMap<String, IgnoredAny>,
}

/// The keys of a module's own.
fn own_keys(kind: &str) -> &'static [&'static str] {
    match kind {
        "Dense" => &["in_features", "out_features", "bias", "activation_function", "use_residual"],
        "LayerNorm" => &["dimension"],
        "Dropout" => &["dropout"],
        _ => &[],
    }
}

#[derive(serde::Deserialize)]
struct LayerNormConfig {
    dimension: usize,
}

/// The list of steps.
impl std::fmt::Debug for Modules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.steps.fmt(f)
    }
}

impl Modules {
    /// Normalization alone.
    pub fn normalize() -> Self {
        Self { steps: vec![Step::Normalize], size: None }
    }

    /// Reads `modules`, which work on embeddings of `width`. In f32 whatever the model's dtype: it is theirs.
    pub fn load(folder: ModelFolder, modules: &[&Module], width: usize, device: &Device) -> Result<Self> {
        let mut loaded = Self::default();
        for module in modules {
            let path = folder.path.join(&module.path);
            let width = loaded.size.unwrap_or(width);
            if module.has_no_files() {
                loaded.steps.push(Step::Int8);
                continue;
            }
            check_keys(folder, &path, module.kind(), EMBEDDING, EMBEDDING)?;
            match module.kind() {
                "Normalize" => loaded.steps.push(Step::Normalize),
                "Dense" => {
                    let dense = Dense::load(folder, &path, width, device)?;
                    loaded.size = Some(dense.out_features());
                    loaded.steps.push(Step::Dense(Box::new(dense)));
                }
                "LayerNorm" => loaded.steps.push(Step::LayerNorm(layer_norm(folder, &path, width, device)?)),
                // Dropout is the identity outside training.
                "Dropout" => {}
                other => {
                    let reason = format!("module `{other}` at this place is not one this version runs");
                    return Err(Error::file(folder.path.join("modules.json"), reason));
                }
            }
        }
        Ok(loaded)
    }

    /// `(b, width)` → `(b, size)`.
    pub fn forward(&self, pooled: Tensor) -> Result<Tensor> {
        self.steps.iter().try_fold(pooled, |xs, step| match step {
            Step::Normalize => l2_normalize(&xs),
            Step::LayerNorm(norm) => Ok(norm.forward(&xs)?),
            Step::Dense(dense) => dense.forward(&xs),
            Step::Int8 => Ok((xs.tanh()? * 127.0)?.round()?),
        })
    }

    /// The size of an embedding for vectors of `width`.
    pub fn output_size(&self, width: usize) -> usize {
        self.size.unwrap_or(width)
    }
}

/// Refuses a module that works on something other than `what`: on embeddings, or on the vectors of tokens. One that
/// states nothing works on `default`. Refuses a key that modules of its kind do not have.
pub(crate) fn check_keys(folder: ModelFolder, path: &Path, kind: &str, what: &str, default: &str) -> Result<()> {
    let file = path.join("config.json");
    let keys: Keys = folder.json_or_default(&file)?;
    if let Some(key) = keys.own.keys().find(|key| !own_keys(kind).contains(&key.as_str())) {
        return Err(Error::file(file, format!("`{key}` is not a key of a module `{kind}` that this version knows")));
    }
    let input = keys.module_input_name.as_deref().unwrap_or(default);
    match [input, keys.module_output_name.as_deref().unwrap_or(input)].iter().find(|key| **key != what) {
        Some(key) => Err(Error::file(file, format!("the module works on `{key}`, expected `{what}`"))),
        None => Ok(()),
    }
}

fn layer_norm(folder: ModelFolder, path: &Path, width: usize, device: &Device) -> Result<Norm> {
    let file = path.join("config.json");
    let LayerNormConfig { dimension } = folder.json(&file)?;
    ensure!(dimension == width, Error::file(file, format!("dimension is {dimension}, expected {width}")));
    let source = AnySource::new(&folder.checkpoint(path)?.at("", DType::F32, device));
    load_all(&source, |source| Norm::load(NormKind::Layer, true, width, LAYER_NORM_EPS, &source.child("norm")))
}

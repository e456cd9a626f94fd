//! Saving and resuming a run: all its state between two steps, in one file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::write_tensors;
use candle_attention::{Error, Result};
use candle_attention_kernels::Isa;
use candle_core::{Device, Tensor};
use safetensors::Dtype;
use tokenizers::Tokenizer;

use crate::train::adamw::AdamW;
use crate::train::config::TrainConfig;
use crate::train::student::shapes;
use crate::train::vocabulary::from_json;

/// Name of the file in the folder of a run.
pub(super) const FILE: &str = "run.safetensors";

/// A saved run.
pub(super) struct State {
    pub step: usize,
    /// The number of steps that the run had when it was saved.
    pub steps: usize,
    path: PathBuf,
    tokenizer: String,
    checkpoint: Checkpoint,
}

const KINDS: [&str; 3] = ["parameters", "first_moments", "second_moments"];

/// Names of the fields of the configuration that change when a run is prolonged.
const STEPS: &str = "steps";
const WARMUP_STEPS: &str = "warmup_steps";

/// Writes everything that the next step depends on except the texts and the teacher, of which `key` is a fingerprint.
/// `config` is what was asked for: its vocabulary may be larger than the one of the tokenizer.
pub(super) fn save(
    path: &Path,
    config: &TrainConfig,
    key: &str,
    step: usize,
    tokenizer: String,
    optimizer: &AdamW,
) -> Result<()> {
    let mut tensors = BTreeMap::new();
    for (name, parameter) in &optimizer.parameters {
        let values = [parameter.variable.as_detached_tensor(), parameter.first.clone(), parameter.second.clone()];
        for (kind, value) in KINDS.into_iter().zip(values) {
            tensors.insert(format!("{kind}.{name}"), value);
        }
    }
    let config = serde_json::to_string(config).map_err(|e| Error::file(path, e))?;
    let metadata = [
        ("config", config),
        ("key", key.to_string()),
        ("step", step.to_string()),
        ("tokenizer", tokenizer),
        ("instructions", instructions()?),
    ];
    write_tensors(path, tensors, metadata.map(|(name, value)| (name.to_string(), value)).into())
}

/// What the rounding of products depends on, beside the versions of this crate and of candle: the processor's family
/// and the instructions that the kernels run on. Written to the file for whoever compares two runs.
fn instructions() -> Result<String> {
    Ok(format!("{} {}", std::env::consts::ARCH, Isa::detect()?.f32_name()))
}

impl State {
    /// Opens a saved run; an error if it has another configuration, other texts or another teacher. With more steps
    /// than before, the run is prolonged, and its warm-up may be another one.
    pub fn open(path: &Path, config: &TrainConfig, key: &str) -> Result<Self> {
        let checkpoint = Checkpoint::open(path)?;
        let metadata = checkpoint.metadata().clone();
        let entry = |name: &str| {
            metadata.get(name).ok_or_else(|| Error::file(path, format!("not a run: its header has no `{name}`")))
        };
        let other = |what: String| {
            Error::file(path, format!("is of another run: {what}; remove the file to start from the beginning"))
        };
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).map_err(|e| Error::file(path, e));
        // Written and parsed as the saved one was, because a float may lose its last bit on the way.
        let ours = json(&serde_json::to_string(config).map_err(|e| Error::file(path, e))?)?;
        let theirs = json(entry("config")?)?;
        let steps = theirs[STEPS].as_u64().and_then(|steps| usize::try_from(steps).ok()).unwrap_or(config.steps);
        if steps > config.steps {
            return Err(other(format!("steps was {steps}, now {}, and a run cannot be shortened", config.steps)));
        }
        let free = |field: &str| steps < config.steps && [STEPS, WARMUP_STEPS].contains(&field);
        for (field, now) in ours.as_object().into_iter().flatten() {
            let then = &theirs[field];
            if then != now && !free(field) {
                return Err(other(format!("{field} was {then}, now {now}")));
            }
        }
        if entry("key")? != key {
            return Err(other(
                "the texts or the teacher were others, or an earlier version of this crate saved it".to_string(),
            ));
        }
        let step = entry("step")?.parse().map_err(|e| Error::file(path, e))?;
        Ok(Self { step, steps, path: path.to_path_buf(), tokenizer: entry("tokenizer")?.clone(), checkpoint })
    }

    /// The tokenizer of the run, of at most `most` tokens.
    pub fn tokenizer(&self, most: usize) -> Result<Tokenizer> {
        let reason =
            "its tokenizer is none that this version of the crate trains; remove the file to start from the beginning";
        from_json(&self.tokenizer, most)?.ok_or_else(|| Error::file(&self.path, reason))
    }

    /// The weights, by name: all that the model has, and no others.
    pub fn parameters(&self, config: &TrainConfig) -> Result<BTreeMap<String, Tensor>> {
        let shapes = shapes(config);
        let (found, expected) = (self.checkpoint.names().count(), KINDS.len() * shapes.len());
        if found != expected {
            return Err(Error::file(&self.path, format!("not a run: it has {found} tensors, expected {expected}")));
        }
        let tensor = |(name, shape): (String, Vec<usize>)| {
            let tensor = self.tensor(KINDS[0], &name, &shape)?;
            Ok((name, tensor))
        };
        shapes.into_iter().map(tensor).collect()
    }

    /// Restores the moments of all gradients.
    pub fn restore(&self, optimizer: &mut AdamW) -> Result<()> {
        for (name, parameter) in &mut optimizer.parameters {
            parameter.first = self.tensor(KINDS[1], name, parameter.variable.dims())?;
            parameter.second = self.tensor(KINDS[2], name, parameter.variable.dims())?;
        }
        Ok(())
    }

    fn tensor(&self, kind: &str, name: &str, shape: &[usize]) -> Result<Tensor> {
        let name = format!("{kind}.{name}");
        let (dtype, stored) = self.checkpoint.tensor_info(&name)?;
        if stored != shape || dtype != Dtype::F32 {
            let found = format!("has dtype {dtype} and shape {stored:?}");
            return Err(Error::Tensor { name, found, expected: format!("F32 {shape:?}") });
        }
        self.checkpoint.tensor(&name, &Device::Cpu)
    }
}

//! `LoraAdapter`: the configuration and the tensors of an adapter.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::io::is_present;
use crate::lora::config::{LoraBias, LoraConfig};
use crate::lora::low_rank::LowRank;
use crate::lora::names::{Named, Part, name_of};
use crate::lora::patterns::Patterns;

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";

/// The most modules that an adapter changes. The largest models, with hundreds of experts per layer, have fewer linear
/// layers.
const MAX_MODULES: usize = 1 << 16;

/// A LoRA adapter: low-rank changes of some weights of a model, and tensors that take the place of others. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LoraAdapter {
    pub(super) config: LoraConfig,
    /// By the names of their modules in the base model.
    pub(super) changes: BTreeMap<String, LowRank>,
    /// Modules that are tables of embeddings.
    pub(super) embeddings: BTreeSet<String>,
    /// By the names of the tensors whose place they take.
    pub(super) whole: BTreeMap<String, Tensor>,
}

/// The parts of the change of a module.
type Parts = BTreeMap<Part, Tensor>;

impl LoraAdapter {
    /// Reads a folder as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.
    ///
    /// # Errors
    /// Those of [`LoraConfig::from_file`], [`Checkpoint::open`] and [`new`](Self::new).
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let config = LoraConfig::from_file(folder.join(CONFIG))?;
        let path = folder.join(WEIGHTS);
        if !is_present(&path)? && is_present(&folder.join("adapter_model.bin"))? {
            let reason = "it holds `adapter_model.bin`, which has to be converted to safetensors first";
            return Err(Error::file(folder, reason));
        }
        Self::new(config, &Checkpoint::open(&path)?).map_err(|e| Error::file(path, e))
    }

    /// An adapter of the tensors of a checkpoint, on disk or in memory, under the names that PEFT gives them:
    /// `base_model.model.<module>.lora_A.weight` and so on.
    ///
    /// # Errors
    /// A tensor that belongs to no module which the configuration names, that lacks its counterpart, or whose shape does
    /// not fit the configuration; an adapter without low-rank changes; a pattern of the configuration that is not valid.
    pub fn new(config: LoraConfig, checkpoint: &Checkpoint) -> Result<Self> {
        let source = checkpoint.at("", DType::F32, &Device::Cpu);
        let (mut modules, mut whole) = (BTreeMap::<String, Parts>::new(), BTreeMap::new());
        let mut unclear = Vec::new();
        for name in checkpoint.names() {
            source.check_dtype(name)?;
            let tensor = || checkpoint.tensor(name, &Device::Cpu);
            match Named::parse(name) {
                Named::Change(module, part) => {
                    let parts = modules.entry(module).or_default();
                    match parts.entry(part) {
                        Entry::Vacant(none) => none.insert(tensor()?),
                        Entry::Occupied(_) => return Err(unknown(name, "is the second of its kind for its module")),
                    };
                }
                Named::Whole(to) => {
                    if whole.insert(to.clone(), tensor()?).is_some() {
                        return Err(unknown(name, "is the second one for its place"));
                    }
                    unclear.push((name, to));
                }
                Named::Unknown => return Err(unknown(name, "is not a tensor that this version applies")),
            }
            if modules.len() > MAX_MODULES {
                let found = format!("more than {MAX_MODULES}");
                return Err(Error::value(
                    "the number of modules of an adapter",
                    found,
                    format!("at most {MAX_MODULES}"),
                ));
            }
        }
        if modules.is_empty() {
            return Err(Error::value("the number of low-rank changes of the adapter", 0, "at least 1"));
        }
        let patterns = Patterns::new(&config, modules.len().max(unclear.len()))?;
        for (name, to) in unclear {
            let (module, parameter) = to.rsplit_once('.').unwrap_or(("", &to));
            let bias = config.bias != LoraBias::None && parameter == "bias";
            let of_embedding = modules.get(module).is_some_and(|parts| parts.contains_key(&Part::EmbeddingA));
            if !bias && !of_embedding && !patterns.is_saved(&to)? {
                return Err(unknown(name, "belongs neither to a low-rank change nor to `modules_to_save`"));
            }
        }
        let tables = modules.iter().filter(|(_, parts)| parts.contains_key(&Part::EmbeddingA));
        let embeddings = tables.map(|(module, _)| module.clone()).collect();
        let change = |(module, parts): (String, Parts)| {
            if !patterns.targets(&module)? {
                let name = parts.keys().next().map_or_else(String::new, |part| name_of(&module, *part));
                return Err(unknown(&name, "belongs to a module that `target_modules` does not name"));
            }
            Ok((module.clone(), low_rank(&module, &parts, &config, &patterns)?))
        };
        let changes = modules.into_iter().map(change).collect::<Result<_>>()?;
        Ok(Self { changes, embeddings, whole, config: config.clone() })
    }

    /// The configuration.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The names of the modules that it changes by low-rank products, sorted.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.changes.keys().map(String::as_str)
    }
}

fn low_rank(module: &str, parts: &Parts, config: &LoraConfig, patterns: &Patterns) -> Result<LowRank> {
    let part = |part: Part| parts.get(&part).ok_or_else(|| incomplete(module, part));
    let transposed = parts.contains_key(&Part::EmbeddingA) || parts.contains_key(&Part::EmbeddingB);
    let names = if transposed { [Part::EmbeddingA, Part::EmbeddingB] } else { [Part::A, Part::B] };
    if let Some(other) = parts.keys().find(|part| !names.contains(part) && **part != Part::Magnitude) {
        return Err(unknown(&name_of(module, *other), "does not fit the other tensors of its module"));
    }
    let (a, b) = (part(names[0])?, part(names[1])?);
    let rank = patterns.rank(module)?;
    let check = |part: Part, tensor: &Tensor, fits: bool, expected: String| match fits {
        true => Ok(()),
        false => {
            let found = format!("has shape {:?}", tensor.dims());
            Err(Error::Tensor { name: name_of(module, part), found, expected })
        }
    };
    let sides = if transposed { ["rows of the table", "width"] } else { ["in", "out"] };
    check(names[0], a, a.rank() == 2 && a.dims()[0] == rank, format!("[{rank}, {}], by the rank", sides[0]))?;
    check(names[1], b, b.rank() == 2 && b.dims()[1] == rank, format!("[{}, {rank}], by the rank", sides[1]))?;
    let magnitude = parts.get(&Part::Magnitude);
    match (config.use_dora, magnitude) {
        (true, None) => return Err(incomplete(module, Part::Magnitude)),
        (false, Some(_)) => return Err(unknown(&name_of(module, Part::Magnitude), "needs `use_dora`")),
        (true, Some(_)) if transposed => {
            return Err(unknown(
                &name_of(module, Part::Magnitude),
                "scales embeddings, which this version does not apply",
            ));
        }
        (_, Some(magnitude)) => {
            let out = b.dims()[0];
            check(Part::Magnitude, magnitude, magnitude.dims() == [out], format!("[{out}], as B has rows"))?;
        }
        (false, None) => {}
    }
    let scale = patterns.scale(module)?;
    Ok(LowRank { a: a.clone(), b: b.clone(), scale, magnitude: magnitude.cloned(), transposed })
}

fn incomplete(module: &str, part: Part) -> Error {
    let why = format!("the adapter holds other tensors of the change of `{module}`");
    Error::MissingTensor { name: name_of(module, part), why }
}

fn unknown(name: &str, why: &str) -> Error {
    Error::Tensor {
        name: name.to_string(),
        found: why.to_string(),
        expected: "a tensor that the configuration names".to_string(),
    }
}

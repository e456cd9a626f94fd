//! `LoraAdapter`: the configuration and the tensors of an adapter.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::{D, DType, Device, Tensor};
use serde_json::{Value, json};

use crate::checkpoint::Checkpoint;
use crate::ensure;
use crate::error::{Error, Result};
use crate::io::{is_present, write_file, write_new_folder, write_tensors};
use crate::lora::config::{LoraBias, LoraConfig};
use crate::lora::patterns::Patterns;
use crate::lora::places::{Named, PREFIX, Part, TOKENS, name_of};
use crate::lora::tokens::TokenRows;
use crate::tensor::{check_allocation, element_count};

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";

/// A LoRA adapter: low-rank changes of some weights of a model, and tensors that take the place of others. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct LoraAdapter {
    pub(super) config: LoraConfig,
    /// Low-rank changes by the names of their modules in the base model.
    pub(super) changes: BTreeMap<String, LowRank>,
    /// Modules that are tables of embeddings.
    pub(super) embeddings: BTreeSet<String>,
    /// Tensors by the names of those whose place they take.
    pub(super) whole: BTreeMap<String, Tensor>,
    /// Rows of tables by the names of the tables in the base model.
    pub(super) tokens: BTreeMap<String, TokenRows>,
}

/// The parts of the change of a module.
type Parts = BTreeMap<Part, Tensor>;

impl LoraAdapter {
    /// Reads a folder as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.
    ///
    /// # Errors
    /// The errors of [`LoraConfig::from_file`], [`Checkpoint::open`] and [`new`](Self::new).
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
    /// A tensor that belongs to no module which the configuration names, that lacks its counterpart, or whose shape
    /// does not fit the configuration; an adapter without low-rank changes; a pattern of the configuration that is not
    /// valid.
    pub fn new(config: LoraConfig, checkpoint: &Checkpoint) -> Result<Self> {
        let patterns = Patterns::new(&config, checkpoint.names().count())?;
        let source = checkpoint.at("", DType::F32, &Device::Cpu);
        let (mut modules, mut whole) = (BTreeMap::<String, Parts>::new(), BTreeMap::new());
        let (mut unclear, mut tokens) = (Vec::new(), BTreeMap::new());
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
                Named::Tokens(module) => {
                    let rows = TokenRows::new(&config, &module, name, tensor()?)?;
                    tokens.insert(module, rows);
                }
                Named::Unknown => return Err(unknown(name, "is not a tensor that this version applies")),
            }
        }
        if tokens.len() < config.trainable_token_indices.len() {
            let found = format!("rows of {} tables", tokens.len());
            let expected = format!("of {}, by `trainable_token_indices`", config.trainable_token_indices.len());
            return Err(Error::value("the adapter", found, expected));
        }
        ensure!(!modules.is_empty(), Error::value("the number of low-rank changes of the adapter", 0, "at least 1"));
        for (name, to) in unclear {
            let (module, parameter) = to.rsplit_once('.').unwrap_or(("", &to));
            let bias = config.bias != LoraBias::None && parameter == "bias";
            let is_embedding = modules.get(module).is_some_and(|parts| parts.contains_key(&Part::EmbeddingA));
            if !bias && !is_embedding && !patterns.is_saved(&to)? {
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
        Ok(Self { changes, embeddings, whole, tokens, config: config.clone() })
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
    let check = |part: Part, tensor: &Tensor, fits: bool, expected: String| {
        if fits {
            Ok(())
        } else {
            let found = format!("has shape {:?}", tensor.dims());
            Err(Error::tensor(name_of(module, part), found, expected))
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
            let name = name_of(module, Part::Magnitude);
            return Err(unknown(&name, "scales embeddings, which this version does not apply"));
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
    Error::tensor(name, why, "a tensor that the configuration names")
}

/// The change of a weight: `W + scale · B A`; with a magnitude `m` each row of the sum is scaled to the length `m`.
#[derive(Debug, Clone)]
pub(super) struct LowRank {
    /// `(r, in)`.
    pub a: Tensor,
    /// `(out, r)`.
    pub b: Tensor,
    pub scale: f64,
    /// `(out)`.
    pub magnitude: Option<Tensor>,
    /// Whether the weight is stored `(in, out)`, as tables of embeddings and GPT-2's layers are.
    pub transposed: bool,
}

impl LowRank {
    /// `[out, in]`.
    pub fn dims(&self) -> [usize; 2] {
        [self.b.dims()[0], self.a.dims()[1]]
    }

    /// The shape of the weight that it changes, as it is stored.
    pub fn stored_dims(&self) -> [usize; 2] {
        let [out, input] = self.dims();
        if self.transposed { [input, out] } else { [out, input] }
    }

    pub fn tracks_gradient(&self) -> bool {
        [Some(&self.a), Some(&self.b), self.magnitude.as_ref()].into_iter().flatten().any(Tensor::track_op)
    }

    /// The changed weight in the dtype and on the device of `weight`, which has the shape
    /// [`stored_dims`](Self::stored_dims). Computed in f32, in f64 for an f64 weight, and rounded once.
    ///
    /// As PEFT merges it, with one difference: PEFT rounds the change to a half type before it adds it.
    pub fn merge(&self, weight: &Tensor) -> Result<Tensor> {
        let [out, input] = self.dims();
        check_allocation::<f64>("the change of a weight", element_count("a weight", &[out, input])?)?;
        let wide = if weight.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let get = |tensor: &Tensor| tensor.to_dtype(wide)?.to_device(weight.device());
        let change = (get(&self.b)?.matmul(&get(&self.a)?)? * self.scale)?; // (out, in)
        let whole = weight.to_dtype(wide)?;
        let whole = if self.transposed { whole.t()? } else { whole };
        let mut changed = (whole + change)?;
        if let Some(magnitude) = &self.magnitude {
            // A constant for the gradient, as DoRA proposes (section 4.3).
            let lengths = changed.detach().sqr()?.sum_keepdim(D::Minus1)?.sqrt()?; // (out, 1)
            changed = changed.broadcast_mul(&get(magnitude)?.unsqueeze(1)?.div(&lengths)?)?;
        }
        let changed = if self.transposed { changed.t()?.contiguous()? } else { changed };
        Ok(changed.to_dtype(weight.dtype())?)
    }
}

impl LoraAdapter {
    /// Writes a new folder with `adapter_config.json` and `adapter_model.safetensors`, which PEFT's
    /// `PeftModel.from_pretrained` and [`open`](Self::open) read. The folder gets its name when it is complete.
    ///
    /// # Errors
    /// A folder that exists, or that cannot be written; two tensors that PEFT would give the same name.
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<()> {
        // PEFT reads a tensor of a module that it wraps one level deeper, and ignores it elsewhere.
        let name_of_whole = |name: &str| match name.rsplit_once('.') {
            Some((module, parameter)) if self.changes.contains_key(module) => {
                format!("{PREFIX}{module}.base_layer.{parameter}")
            }
            _ => format!("{PREFIX}{name}"),
        };
        let whole = self.whole.iter().map(|(name, tensor)| (name_of_whole(name), tensor.clone()));
        let mut tensors: Vec<(String, Tensor)> = whole.collect();
        for (module, rows) in &self.tokens {
            tensors.push((format!("{PREFIX}{module}{TOKENS}"), rows.values.clone()));
        }
        for (module, change) in &self.changes {
            // Tables of embeddings have their width as the outputs, under names of their own.
            let [a, b] = if self.embeddings.contains(module) {
                [Part::EmbeddingA, Part::EmbeddingB]
            } else {
                [Part::A, Part::B]
            };
            let parts = [(a, Some(&change.a)), (b, Some(&change.b)), (Part::Magnitude, change.magnitude.as_ref())];
            let parts =
                parts.into_iter().filter_map(|(part, tensor)| Some((name_of(module, part), tensor?.contiguous())));
            for (name, tensor) in parts {
                tensors.push((name, tensor?));
            }
        }
        let config = format!("{:#}\n", self.config.to_json());
        let metadata = [("format".to_string(), "pt".to_string())].into();
        write_new_folder(folder.as_ref(), |new| {
            write_file(&new.join(CONFIG), config)?;
            write_tensors(&new.join(WEIGHTS), tensors, metadata)
        })
    }
}

impl LoraConfig {
    /// The keys of an `adapter_config.json`.
    pub fn to_json(&self) -> Value {
        let list = |items: Value| if items.as_array().is_none_or(Vec::is_empty) { Value::Null } else { items };
        json!({
            "peft_type": "LORA",
            "task_type": self.task_type,
            "base_model_name_or_path": self.base_model_name_or_path,
            "inference_mode": true,
            "r": self.r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": 0.0,
            "init_lora_weights": true,
            "use_rslora": self.use_rslora,
            "use_dora": self.use_dora,
            "fan_in_fan_out": self.fan_in_fan_out,
            "bias": self.bias,
            "target_modules": self.target_modules,
            "exclude_modules": self.exclude_modules,
            "modules_to_save": list(json!(self.modules_to_save)),
            "rank_pattern": self.rank_pattern,
            "alpha_pattern": self.alpha_pattern,
            "layers_to_transform": list(json!(self.layers_to_transform)),
            "layers_pattern": list(json!(self.layers_pattern)),
            "trainable_token_indices": match self.trainable_token_indices.get("") {
                Some(rows) => json!(rows),
                None if self.trainable_token_indices.is_empty() => Value::Null,
                None => json!(self.trainable_token_indices),
            },
        })
    }
}

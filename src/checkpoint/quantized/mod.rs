//! Quantized weights of published checkpoints, read as the tensors that they stand for.
//!
//! A quantized module `X` has several tensors where another one has `X.weight`: integers, scales, zero points. Here
//! they become one tensor `X.weight` of shape `(out, in)`, which is dequantized when it is read, and the others are not
//! listed. So layouts, LoRA, pruning and text models above read such a checkpoint as any other one.
//!
//! A format is recognized by the tensors that stand beside one another, because files mix formats and unquantized
//! modules; `config.json` is asked only for what tensors do not show, such as the bits of MLX. Each format is one file
//! with one value of [`Format`], which is a line of [`FORMATS`]. Dequantized numbers are those of the format's owner,
//! computed in f32 whatever the dtype of the scales. Memory is taken for one module at a time.

mod awq;
mod compressed_tensors;
mod dequantize;
mod fp8;
mod gptq;
mod mlx;
mod module;
mod settings;
mod unpack;
mod unread;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{Device, Tensor};
use safetensors::Dtype;

use crate::checkpoint::header::Entry;
use crate::checkpoint::shard::Shard;
use crate::checkpoint::source::join;
use crate::error::{Error, Result, cut};
use crate::ops::Quantization;
use module::{Checked, Fault, Module};
pub(crate) use settings::Settings;
pub use settings::remove_quantization_config;
use unpack::{Codes, Plan};
use unread::UNREAD;

/// The formats, in the order in which they are tried.
#[rustfmt::skip]
const FORMATS: &[Format] = &[
    mlx::METAL, mlx::MLX, fp8::BLOCKS, compressed_tensors::PACKED, compressed_tensors::INT8, compressed_tensors::FLOAT8,
    gptq::GPTQ, awq::AWQ,
];

/// The scales of a cache in 8 bits, beside the projections of quantized layers. A cache here has the layer's dtype.
const CACHE_SCALES: [&str; 4] = ["q_scale", "k_scale", "v_scale", "prob_scale"];

/// A format of quantized modules.
struct Format {
    /// As its owner calls it.
    pub name: &'static str,
    /// The names of its tensors below a module, those that may be absent included.
    pub tensors: &'static [&'static str],
    /// Whether the tensors of a module are in this format.
    pub fits: fn(&Module) -> bool,
    /// The shape of the weight, from the shapes of the stored tensors, which are checked against one another. `None`
    /// for a format that is recognized to say what it is, and not read.
    pub plan: Option<fn(&Module, &Settings) -> Checked<Plan>>,
    /// Reads the stored tensors.
    pub read: Option<fn(&Module, &Plan) -> Result<Codes>>,
}

/// The stored tensors of a module, by their names below it; each with the index of its shard.
pub(crate) type Parts = BTreeMap<&'static str, (usize, Entry)>;

/// A quantized module of a checkpoint.
#[derive(Clone)]
pub(crate) struct QuantizedWeight {
    module: String,
    parts: Parts,
    format: &'static Format,
    /// A tensor below the module that is none of its parts.
    unread: Option<String>,
    /// The sizes, and the entry that a plain tensor would have in the header; or why there are none.
    plan: Checked<(Plan, Entry)>,
    /// Whether it can be packed as it is, once that was asked: its scales say so, which are read for that.
    is_packed_as_it_is: OnceLock<bool>,
}

/// The format of a module. First those that are not read: some have the tensors of another format, and one more.
fn detect(module: &Module) -> Option<&'static Format> {
    UNREAD.iter().chain(FORMATS).find(|format| (format.fits)(module))
}

impl QuantizedWeight {
    /// Reads the settings of the module again, from another `config.json`.
    pub fn plan(&mut self, shards: &[Shard], settings: &Settings) {
        let module = Module::new(&self.module, &self.parts, shards);
        self.is_packed_as_it_is = OnceLock::new();
        self.plan = match self.format.plan {
            _ if module.has("weight") && !self.format.tensors.contains(&"weight") => {
                Err(Fault::new(module.full_name("weight"), format!("stands beside {}", self.describe()), "one of them"))
            }
            None => Err(unread::fault(self.format, &module)),
            Some(plan) => self.check_inputs(settings).and_then(|()| plan(&module, settings)).map(|plan| {
                let entry = Entry { dtype: Dtype::F32, shape: plan.shape.into(), offsets: [0, 0], gguf: None };
                (plan, entry)
            }),
        };
    }

    /// Checks that inputs and outputs of the module are those of a linear layer: nothing else is computed of them.
    fn check_inputs(&self, settings: &Settings) -> Checked<()> {
        let expected = "a module of a weight and a bias, whose inputs are multiplied as they are";
        if let Some(name) = &self.unread {
            return Err(Fault::new(name, format!("stands beside {}", self.describe()), expected));
        }
        match settings.run_time_transform() {
            Some(transform) => {
                let found = format!("has the transform `{}` (`transform_config` of config.json)", cut(transform));
                Err(Fault::new(join(&self.module, "weight"), found, expected))
            }
            None => Ok(()),
        }
    }

    /// The entry that the dequantized tensor would have in the header: f32, and its shape.
    pub fn entry(&self) -> Result<&Entry> {
        match &self.plan {
            Ok((_, entry)) => Ok(entry),
            Err(fault) => Err(fault.clone().into()),
        }
    }

    /// The weight `(out, in)` in f32, on the CPU.
    pub fn tensor(&self, shards: &[Shard]) -> Result<Tensor> {
        let (Some(read), Ok((plan, entry))) = (self.format.read, &self.plan) else {
            return Err(self.entry().err().unwrap_or_else(|| self.not_plain()));
        };
        let module = Module::new(&self.module, &self.parts, shards);
        let weight = dequantize::weight(&module, plan, read(&module, plan)?)?;
        Ok(Tensor::from_vec(weight, &*entry.shape, &Device::Cpu)?)
    }

    /// The format with its sizes, for people: `GPTQ, 4 bits in groups of 128`.
    pub fn describe(&self) -> String {
        match &self.plan {
            Ok((plan, _)) => format!("{}, {plan}", self.format.name),
            Err(_) => self.format.name.to_string(),
        }
    }

    /// The format in which the weight can be packed as it is, without rounding: int8 with a scale for each row, which
    /// is a normal positive number of at most 16 significant bits, or 0.
    pub fn packed_format(&self, shards: &[Shard]) -> Option<Quantization> {
        const LOW_BITS: u32 = 24 - 16;
        let is_short = |scale: &f32| scale.to_bits().trailing_zeros() >= LOW_BITS && *scale >= f32::MIN_POSITIVE;
        let fits = self.is_packed_as_it_is.get_or_init(|| {
            // Scales that cannot be read are an error of the weight.
            let scales = || Module::new(&self.module, &self.parts, shards).floats(compressed_tensors::SCALE);
            let are_short = |scales: Vec<f32>| scales.iter().all(|scale| *scale == 0.0 || is_short(scale));
            self.is_int8_by_rows() && scales().map_or(true, are_short)
        });
        fits.then_some(Quantization::Int8)
    }

    /// Whether the weight is int8 with a scale for each row, and nothing else.
    fn is_int8_by_rows(&self) -> bool {
        let Ok((plan, _)) = &self.plan else { return false };
        let is_int8 = self.parts.get("weight").is_some_and(|(_, entry)| entry.dtype == Dtype::I8);
        let plain = !["weight_zero_point", "weight_g_idx"].iter().any(|part| self.parts.contains_key(part));
        is_int8 && plain && plan.block == [1, plan.shape[1]]
    }

    /// Some rows as a weight of their own, if they can be read alone: those of int8 by rows.
    pub fn rows(&self, rows: &Range<usize>) -> Option<Self> {
        let (plan, entry) = self.plan.as_ref().ok().filter(|_| self.is_int8_by_rows())?;
        let mut own = self.clone();
        for part in ["weight", compressed_tensors::SCALE] {
            let (_, entry) = own.parts.get_mut(part)?;
            *entry = entry.rows(rows)?;
        }
        let entry = Entry { shape: [rows.len(), plan.shape[1]].into(), ..entry.clone() };
        own.plan = Ok((Plan { shape: [rows.len(), plan.shape[1]], ..plan.clone() }, entry));
        Some(own)
    }

    /// The stored tensors with their full names.
    pub fn stored(&self) -> impl Iterator<Item = (String, &(usize, Entry))> {
        self.parts.iter().map(|(part, stored)| (join(&self.module, part), stored))
    }

    /// The error of a call that needs the bytes of the tensor.
    pub fn not_plain(&self) -> Error {
        let found = format!("is quantized ({})", self.describe());
        Error::tensor(join(&self.module, "weight"), found, "a tensor that is stored as it is")
    }
}

/// Takes the tensors of quantized modules out of `tensors`: by the name of the weight that they stand for.
pub(crate) fn take_modules(
    tensors: &mut BTreeMap<String, (usize, Entry)>,
    shards: &[Shard],
) -> BTreeMap<String, QuantizedWeight> {
    let known: BTreeSet<&'static str> =
        UNREAD.iter().chain(FORMATS).flat_map(|format| format.tensors).copied().collect();
    // The tensors beside one another in each module that has more than a weight.
    let mut modules: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for name in tensors.keys() {
        let (module, part) = split(name, &known);
        if let Some(part) = part.filter(|part| *part != "weight") {
            modules.entry(module.to_string()).or_default().push(part);
        }
    }
    let mut found = BTreeMap::new();
    let mut layers = BTreeSet::new();
    for (module, mut names) in modules {
        names.push("weight");
        let stored = |part: &&'static str| Some((*part, tensors.get(&join(&module, part))?.clone()));
        let mut parts: Parts = names.iter().filter_map(stored).collect();
        let Some(format) = detect(&Module::new(&module, &parts, shards)) else { continue };
        // The weight of another format would have the same name.
        parts.retain(|part, _| *part == "weight" || format.tensors.contains(part));
        parts.keys().for_each(|part| _ = tensors.remove(&join(&module, part)));
        layers.extend(module.rsplit_once('.').map(|(layer, _)| layer.to_string()));
        let unread = unread_below(&module, tensors);
        let name = join(&module, "weight");
        let plan = Err(Fault::new(&name, "is not planned", "a quantized module"));
        found
            .insert(name, QuantizedWeight { module, parts, format, unread, plan, is_packed_as_it_is: OnceLock::new() });
    }
    for layer in layers {
        CACHE_SCALES.iter().for_each(|scale| _ = tensors.remove(&join(&layer, scale)));
    }
    found
}

/// A tensor below a quantized module that is not its bias, and not the scale of a cache.
fn unread_below(module: &str, tensors: &BTreeMap<String, (usize, Entry)>) -> Option<String> {
    let start = format!("{module}.");
    let is_known = |part: &str| part == "bias" || CACHE_SCALES.contains(&part);
    let mut below = tensors.range(start.clone()..).map_while(|(name, _)| Some((name, name.strip_prefix(&start)?)));
    below.find(|(_, part)| !is_known(part)).map(|(name, _)| name.clone())
}

/// The module of a tensor, and its name below it if formats have one.
fn split<'a>(name: &'a str, known: &BTreeSet<&'static str>) -> (&'a str, Option<&'static str>) {
    /// The most dots in the name of a tensor below its module, and one for the module.
    const PARTS: usize = 3;
    let dots = name.rmatch_indices('.').take(PARTS).map(|(dot, _)| (&name[..dot], &name[dot + 1..]));
    let whole = std::iter::once(("", name)).filter(|_| name.matches('.').count() < PARTS);
    // The longest name below the module.
    let mut splits: Vec<(&str, &str)> = dots.chain(whole).collect();
    splits.reverse();
    let found = splits.into_iter().find_map(|(module, part)| Some((module, *known.get(part)?)));
    found.map_or((name, None), |(module, part)| (module, Some(part)))
}

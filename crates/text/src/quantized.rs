//! Writes a model with its projections and word embeddings in int8.
//!
//! The format is that of [compressed-tensors](https://github.com/vllm-project/compressed-tensors), `int-quantized`: 8
//! bits with a scale for each output, and activations that are rounded for each token when they are multiplied.
//! transformers 5.23 with compressed-tensors 0.20 was seen to load it. This crate loads it as int8, bit for bit what
//! [`Quantization::Int8`] makes of the model. Which weights are int8 is the choice of the caller, because some models
//! lose much by a few of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use candle_attention::checkpoint::{AnySource, Checkpoint, WeightSource, detect, remove_quantization_config};
use candle_attention::ensure;
use candle_attention::io::{WrittenTensor, read_json, write_file, write_new_folder, write_tensors};
use candle_attention::tensor::with_slices;
use candle_attention::{ComputeType, Error, Quantization, Result};
use candle_attention_kernels::QuantizedRows;
use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::View;
use serde_json::{Value, json};

use crate::folder::{ModelFolder, modules};
use crate::gguf::refuse;
use crate::model::config::TextModelConfig;
use crate::model::places::Places;
use crate::model::text_model::TextModel;
use crate::pruning::write::copy_others;
use crate::sentence::SentenceEncoder;

/// The full names of the weights of a model folder that [`write_int8`] can write in int8: those of the projections of
/// blocks, and the word embeddings. They are in the order of the names.
///
/// The projections of queries, keys and values of a layer are multiplied together, so they are loaded as int8 only if
/// all of them are.
///
/// # Errors
/// A file that is missing or malformed; a model that cannot be loaded; a folder whose first module is no transformer.
pub fn int8_weights(folder: impl AsRef<Path>) -> Result<Vec<String>> {
    let folder = folder.as_ref();
    let (transformer, config) = transformer(folder)?;
    let checkpoint = Checkpoint::open(&transformer)?;
    // The loader knows what it packs: it asks the source for the format of each weight.
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = asked.clone();
    let source = checkpoint.at("", DType::F32, &Device::Cpu).with_quantization(move |name| {
        seen.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_string());
        Some(Quantization::Int8)
    });
    TextModel::load(&config, source)?;
    let asked = std::mem::take(&mut *asked.lock().unwrap_or_else(PoisonError::into_inner));
    let is_matrix = |name: &String| checkpoint.tensor_info(name).is_ok_and(|(_, shape)| shape.len() == 2);
    Ok(asked.into_iter().filter(|name| name.ends_with(WEIGHT) && is_matrix(name)).collect())
}

/// Where in a folder the transformer is, and its configuration.
fn transformer(folder: &Path) -> Result<(PathBuf, TextModelConfig)> {
    refuse(folder, "its weights are in the format of their file, and cannot be written in int8")?;
    let model = ModelFolder::new(folder);
    let transformer = model.transformer()?;
    let config = model.transformer_config(&transformer)?;
    match config.tasks()? {
        Some(_) => {
            let reason = "its weights have adapters for tasks (`parametrizations`), which the format has no place for: \
                          it can be loaded in int8, not written";
            Err(Error::file(folder, reason))
        }
        None => Ok((transformer, config)),
    }
}

/// The [`int8_weights`] of a model folder in groups that are loaded as int8 only together: queries, keys, values and
/// gate of a layer, and each other weight alone. They are in the order of the blocks, what is in none first.
///
/// # Errors
/// Those of [`int8_weights`]; a model that has weights in few bits already.
pub fn int8_groups(folder: impl AsRef<Path>) -> Result<Vec<Vec<String>>> {
    let folder = folder.as_ref();
    let (transformer, config) = transformer(folder)?;
    let stored = Checkpoint::open(&transformer)?.at("", ComputeType::default(), &Device::Cpu);
    let names = int8_weights(folder)?;
    if let Some((name, format)) = names.iter().find_map(|name| Some((name, stored.quantization(name)?))) {
        return Err(Error::file(folder, format!("weight `{name}` is in {format} already, expected a float dtype")));
    }
    let root = AnySource::new(&stored);
    let source = &Places::find(&config, &root).body;
    let row = config.row_in(source);
    let (mut blocks, mut together) = (Vec::new(), Vec::new());
    for (index, place) in config.block_prefixes().iter().enumerate() {
        let block = source.child(place);
        blocks.push(block.full_name(""));
        if !config.is_convolution(index) {
            let layer = block.child(row.block.attention);
            let inputs = detect(&layer)?.input_weights(|name| layer.contains(name));
            together.push(inputs.into_iter().map(|name| layer.full_name(name)).collect::<Vec<String>>());
        }
    }
    let block_of = |group: &Vec<String>| {
        let is_in = |block: &String| group[0].strip_prefix(block).is_some_and(|rest| rest.starts_with('.'));
        blocks.iter().position(is_in)
    };
    let mut groups: Vec<Vec<String>> = Vec::new();
    for name in names {
        if groups.iter().any(|group| group.contains(&name)) {
            continue;
        }
        let group = together.iter().find(|group| group.contains(&name));
        groups.push(group.cloned().unwrap_or_else(|| vec![name]));
    }
    groups.sort_by_key(block_of);
    Ok(groups)
}

/// The name of the format of compressed-tensors: a byte for each number.
const FORMAT: &str = "int-quantized";

/// The end of the name of a weight, after the name of its module.
const WEIGHT: &str = ".weight";

/// Writes the model of a folder to another folder, with those of its [`int8_weights`] in int8 for whose names `is_int8`
/// returns true, the others of them in bf16, or f16 if they are stored so, and all other tensors as they are stored;
/// with the folder's model card, other modules, and files of settings and tokenizers. Returns the names of the weights
/// in int8.
///
/// Experts of a mixture and an untied language head are none of these weights, because their tensors are no modules of
/// the format; a model with adapters for tasks (Jina embeddings v3) is an error for the same reason.
///
/// In [`ComputeType::default`] loaders keep these weights in int8 on the CPU. They compute in f32 with those in bf16: a
/// product in bf16 would round the inputs of just the projections that lose much by rounding.
///
/// The folder is made beside the target, synced and renamed, so that a kill, a full disk or a power failure leaves a
/// whole model or none.
///
/// # Errors
/// A target that exists, which is never replaced, or whose parent does not; the errors of [`int8_weights`]; a model
/// none of whose weights is to be int8; a weight that is not finite; a file that cannot be read or written.
pub fn write_int8(
    folder: impl AsRef<Path>,
    target: impl AsRef<Path>,
    is_int8: impl Fn(&str) -> bool,
) -> Result<Vec<String>> {
    let folder = folder.as_ref();
    let (chosen, others): (Vec<String>, Vec<String>) =
        int8_weights(folder)?.into_iter().partition(|name| is_int8(name));
    if chosen.is_empty() {
        return Err(Error::value("the weights to write in int8", "none", "at least one projection of the model"));
    }
    write_new_folder(target.as_ref(), |new| write_into(folder, new, &chosen, &others))?;
    Ok(chosen)
}

/// The sentence encoder of a folder with those weights in int8 for whose names `is_int8` returns true, and those for
/// whose `is_bf16` does rounded to bf16, if they are not in f16: what [`write_int8`] writes, without writing it, if
/// these are the other [`int8_weights`].
///
/// # Errors
/// The errors of [`SentenceEncoder::from_folder`]; a model with several transformers.
pub fn load_int8(
    folder: impl AsRef<Path>,
    is_int8: impl Fn(&str) -> bool,
    is_bf16: impl Fn(&str) -> bool,
) -> Result<SentenceEncoder> {
    let folder = folder.as_ref();
    let (transformer, _) = transformer(folder)?;
    let checkpoint = Checkpoint::open(&transformer)?;
    let is_matrix = |name: &str| checkpoint.tensor_info(name).is_ok_and(|(_, shape)| shape.len() == 2);
    let those = |wanted: &dyn Fn(&str) -> bool| -> BTreeSet<String> {
        checkpoint.names().filter(|name| is_matrix(name) && wanted(name)).map(str::to_string).collect()
    };
    // Half types stay what they are.
    let is_wide = |name: &str| !matches!(checkpoint.tensor_info(name), Ok((Dtype::F16 | Dtype::BF16, _)));
    let (int8, bf16) = (those(&is_int8), those(&|name: &str| is_bf16(name) && is_wide(name)));
    let source = checkpoint
        .at("", DType::F32, &Device::Cpu)
        .with_quantization(move |name| int8.contains(name).then_some(Quantization::Int8))
        .with_rounding(move |name| bf16.contains(name).then_some(DType::BF16));
    SentenceEncoder::load(folder, source)
}

/// Writes the model into the folder `new`, which is empty: `chosen` in int8, `others` in a half type.
fn write_into(folder: &Path, new: &Path, chosen: &[String], others: &[String]) -> Result<()> {
    let modules = modules(ModelFolder::new(folder))?.unwrap_or_default();
    let inside = modules.first().map_or("", |module| module.path.as_str());
    let checkpoint = Checkpoint::open(folder.join(inside))?;
    let (mut tensors, mut kept) = (Vec::<(String, WrittenTensor)>::new(), Vec::new());
    let is_int8 = |name: &str| chosen.iter().any(|other| other == name);
    // As it is written, if it is not in int8.
    let read = |name: &str| {
        let tensor = checkpoint.tensor(name, &Device::Cpu)?;
        let is_wide = matches!(tensor.dtype(), DType::F32 | DType::F64);
        let is_rounded = is_wide && others.iter().any(|other| other == name);
        Ok::<_, Error>(if is_rounded { tensor.to_dtype(DType::BF16)? } else { tensor })
    };
    for name in checkpoint.names() {
        let tensor = read(name)?;
        if is_int8(name) {
            let [values, scales] = parts(&rows(&tensor).map_err(|e| Error::file(name, e))?)?;
            tensors.extend([(name.to_string(), values), (format!("{name}_scale"), scales)]);
        } else {
            kept.extend(name.strip_suffix(WEIGHT).filter(|_| tensor.rank() == 2).map(str::to_string));
            tensors.push((name.to_string(), tensor.into()));
        }
    }
    let own_config = folder.join(inside).join("config.json");
    let mut config: Value = read_json(&own_config)?;
    let tables = embeddings(&TextModelConfig::from_file(&own_config)?, chosen);
    remove_quantization_config(&mut config);
    config["quantization_config"] = quantization_config(&kept, &tables);
    let folders: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).chain([""]).collect();
    for name in folders {
        copy_others(folder, name, inside, false, new)?;
    }
    let inside: PathBuf = new.join(inside);
    let text = serde_json::to_string_pretty(&config).map_err(|e| Error::file(new, e))?;
    write_file(&inside.join("config.json"), text + "\n")?;
    write_tensors(&inside.join("model.safetensors"), tensors, checkpoint.metadata().clone())?;
    // Loaded again, each tensor is what it was to be.
    let written = Checkpoint::open(&inside)?;
    for name in checkpoint.names() {
        let (got, want) = (written.tensor(name, &Device::Cpu)?, read(name)?);
        let is_same = if is_int8(name) {
            rows(&got)?.has_same_bits(&rows(&want)?)
        } else {
            (got.dtype(), got.dims(), got.data()) == (want.dtype(), want.dims(), want.data())
        };
        ensure!(is_same, Error::file(&inside, format!("tensor `{name}` differs when it is loaded")));
    }
    Ok(())
}

/// A weight `(out, in)` in int8.
fn rows(weight: &Tensor) -> Result<QuantizedRows> {
    let (out, input) = weight.dims2()?;
    let mut rows = QuantizedRows::new(Quantization::Int8.weight_format(), out, input)?;
    with_slices([&weight.to_dtype(DType::F32)?], |[weight]: [&[f32]; 1]| rows.push(weight))??;
    Ok(rows)
}

/// The integers of a weight `(out, in)`, and their scales `(out, 1)`.
fn parts(rows: &QuantizedRows) -> Result<[WrittenTensor; 2]> {
    let (out, input) = (rows.rows(), rows.width());
    let (mut values, mut scales) = (Vec::with_capacity(out * input), Vec::with_capacity(out));
    for (row, scale) in (0..out).filter_map(|row| rows.int8_row(row)) {
        values.extend_from_slice(row);
        scales.push(scale);
    }
    let scales = Tensor::from_vec(scales, (out, 1), &Device::Cpu)?;
    Ok([WrittenTensor::Int8 { shape: vec![out, input], values }, scales.into()])
}

/// The modules of tables of embeddings among weights.
fn embeddings(config: &TextModelConfig, weights: &[String]) -> Vec<String> {
    let modules = weights.iter().filter_map(|name| name.strip_suffix(WEIGHT));
    let names = [Some(config.row().word_embeddings), config.row().own_word_embeddings];
    let is_below = |module: &str, words: &str| {
        module.strip_suffix(words).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
    };
    let is_table = |module: &&str| names.iter().flatten().any(|words| is_below(module, words));
    modules.filter(is_table).map(str::to_string).collect()
}

/// The entry of `config.json` for linear layers in int8 but for those that are `kept` as they are, and for `tables` in
/// int8, whose rows are looked up, so that nothing is rounded at run time.
fn quantization_config(kept: &[String], tables: &[String]) -> Value {
    let scheme = |strategy: &str, dynamic: bool| json!({ "num_bits": 8, "type": "int", "symmetric": true, "strategy": strategy, "dynamic": dynamic });
    let weights = scheme("channel", false);
    let mut groups = json!({
        "group_0": {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": scheme("token", true),
            "format": FORMAT,
        },
    });
    if !tables.is_empty() {
        // The library would pack weights without rounded inputs in words unless the group states its format.
        groups["group_1"] =
            json!({ "targets": tables, "weights": weights, "input_activations": null, "format": FORMAT });
    }
    json!({
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": kept,
    })
}

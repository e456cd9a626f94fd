//! Writes a model without some of its attention heads: smaller, or of the same size with these heads zeroed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_attention::checkpoint::{AnySource, Checkpoint, WeightSource, detect};
use candle_attention::io::{
    create_folder, is_present, open_regular, read_json, write_atomic, write_file, write_new_folder, write_tensors,
};
use candle_attention::position::Position;
use candle_attention::pruning::PrunedHeads;
use candle_attention::weights::{LinearWeights, PositionWeights};
use candle_attention::{AttentionConfig, Error, MultiHeadAttention, Result, setters};
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use crate::folder::{ModelFolder, modules};
use crate::model::config::TextModelConfig;
use crate::model::text_model::body;

/// The model card of a model folder.
const CARD: &str = "README.md";

/// How a model is written without some of its heads. The default: smaller, with the model card of its folder.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct PruneOptions<'a> {
    /// Keep the size of the model, and write zeros where the output projections read these heads. The `config.json`
    /// stays as it is, so every library that loads the whole model loads this one, and computes what the pruned model
    /// computes; it takes as much memory and time as the whole one.
    ///
    /// Without it the weights are smaller, and `config.json` lists the heads under `pruned_heads`. Besides this crate,
    /// the versions of transformers before 5 read that key; later ones refuse the weights, because of their shapes.
    pub masked: bool,
    /// The text of `README.md`, the model card; `None` copies that of the folder.
    pub card: Option<&'a str>,
}

impl<'a> PruneOptions<'a> {
    setters! {
        /// Sets whether the model keeps its size.
        with_masked, masked: bool = masked;
        /// Sets the text of the model card.
        with_card, card: &'a str = Some(card);
    }
}

/// [`write_pruned_with`] the default options: the smaller model.
///
/// # Errors
/// The errors of [`write_pruned_with`].
pub fn write_pruned(folder: impl AsRef<Path>, target: impl AsRef<Path>, heads: &PrunedHeads) -> Result<PrunedHeads> {
    write_pruned_with(folder, target, heads, &PruneOptions::default())
}

/// Writes the model of a folder without these heads to another folder, smaller or masked, and the folder's other text
/// files and modules: what [`SentenceEncoder::from_folder`](crate::SentenceEncoder::from_folder) reads. It is made
/// beside the target, synced and renamed, so that a kill, a full disk or a power failure leaves a whole model or none.
/// Returns all heads that the model lacks now, by their numbers in the unpruned one. Heads count as in the model of the
/// folder, which may be pruned already.
///
/// # Errors
/// A target that exists, which is never replaced, or whose parent does not; a head that there is not; layers that share
/// their weights (ALBERT); a file that cannot be read or written.
pub fn write_pruned_with(
    folder: impl AsRef<Path>,
    target: impl AsRef<Path>,
    heads: &PrunedHeads,
    options: &PruneOptions,
) -> Result<PrunedHeads> {
    write_new_folder(target.as_ref(), |new| write_into(folder.as_ref(), new, heads, options))
}

/// Writes the model into the folder `new`, which is empty.
fn write_into(folder: &Path, new: &Path, heads: &PrunedHeads, options: &PruneOptions) -> Result<PrunedHeads> {
    let modules = modules(ModelFolder::new(folder))?.unwrap_or_default();
    let inside = modules.first().map_or("", |module| module.path.as_str());
    let transformer = folder.join(inside);
    let config = TextModelConfig::from_file(transformer.join("config.json"))?;
    let checkpoint = Checkpoint::open(&transformer)?;
    let all = config.pruned_heads.and(heads, config.num_attention_heads);
    let mut tensors = BTreeMap::new();
    for name in checkpoint.names() {
        tensors.insert(name.to_string(), checkpoint.tensor(name, &Device::Cpu)?);
    }
    replace(&config, &checkpoint, heads, options.masked, &mut tensors)?;
    if !options.masked {
        let mut pruned = config.clone();
        pruned.pruned_heads = all.clone();
        pruned.validate()?;
    }
    let own_config = transformer.join("config.json");
    let mut keys: Value = read_json(&own_config)?;
    keys["pruned_heads"] = serde_json::to_value(&all).map_err(|e| Error::file(new, e))?;
    let text = serde_json::to_string_pretty(&keys).map_err(|e| Error::file(new, e))?;

    let folders: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).chain([""]).collect();
    for name in folders {
        copy_others(folder, name, inside, options.card.is_some(), new)?;
    }
    if let Some(card) = options.card {
        write_file(&new.join(CARD), card)?;
    }
    let inside = new.join(inside);
    match options.masked {
        true => copy(&own_config, &inside.join("config.json"))?,
        false => write_file(&inside.join("config.json"), text + "\n")?,
    }
    write_tensors(&inside.join("model.safetensors"), tensors, checkpoint.metadata().clone())?;
    Ok(all)
}

/// Puts other weights in the place of those of layers that lose heads: smaller ones or, if `masked`, zeros.
fn replace(
    config: &TextModelConfig,
    checkpoint: &Checkpoint,
    heads: &PrunedHeads,
    masked: bool,
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<()> {
    let root = AnySource::new(&checkpoint.at("", DType::F32, &Device::Cpu));
    let body = body(config, &root);
    let source = body.as_ref().unwrap_or(&root);
    let row = config.row_in(source);
    let places = config.block_prefixes();
    let mut counts = Vec::new();
    for (index, _) in places.iter().enumerate() {
        counts.push(config.num_attention_heads - config.pruned_heads.of_layer(index).len());
    }
    heads.check(&counts)?;
    if row.shared_layers.is_some() {
        let allowed = "a model whose layers have weights of their own";
        return Err(Error::value("the model to prune", &config.model_type, allowed));
    }
    for (index, place) in places.iter().enumerate() {
        let of_layer = heads.of_layer(index);
        if of_layer.is_empty() {
            continue;
        }
        let layer = source.child(place).child(row.block.attention);
        let (attention, _) = config.attention_of(&layer, index)?;
        match masked {
            true => mask(checkpoint, &layer, &attention, &of_layer, tensors)?,
            false => shrink(checkpoint, &layer, attention, &of_layer, tensors)?,
        }
    }
    Ok(())
}

/// Puts the weights without `heads` in the place of those of a layer.
fn shrink(
    checkpoint: &Checkpoint,
    layer: &AnySource,
    mut config: AttentionConfig,
    heads: &[usize],
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<()> {
    let mut weights = checkpoint.layer_weights(&layer.full_name(""), &config)?;
    // Tables that all layers share stay whole.
    (config.position, weights.position) = (Position::None, PositionWeights::default());
    let layout = detect(layer)?;
    for name in weights.to_layout(&config, layout)?.keys() {
        tensors.remove(&layer.full_name(name));
    }
    let pruned = MultiHeadAttention::from_weights(&config, weights)?.prune_heads(heads)?;
    for (name, tensor) in pruned.weights()?.to_layout(pruned.config(), layout)? {
        tensors.insert(layer.full_name(&name), tensor);
    }
    Ok(())
}

/// Puts an output projection that reads nothing of `heads` in the place of that of a layer.
fn mask(
    checkpoint: &Checkpoint,
    layer: &AnySource,
    config: &AttentionConfig,
    heads: &[usize],
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<()> {
    let mut weights = checkpoint.layer_weights(&layer.full_name(""), config)?;
    let d_v = config.resolved_value_head_dim();
    let factor = |column: usize| if heads.contains(&(column / d_v)) { 0f32 } else { 1.0 };
    let LinearWeights { weight, .. } = &weights.o; // (hidden_size, h · d_v)
    let factors = Tensor::from_iter((0..weight.dim(1)?).map(factor), weight.device())?;
    weights.o.weight = weight.broadcast_mul(&factors.to_dtype(weight.dtype())?)?;
    let layout = detect(layer)?;
    let named = weights.to_layout(config, layout)?.into_iter().find(|(name, _)| name == layout.output_weight());
    tensors.extend(named.map(|(name, tensor)| (layer.full_name(&name), tensor)));
    Ok(())
}

/// Copies from one folder of a model what is neither configuration nor weights of the transformer: tokenizer, settings
/// of modules, texts; with `new_card`, all but the model card. Weights in other formats would be those of the whole
/// model. A module without settings may have no folder.
fn copy_others(model: &Path, name: &str, transformer: &str, new_card: bool, new: &Path) -> Result<()> {
    let (from, to) = (model.join(name), new.join(name));
    if !is_present(&from)? {
        return Ok(());
    }
    create_folder(&to)?;
    for entry in std::fs::read_dir(&from).map_err(|e| Error::io(&from, e))? {
        let path = entry.map_err(|e| Error::io(&from, e))?.path();
        // What cannot be read, such as a link that leads nowhere, is an error and not left out.
        let Some(file) = path.file_name().filter(|_| !path.is_dir()) else { continue };
        let is = |extensions: &[&str]| path.extension().is_some_and(|x| extensions.iter().any(|other| x == *other));
        let of_transformer = name == transformer
            && (file == "config.json" || is(&["safetensors"]) || file.to_string_lossy().ends_with(".index.json"));
        let module_weights = is(&["safetensors"]) && name != transformer;
        let replaced = new_card && name.is_empty() && file == CARD;
        if !of_transformer && !replaced && (module_weights || is(&["jinja", "json", "txt", "md", "model"])) {
            copy(&path, &to.join(file))?;
        }
    }
    Ok(())
}

/// Copies a regular file, with the permissions of any new file.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let (mut source, _) = open_regular(from)?;
    write_atomic(to, |file| std::io::copy(&mut source, file).map(drop).map_err(|e| Error::io(to, e)))
}

//! Removal of attention heads from a model, in memory and on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use crate::attention::MultiHeadAttention;
use crate::checkpoint::{Checkpoint, WeightSource, detect};
use crate::encoder::folder::{ModelFolder, modules};
use crate::encoder::model::bert::{BertModel, body};
use crate::encoder::model::config::BertConfig;
use crate::error::{Error, Result};
use crate::io::{NewFolder, check_absent, is_present, json, write_new_folder, write_tensors};
use crate::position::Position;
use crate::pruning::PrunedHeads;
use crate::tensor::Frozen;
use crate::weights::PositionWeights;

impl BertModel {
    /// The model without these heads, by their numbers in this model: what it computes with a mask of 0 for them, for
    /// less work. Their numbers in the unpruned model are in the configuration, under `pruned_heads`.
    ///
    /// # Errors
    /// A head that there is not; layers that share their weights (ALBERT); see
    /// [`MultiHeadAttention::prune_heads`](crate::MultiHeadAttention::prune_heads).
    pub fn prune_heads(&self, heads: &PrunedHeads) -> Result<Self> {
        heads.check(&self.heads())?;
        let mut pruned = Self { frozen: Frozen::default(), ..self.clone() };
        pruned.config.pruned_heads = self.config.pruned_heads.and(heads, self.config.num_attention_heads);
        pruned.config.validate()?;
        for (index, layer) in pruned.blocks.iter_mut().enumerate() {
            let of_layer = heads.of_layer(index);
            if !of_layer.is_empty() {
                *layer = layer.with_attention(layer.attention().prune_heads(&of_layer)?);
            }
        }
        Ok(pruned)
    }
}

/// Writes the model of a folder without these heads to another folder, with smaller weights, `pruned_heads` in its
/// `config.json`, and the folder's other text files and modules: what
/// [`SentenceEncoder::from_folder`](crate::encoder::SentenceEncoder::from_folder) reads. It is made beside the target, synced
/// and renamed, so that a kill, a full disk or a power failure leaves a whole model or none. Returns all heads that the model
/// lacks now, by their numbers in the unpruned one.
///
/// # Errors
/// A target that exists, which is never replaced, or whose parent does not; a head that there is not; a file that cannot be
/// read or written.
pub fn write_pruned(folder: impl AsRef<Path>, target: impl AsRef<Path>, heads: &PrunedHeads) -> Result<PrunedHeads> {
    let (folder, target) = (folder.as_ref(), target.as_ref());
    // Before the work, which may take minutes.
    check_absent(target)?;
    let modules = modules(ModelFolder::new(folder))?.unwrap_or_default();
    let inside = modules.first().map_or("", |module| module.path.as_str());
    let transformer = folder.join(inside);
    let config = BertConfig::from_file(transformer.join("config.json"))?;
    let checkpoint = Checkpoint::open(&transformer)?;
    let all = config.pruned_heads.and(heads, config.num_attention_heads);
    let mut tensors = BTreeMap::new();
    for name in checkpoint.names() {
        tensors.insert(name.to_string(), checkpoint.tensor(name, &Device::Cpu)?);
    }
    replace(&config, &checkpoint, heads, &mut tensors)?;
    let mut keys: Value = json(&transformer.join("config.json"))?;
    keys["pruned_heads"] = serde_json::to_value(&all).map_err(|e| Error::file(target, e))?;
    let text = serde_json::to_string_pretty(&keys).map_err(|e| Error::file(target, e))?;

    write_new_folder(target, |new| {
        let folders: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).chain([""]).collect();
        for name in folders {
            copy_others(folder, name, inside, new)?;
        }
        new.write_bytes(Path::new(inside).join("config.json"), (text + "\n").as_bytes())?;
        let weights = Path::new(inside).join("model.safetensors");
        let path = target.join(&weights);
        new.write(weights, |file| write_tensors(file, &path, &tensors, checkpoint.metadata()))
    })?;
    Ok(all)
}

/// Puts smaller weights in the place of those of layers that lose heads.
fn replace(
    config: &BertConfig,
    checkpoint: &Checkpoint,
    heads: &PrunedHeads,
    tensors: &mut BTreeMap<String, Tensor>,
) -> Result<()> {
    let root = checkpoint.at("", DType::F32, &Device::Cpu);
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
        let (mut attention, _) = config.attention_of(&layer, index)?;
        let prefix = layer.full_name("");
        let mut weights = checkpoint.layer_weights(&prefix, &attention)?;
        // Tables that all layers share stay whole.
        (attention.position, weights.position) = (Position::None, PositionWeights::default());
        let layout = detect(&layer)?;
        for name in weights.to_layout(&attention, layout)?.keys() {
            tensors.remove(&layer.full_name(name));
        }
        let pruned = MultiHeadAttention::from_weights(&attention, weights)?.prune_heads(&of_layer)?;
        for (name, tensor) in pruned.weights()?.to_layout(pruned.config(), layout)? {
            tensors.insert(layer.full_name(&name), tensor);
        }
    }
    Ok(())
}

/// Copies from one folder of a model what is neither configuration nor weights of the transformer: tokenizer, settings of
/// modules, texts. Weights in other formats would be those of the whole model. A module without settings may have no folder.
fn copy_others(model: &Path, name: &str, transformer: &str, new: &NewFolder) -> Result<()> {
    let from = model.join(name);
    if !is_present(&from)? {
        return Ok(());
    }
    // Each folder on the way to it.
    let mut inside = PathBuf::new();
    for part in Path::new(name) {
        inside.push(part);
        new.create_folder(&inside)?;
    }
    for entry in std::fs::read_dir(&from).map_err(|e| Error::io(&from, e))? {
        let path = entry.map_err(|e| Error::io(&from, e))?.path();
        // What cannot be read, such as a link that leads nowhere, is an error and not left out.
        let Some(file) = path.file_name().filter(|_| !path.is_dir()) else { continue };
        let is = |extensions: &[&str]| path.extension().is_some_and(|x| extensions.iter().any(|other| x == *other));
        let of_transformer = name == transformer
            && (file == "config.json" || is(&["safetensors"]) || file.to_string_lossy().ends_with(".index.json"));
        let module_weights = is(&["safetensors"]) && name != transformer;
        if !of_transformer && (module_weights || is(&["json", "txt", "md", "model"])) {
            new.copy(&path, inside.join(file))?;
        }
    }
    Ok(())
}

//! Removal of attention heads from a model, in memory and on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use crate::attention::MultiHeadAttention;
use crate::checkpoint::{Checkpoint, WeightSource, detect};
use crate::encoder::folder::{Module, modules};
use crate::encoder::model::bert::{BertModel, body};
use crate::encoder::model::config::BertConfig;
use crate::error::{Error, Result};
use crate::io::{is_present, json, open_regular, write_atomic, write_tensors};
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
/// [`SentenceEncoder::from_folder`](crate::encoder::SentenceEncoder::from_folder) reads. It is made beside the target and renamed,
/// so that nothing half-written is left. Returns all heads that the model lacks now, by their numbers in the unpruned one.
///
/// # Errors
/// A target that exists; a head that there is not; a file that cannot be read or written.
pub fn write_pruned(folder: impl AsRef<Path>, target: impl AsRef<Path>, heads: &PrunedHeads) -> Result<PrunedHeads> {
    let (folder, target) = (folder.as_ref(), target.as_ref());
    if is_present(target)? {
        return Err(Error::file(target, "exists already"));
    }
    write_atomic(target, |part| write(folder, part, heads))
}

fn write(folder: &Path, target: &Path, heads: &PrunedHeads) -> Result<PrunedHeads> {
    let modules = modules(folder)?.unwrap_or_default();
    let inside = modules.first().map(|first| first.path.clone()).unwrap_or_default();
    let transformer = folder.join(&inside);
    let config = BertConfig::from_file(transformer.join("config.json"))?;
    let checkpoint = Checkpoint::open(&transformer)?;
    let all = config.pruned_heads.and(heads, config.num_attention_heads);
    let mut tensors = BTreeMap::new();
    for name in checkpoint.names() {
        tensors.insert(name.to_string(), checkpoint.tensor(name, &Device::Cpu)?);
    }
    replace(&config, &checkpoint, heads, &mut tensors)?;

    copy_others(folder, target, &modules, &inside)?;
    let target = target.join(&inside);
    let mut keys: Value = json(&transformer.join("config.json"))?;
    keys["pruned_heads"] = serde_json::to_value(&all).map_err(|e| Error::file(&target, e))?;
    let path = target.join("config.json");
    let text = serde_json::to_string_pretty(&keys).map_err(|e| Error::file(&path, e))?;
    std::fs::write(&path, text + "\n").map_err(|e| Error::io(&path, e))?;
    let path = target.join("model.safetensors");
    write_tensors(&path, &path, tensors, checkpoint.metadata().clone())?;
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

/// Copies what is neither configuration nor weights of the transformer: tokenizer, modules, texts. Weights in other
/// formats would be those of the whole model. Only the folders of modules are entered: a link may lead from a folder to
/// itself.
fn copy_others(from: &Path, to: &Path, modules: &[Module], transformer: &str) -> Result<()> {
    let folders: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).chain([""]).collect();
    for inside in folders {
        let from = from.join(inside);
        // A module without settings may have no folder.
        if inside.is_empty() || is_present(&from)? {
            copy_files(&from, &to.join(inside), inside == transformer)?;
        }
    }
    Ok(())
}

/// Copies the files of one folder, that of the transformer if `transformer`.
fn copy_files(from: &Path, to: &Path, transformer: bool) -> Result<()> {
    std::fs::create_dir_all(to).map_err(|e| Error::io(to, e))?;
    for entry in std::fs::read_dir(from).map_err(|e| Error::io(from, e))? {
        let path = entry.map_err(|e| Error::io(from, e))?.path();
        let Some(name) = path.file_name().filter(|_| !path.is_dir()) else { continue };
        let is = |extensions: &[&str]| path.extension().is_some_and(|x| extensions.iter().any(|other| x == *other));
        let of_transformer = transformer
            && (name == "config.json" || is(&["safetensors"]) || name.to_string_lossy().ends_with(".index.json"));
        let module_weights = is(&["safetensors"]) && !transformer;
        if !of_transformer && (module_weights || is(&["json", "txt", "md", "model"])) {
            let (mut original, _) = open_regular(&path)?;
            let copy = to.join(name);
            let mut file = std::fs::File::create(&copy).map_err(|e| Error::io(&copy, e))?;
            std::io::copy(&mut original, &mut file).map_err(|e| Error::io(&copy, e))?;
        }
    }
    Ok(())
}

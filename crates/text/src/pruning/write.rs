//! Writes a model without some of its attention heads: smaller, or of the same size with these heads zeroed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use candle_attention::checkpoint::{AnySource, Checkpoint, WeightSource, detect, remove_quantization_config};
use candle_attention::io::{
    create_folder, is_present, open_regular, read_json, write_atomic, write_file, write_new_folder, write_tensors,
};
use candle_attention::position::Position;
use candle_attention::pruning::PrunedHeads;
use candle_attention::weights::LinearWeights;
use candle_attention::{AttentionConfig, Error, MultiHeadAttention, Result, setters};
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use crate::folder::transformer_settings::TRANSFORMER_SETTINGS;
use crate::folder::{ModelFolder, modules};
use crate::model::config::TextModelConfig;
use crate::model::places::Places;
use crate::text::tokenizer::MAX_TOKENIZER_BYTES;

/// The model card of a model folder.
const CARD: &str = "README.md";

/// The longest model card that is read, in bytes: 1 MiB. Published ones have some thousand.
const MAX_CARD_BYTES: u64 = 1 << 20;

/// The largest weights of a module beside the transformer, in bytes: 4 GiB. Published ones have at most 1 GB.
const MAX_MODULE_BYTES: u64 = 1 << 32;

/// The other files that a pruned model gets: the names of settings and tokenizers in sentence-transformers and
/// transformers. Weights in other formats would be those of the whole model.
const COPIED: [&str; 20] = [
    CARD,
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "idf.json",
    "merges.txt",
    "modules.json",
    "router_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "unigram.json",
    "vocab.json",
    "vocab.txt",
];

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

/// Writes the model of a folder without these heads to another folder, smaller or masked, with the folder's model card,
/// other modules, and the files of settings and tokenizers that transformers and sentence-transformers name: what
/// [`SentenceEncoder::from_folder`](crate::SentenceEncoder::from_folder) reads. It is made beside the target, synced
/// and renamed, so that a kill, a full disk or a power failure leaves a whole model or none. Returns all heads that the
/// model lacks now, by their numbers in the unpruned one. Heads count as in the model of the folder, which may be
/// pruned already. Of a quantized model, what its weights stand for is written, in f32.
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
    let config = ModelFolder::new(folder).transformer_config(&transformer)?;
    let checkpoint = Checkpoint::open(&transformer)?;
    let all = config.pruned_heads.and(heads, config.num_attention_heads);
    let mut weights = Weights { config: &config, checkpoint: &checkpoint, tensors: BTreeMap::new() };
    for name in checkpoint.names() {
        weights.tensors.insert(name.to_string(), checkpoint.tensor(name, &Device::Cpu)?);
    }
    weights.remove_heads(heads, options.masked)?;
    if !options.masked {
        let mut pruned = config.clone();
        pruned.pruned_heads = all.clone();
        pruned.validate()?;
    }
    let own_config = transformer.join("config.json");
    let mut keys: Value = read_json(&own_config)?;
    if !options.masked {
        keys["pruned_heads"] = serde_json::to_value(&all).map_err(|e| Error::file(new, e))?;
    }
    // The weights are written dequantized.
    remove_quantization_config(&mut keys);
    let text = serde_json::to_string_pretty(&keys).map_err(|e| Error::file(new, e))?;

    let folders: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).chain([""]).collect();
    for name in folders {
        copy_others(folder, name, inside, options.card.is_some(), new)?;
    }
    if let Some(card) = options.card {
        write_file(&new.join(CARD), card)?;
    }
    let inside = new.join(inside);
    if options.masked && !checkpoint.is_quantized() {
        copy(folder, &own_config, &inside.join("config.json"), MAX_TOKENIZER_BYTES)?
    } else {
        write_file(&inside.join("config.json"), text + "\n")?
    }
    write_tensors(&inside.join("model.safetensors"), weights.tensors, checkpoint.metadata().clone())?;
    Ok(all)
}

/// The weights of a model that are written.
struct Weights<'a> {
    config: &'a TextModelConfig,
    checkpoint: &'a Checkpoint,
    tensors: BTreeMap<String, Tensor>,
}

impl Weights<'_> {
    /// Puts other weights in the place of those of layers that lose heads: smaller ones or, if `masked`, zeros.
    fn remove_heads(&mut self, heads: &PrunedHeads, masked: bool) -> Result<()> {
        let Self { config, checkpoint, .. } = *self;
        let root = AnySource::new(&checkpoint.at("", DType::F32, &Device::Cpu));
        let source = &Places::find(config, &root).body;
        let row = config.row_in(source);
        let places = config.block_prefixes();
        let mut counts = Vec::new();
        for (index, _) in places.iter().enumerate() {
            let all = if config.is_convolution(index) { 0 } else { config.num_attention_heads };
            counts.push(all - config.pruned_heads.for_layer(index).len());
        }
        heads.check(&counts)?;
        if row.shared_layers.is_some() {
            let allowed = "a model whose layers have weights of their own";
            return Err(Error::value("the model to prune", &config.model_type, allowed));
        }
        for (index, place) in places.iter().enumerate() {
            let layer_heads = heads.for_layer(index);
            if layer_heads.is_empty() {
                continue;
            }
            let layer = source.child(place).child(row.block.attention);
            let (attention, _) = config.attention_of(&layer, index)?;
            if masked {
                self.mask(&layer, &attention, &layer_heads)?
            } else {
                self.shrink(&layer, attention, &layer_heads)?
            }
        }
        Ok(())
    }

    /// Puts the weights without `heads` in the place of those of a layer.
    fn shrink(&mut self, layer: &AnySource, mut config: AttentionConfig, heads: &[usize]) -> Result<()> {
        let weights = self.checkpoint.layer_weights(&layer.full_name(""), &config)?;
        if !weights.position.is_empty() {
            let allowed = "one whose positions have no weights in its layers (DeBERTa v1 has): its heads can be masked";
            return Err(Error::value("the model to make smaller", layer.full_name(""), allowed));
        }
        // Tables that all layers share stay whole.
        config.position = Position::None;
        let layout = detect(layer)?;
        for name in weights.to_layout(&config, layout)?.keys() {
            self.tensors.remove(&layer.full_name(name));
        }
        let pruned = MultiHeadAttention::from_weights(&config, weights)?.prune_heads(heads)?;
        for (name, tensor) in pruned.weights()?.to_layout(pruned.config(), layout)? {
            self.tensors.insert(layer.full_name(&name), tensor);
        }
        Ok(())
    }

    /// Puts an output projection that reads nothing of `heads` in the place of that of a layer.
    fn mask(&mut self, layer: &AnySource, config: &AttentionConfig, heads: &[usize]) -> Result<()> {
        let mut weights = self.checkpoint.layer_weights(&layer.full_name(""), config)?;
        let d_v = config.resolved_value_head_dim();
        let factor = |column: usize| if heads.contains(&(column / d_v)) { 0f32 } else { 1.0 };
        let LinearWeights { weight, .. } = &weights.o; // (hidden_size, h · d_v)
        let factors = Tensor::from_iter((0..weight.dim(1)?).map(factor), weight.device())?;
        weights.o.weight = weight.broadcast_mul(&factors.to_dtype(weight.dtype())?)?;
        let layout = detect(layer)?;
        let named = weights.to_layout(config, layout)?.into_iter().find(|(name, _)| name == layout.output_weight());
        self.tensors.extend(named.map(|(name, tensor)| (layer.full_name(&name), tensor)));
        Ok(())
    }
}

/// Copies from one folder of a model the files of [`COPIED`] and [`TRANSFORMER_SETTINGS`], but for the configuration of
/// the transformer and, with `new_card`, the model card; and the weights of another module. A module without settings
/// may have no folder.
pub(crate) fn copy_others(model: &Path, name: &str, transformer: &str, new_card: bool, new: &Path) -> Result<()> {
    let (from, to) = (model.join(name), new.join(name));
    if !is_present(&from)? {
        return Ok(());
    }
    create_folder(&to)?;
    let is_replaced =
        |file: &str| name == transformer && file == "config.json" || new_card && name.is_empty() && file == CARD;
    let small = COPIED
        .into_iter()
        .chain(TRANSFORMER_SETTINGS)
        .filter(|file| !is_replaced(file))
        .map(|file| (file, MAX_TOKENIZER_BYTES));
    let weights = (name != transformer).then_some(("model.safetensors", MAX_MODULE_BYTES));
    for (file, limit) in small.chain(weights) {
        let path = from.join(file);
        // A file that cannot be read, such as a link that leads nowhere, is an error and not left out.
        if is_present(&path)? {
            copy(model, &path, &to.join(file), limit)?;
        }
    }
    Ok(())
}

/// Copies a regular file of a model, with the permissions of any new file.
fn copy(model: &Path, from: &Path, to: &Path, limit: u64) -> Result<()> {
    let source = open_own(model, from, limit)?;
    write_atomic(to, |file| std::io::copy(&mut source.take(limit), file).map(drop).map_err(|e| Error::io(to, e)))
}

/// Opens a regular file of a model, of at most `limit` bytes. A link must stay in the model's folder or lead to the
/// `blobs` beside a snapshot in the hub's cache: what else is on the disk is no part of what somebody may publish.
fn open_own(model: &Path, path: &Path, limit: u64) -> Result<File> {
    let real = |path: &Path| path.canonicalize().map_err(|e| Error::io(path, e));
    let (folder, target) = (real(model)?, real(path)?);
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|cached| cached.join("blobs"));
    if ![Some(folder), blobs].into_iter().flatten().any(|inside| target.starts_with(inside)) {
        return Err(Error::file(path, format!("it leads to {}, outside of the model's folder", target.display())));
    }
    match open_regular(path)? {
        (file, length) if length <= limit => Ok(file),
        (_, length) => Err(Error::file(path, format!("the file has {length} bytes, expected at most {limit}"))),
    }
}

/// The text of the model card, the `README.md` of a model's folder; empty if it has none.
///
/// # Errors
/// A card that is no regular file of the folder, is longer than 1 MiB, or cannot be read.
pub fn model_card(folder: impl AsRef<Path>) -> Result<String> {
    let path = folder.as_ref().join(CARD);
    let mut bytes = Vec::new();
    if is_present(&path)? {
        let card = open_own(folder.as_ref(), &path, MAX_CARD_BYTES)?;
        card.take(MAX_CARD_BYTES).read_to_end(&mut bytes).map_err(|e| Error::io(&path, e))?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

//! Reads the attention configuration of a layer from the `config.json` of its model.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::attention::mechanisms::{CONTEXT_NORM_PARTS, PROJECTION_LIMITS};
use crate::checkpoint::detect::{check_prefix, detect};
use crate::checkpoint::infer::{biases, infer};
use crate::checkpoint::section::{Section, section};
use crate::checkpoint::shared_tables::shared_patch_table;
use crate::checkpoint::source::{AnySource, WeightSource};
use crate::config::{AttentionConfig, KeyValueSource};
use crate::error::{Error, Result};
use crate::families::config_classes::{ignored_sizes, is_of_class};
use crate::families::keys::RecordedSection;
use crate::families::layer::{Layer, LayerContents};
use crate::families::layout::{GateNames, Layout, PATCH_KEYS};
use crate::io::number;
use crate::mask::AttentionMask;
use crate::setters;
use crate::weights::NORM_PARTS;

/// An attention configuration taken from a Hugging Face `config.json`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HfAttentionConfig {
    /// The layer's configuration, with its built-in mask: causal, sliding window.
    pub config: AttentionConfig,
    /// Heads that the layer no longer has, by their indices in the unpruned model.
    pub pruned_heads: Vec<usize>,
    /// The facts that the layer cannot know and a call has to say
    /// ([`ModelAttention::note`](crate::checkpoint::ModelAttention)).
    pub note: Option<&'static str>,
}

/// Reads numbers of heads, positions, scale and mask of a layer from a parsed `config.json`, and its sizes from the
/// weights that `source` points at. Sizes that the file states must agree with them.
///
/// `config` is the parsed file, or a [`ModelConfig`] that says which family to read it as. Of a model of several parts
/// it is the whole file, whose section is found by the prefix of the layer, or that section.
///
/// # Errors
/// The result is the layer as its model runs it, or an error: [`Error::UnknownFamily`], [`Error::UnsupportedFamily`],
/// and [`Error::UnsupportedKey`] for a key that changes attention in a way that the family is not known to have. Also a
/// layout that the family does not have; a key missing or of the wrong kind; those of
/// [`infer_config`](crate::checkpoint::infer_config); a size that the weights contradict; a prefix that does not tell
/// its section.
pub fn config_from_json<'a>(
    config: impl Into<ModelConfig<'a>>,
    source: &impl WeightSource,
) -> Result<HfAttentionConfig> {
    read_config(config.into(), &AnySource::new(source))
}

fn read_config(config: ModelConfig, source: &AnySource) -> Result<HfAttentionConfig> {
    let ModelConfig { json, like } = config;
    let prefix = source.full_name("");
    let Section { keys: section, model_type } = section(json, &prefix)?;
    let model_type = like.or(model_type.as_deref());
    let has_class = config.has_class(section);
    let keys = if has_class { without_ignored_sizes(section, model_type) } else { Cow::Borrowed(section) };
    let section = &*keys;
    let recorded = RecordedSection::new(section);
    let layer = Layer::new(&recorded, model_type, &prefix)?;
    check_prefix(source)?;
    let heads = layer.heads()?;
    let pruned_heads = layer.pruned_heads(heads)?;
    let pruned = pruned_heads.len();
    let mut config = infer(source, heads.saturating_sub(pruned))?;
    if let KeyValueSource::Shared { .. } = config.key_value_source {
        // The layer has no keys whose shape would show it.
        config.num_key_value_heads = layer.head_size("num_key_value_heads")?.or(config.num_key_value_heads);
    }
    // Qwen2-VL's vision tower states its own width as `embed_dim`, and that of the text beside it as `hidden_size`.
    // MobileBERT's attention has the width of its bottlenecks.
    let width_of_part = layer.width_of_part();
    let width = match section {
        _ if width_of_part.is_some() => width_of_part.unwrap_or_default(),
        keys if keys.get("embed_dim").is_some_and(Value::is_number) => "embed_dim",
        keys if keys.get("use_bottleneck") == Some(&Value::Bool(true)) => "intra_bottleneck_size",
        _ => "hidden_size",
    };
    let stated = [
        (width, config.hidden_size),
        ("d_model", config.hidden_size),
        ("dim", config.hidden_size),
        ("n_embd", config.hidden_size),
        ("head_dim", config.resolved_head_dim()),
        ("num_key_value_heads", config.resolved_num_key_value_heads()),
    ];
    // Families with latent attention have keys of their own for the sizes of heads, and `head_dim` for something else.
    let stated =
        stated.into_iter().filter(|(key, _)| config.latent.is_none() || *key != "head_dim").collect::<Vec<_>>();
    let stated_size = |key: &str| match key {
        "head_dim" | "num_key_value_heads" => layer.head_size(key),
        _ => number(section, key),
    };
    // A layer that lacks heads may lack key-value heads too, or every head that would show `head_dim`.
    let stated = &stated[..if pruned == 0 && width_of_part.is_none() { stated.len() } else { 4 }];
    for &(key, found) in stated.iter().filter(|_| !layer.family.head_sizes.is_per_stage()) {
        if let Some(stated) = stated_size(key)?.filter(|stated| *stated != found) {
            return Err(Error::config(key, stated, format!("{found}, as the weights under `{prefix}` have it")));
        }
    }
    let (layout, shared) = (detect(source)?, rows(&source.root(), shared_patch_table(source).as_deref())?);
    let (config, mask) = configure(&layer, source, config, &pruned_heads, shared, has_class)?;
    let has_table = layout.patch_table_in(source).is_some() || shared.is_some();
    if layout.may_be_eva && !has_table && layer.own("use_rot_pos_emb").is_none() {
        let why = format!("no tensor of layout `{}` shows which it is", layout.name);
        let allowed = format!("true for timm's Eva that rotates, false for its Beit and other Eva: {why}");
        return Err(Error::config("use_rot_pos_emb", "absent", allowed));
    }
    Ok(HfAttentionConfig { config: config.with_mask(mask), pruned_heads, note: layer.family.note })
}

/// This section of a `config.json` without the keys of sizes that transformers ignores.
fn without_ignored_sizes<'a>(section: &'a Value, model_type: Option<&str>) -> Cow<'a, Value> {
    let ignored = section.as_object().map_or(Vec::new(), |keys| ignored_sizes(keys, model_type.unwrap_or_default()));
    let mut section = Cow::Borrowed(section);
    for key in ignored {
        section.to_mut().as_object_mut().map(|keys| keys.remove(key));
    }
    section
}

/// Removes from a parsed `config.json` the keys of sizes that transformers ignores, because the config class of its
/// `model_type` does not have them. Other keys that it ignores are left to [`ModelConfig::configure`]. Without a
/// `model_type`, and for a model whose code is beside the checkpoint, nothing is removed.
pub fn remove_ignored_keys(config: &mut Map<String, Value>) {
    let Some(model_type) = config.get("model_type").and_then(Value::as_str).filter(|_| is_of_class(config)) else {
        return;
    };
    for key in ignored_sizes(config, model_type) {
        config.remove(key);
    }
}

/// The rows of a table of biases.
fn rows(source: &dyn WeightSource, table: Option<&str>) -> Result<Option<usize>> {
    let shape = table.map(|table| source.shape(table)).transpose()?.flatten();
    Ok(shape.and_then(|shape| shape.first().copied()))
}

/// The rows of the tables of rows and columns between patches, if the layer holds them.
fn patch_keys(source: &dyn WeightSource, layout: &Layout) -> Result<Option<[usize; 2]>> {
    let mut found = [None; 2];
    for (found, name) in found.iter_mut().zip(PATCH_KEYS) {
        let Some(name) = layout.position_name(name).filter(|name| source.contains(name)) else { continue };
        let unknown =
            || Error::value(format!("the source of `{name}`"), "without shapes", "one that lists its tensors");
        *found = Some(rows(source, Some(&name))?.ok_or_else(unknown)?);
    }
    let [height, width] = found;
    Ok(height.zip(width).map(<[usize; 2]>::from))
}

/// The rows of the gate of the output, if there is one.
fn gate_rows(source: &dyn WeightSource, layout: &Layout, config: &AttentionConfig) -> Result<Option<usize>> {
    if matches!(layout.gate, GateNames::InQuery | GateNames::BeforeQuery) {
        return Ok(Some(config.num_attention_heads * config.resolved_value_head_dim()));
    }
    let gate = layout.gate_projection().filter(|names| source.contains(names.weight));
    rows(source, gate.map(|names| names.weight))
}

/// `shared_rows` are those of the table of biases that all layers share. `has_class` is whether transformers' own class
/// runs the file.
fn configure(
    layer: &Layer,
    source: &dyn WeightSource,
    config: AttentionConfig,
    pruned: &[usize],
    shared_rows: Option<usize>,
    has_class: bool,
) -> Result<(AttentionConfig, AttentionMask)> {
    let layout = detect(source)?;
    let grouped = config.num_attention_heads != config.resolved_num_key_value_heads();
    let biases = biases(source, layout);
    layer.family.check_layout(layer.model_type, layout, biases, grouped)?;
    let held = |parameter: &str| layout.held_name(|name| source.contains(name), parameter).is_some();
    let bias_rows = rows(source, layout.patch_table_in(source))?.or(shared_rows);
    let contents = LayerContents {
        norms: NORM_PARTS[..2].iter().any(|[weight, _]| held(weight)),
        gate: gate_rows(source, layout, &config)?,
        indexer: layout.holds_indexer(source),
        blocks: config.key_compression().is_some(),
        context_norm: held(CONTEXT_NORM_PARTS[0]),
        bias_rows,
        patch_keys: patch_keys(source, layout)?,
        layout: layout.name(),
        pruned,
    };
    layer.check_limits(PROJECTION_LIMITS.as_flattened().iter().any(|limit| held(limit)))?;
    let (config, mask) = (layer.configure(config, &contents), layer.mask());
    // Wrong sizes are an error where they are used.
    for key in ["head_dim", "num_key_value_heads"] {
        layer.head_size(key).ok();
    }
    layer.check_kinds()?;
    let config = config?;
    config.validate()?;
    if has_class {
        layer.check_tensors(|letter, name| match letter {
            'q' => biases.q,
            'k' => biases.k,
            'v' => biases.v,
            'o' => biases.o,
            'n' => contents.norms,
            't' => contents.bias_rows.is_some(),
            'r' => contents.patch_keys.is_some(),
            'g' => layout.gate_projection().is_some_and(|gate| source.contains(gate.bias)),
            _ => held(name),
        })?;
    }
    layer.check_keys_are_read(has_class)?;
    Ok((config, mask?))
}

/// A parsed `config.json`, and the family that it is read as.
///
/// `&Value` converts into it. Functions then take the family from the file's own `model_type`.
///
/// Some models are another family under a name of their own. Use [`with_like`](Self::with_like) to read one as that
/// family. Its weights must be in one of the family's layouts.
///
/// ```
/// use candle_attention::checkpoint::ModelConfig;
///
/// let json = serde_json::json!({"model_type": "my_llama", "num_attention_heads": 8, "rope_theta": 5e5});
/// let config = ModelConfig::new(&json).with_like("llama");
/// # assert_eq!(config.like, Some("llama"));
/// ```
///
/// The `config.json` of timm states no family: `timm` is its name here, and the keys are the arguments of timm's
/// classes, such as `num_heads`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ModelConfig<'a> {
    /// The parsed `config.json`: that of the whole model, or the section of the part that the layer belongs to.
    pub json: &'a Value,
    /// The family, as `model_type` spells it, that the layer is read as. `None`: the one that the file states.
    pub like: Option<&'a str>,
}

impl<'a> ModelConfig<'a> {
    /// The configuration of a file that states its family.
    pub fn new(json: &'a Value) -> Self {
        Self { json, like: None }
    }

    setters! {
        /// Sets the family that the layer is read as, whatever the file states.
        with_like, like: impl Into<Option<&'a str>> = like.into();
    }

    /// The configuration of the layer that `source` points at, and its built-in mask, for a loader of whole models:
    /// [`config_from_json`] with sizes that the caller has read once, in place of those that each layer's weights show.
    /// [`json`](Self::json) is the section of the part that the layer belongs to.
    ///
    /// `sizes` has hidden size, heads and dropout of an unpruned layer. What the file states for this layer replaces
    /// its head size and number of key-value heads, in which layers of some models differ (Gemma 4). `pruned` are the
    /// heads that the layer no longer has, by their indices in the unpruned model.
    ///
    /// # Errors
    /// The errors of [`config_from_json`], but for sizes that weights contradict.
    pub fn configure(
        &self,
        sizes: AttentionConfig,
        pruned: &[usize],
        source: &dyn WeightSource,
    ) -> Result<(AttentionConfig, AttentionMask)> {
        let prefix = source.full_name("");
        let stated = self.json.get("model_type").and_then(Value::as_str);
        let section = RecordedSection::new(self.json);
        let layer = Layer::new(&section, self.like.or(stated), &prefix)?;
        let mut config = sizes;
        config.head_dim = layer.head_size("head_dim")?.or(config.head_dim);
        config.num_key_value_heads = layer.head_size("num_key_value_heads")?.or(config.num_key_value_heads);
        if !pruned.is_empty() {
            config.head_dim = Some(config.resolved_head_dim());
            config.num_attention_heads = config.num_attention_heads.saturating_sub(pruned.len());
            config.num_key_value_heads = None;
        }
        configure(&layer, source, config, pruned, None, self.has_class(self.json))
    }

    /// Whether transformers' own class runs the file, and the layer is read as the family that its section states.
    fn has_class(&self, section: &Value) -> bool {
        let is_named = self.like.is_none_or(|like| section.get("model_type").is_some_and(|stated| stated == like));
        is_named && self.json.as_object().is_some_and(is_of_class)
    }
}

impl<'a> From<&'a Value> for ModelConfig<'a> {
    fn from(json: &'a Value) -> Self {
        Self::new(json)
    }
}

//! All families, and the lookup of a family by its configuration.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::config::ProjectionBias;
use crate::error::{Error, Result};
use crate::families::decoders::DECODERS;
use crate::families::detectors::DETECTORS;
use crate::families::encoder_decoders::ENCODER_DECODERS;
use crate::families::encoders::ENCODERS;
use crate::families::family::{Causal, Family, LayerPositions, OWN};
use crate::families::gated::GATED;
use crate::families::latent::LATENT;
use crate::families::layout::Layout;
use crate::families::layouts::LAYOUTS;
use crate::families::speech::SPEECH;
use crate::families::stepped::STEPPED;
use crate::families::unsupported::{unsupported_reason, unsupported_types};
use crate::families::vision::VISION;

/// Every row.
#[rustfmt::skip]
pub(crate) fn families() -> impl Iterator<Item = &'static Family> {
    let all = [
        ENCODERS, DECODERS, STEPPED, GATED, LATENT, ENCODER_DECODERS, VISION, DETECTORS, SPEECH,
    ];
    all.into_iter().flatten()
}

/// Every `model_type` that is listed: those of rows, and those that cannot run.
pub(crate) fn model_types() -> impl Iterator<Item = &'static str> {
    families().flat_map(|family| family.model_types).copied().chain(unsupported_types())
}

/// The row of an attention layer of this `model_type`.
///
/// # Errors
/// [`Error::UnknownFamily`] if no table lists it; [`Error::UnsupportedFamily`] if it is listed as one that cannot run.
pub(crate) fn layer_family(model_type: Option<&str>) -> Result<&'static Family> {
    let Some(name) = model_type else { return Err(unknown_family(None)) };
    if let Some(why) = unsupported_reason(name) {
        return Err(Error::UnsupportedFamily { model_type: name.to_string(), why: why.to_string() });
    }
    families().find(|family| family.model_types.contains(&name)).ok_or_else(|| unknown_family(model_type))
}

/// The layout in which a family of this `model_type` publishes its layers: the one to write a new layer in, with
/// [`AttentionWeights::to_layout`](crate::weights::AttentionWeights::to_layout).
///
/// ```
/// use candle_attention::checkpoint::layout_of;
///
/// assert_eq!(layout_of("whisper")?.name(), "bart");
/// // q_proj, k_proj, v_proj, o_proj
/// assert_eq!(layout_of("qwen3")?.name(), "candle-attention");
/// # Ok::<(), candle_attention::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnknownFamily`]; [`Error::UnsupportedFamily`] for a family whose attention this crate does not compute.
pub fn layout_of(model_type: &str) -> Result<&'static Layout> {
    let family = layer_family(Some(model_type))?;
    Ok(family.known_layouts().next().unwrap_or(&LAYOUTS[0]))
}

/// Facts that hold for the layers of a layout in all families that publish it, and that no weight shows.
pub(crate) struct Unseen {
    /// The `model_type` of a family, if all of them have positions of this kind.
    pub positions: Option<&'static str>,
    /// Whether all have a causal mask.
    pub is_causal: bool,
}

impl Unseen {
    pub(crate) fn in_layout(layout: &Layout) -> Self {
        let all = || families().filter(|row| row.layouts.contains(&layout.name));
        let first = all().next().map(|family| family.model_types[0]);
        Self {
            positions: first.filter(|_| all().all(|family| !family.positions.are_in_weights())),
            is_causal: first.is_some() && all().all(|row| matches!(row.causal, Causal::Always | Causal::Fixed)),
        }
    }
}

impl Family {
    /// The value of a numeric key that `config.json` may leave out.
    pub(super) fn default(&self, key: &str) -> Option<f64> {
        self.defaults.iter().find(|(name, _)| *name == key).map(|(_, default)| *default)
    }

    /// The layouts of the family, the usual one first.
    fn known_layouts(&self) -> impl Iterator<Item = &'static Layout> {
        self.layouts.iter().filter_map(|name| LAYOUTS.iter().find(|layout| layout.name == *name))
    }

    /// Checks that layers of the family come in `layout`, or can be written in it if it is the crate's own.
    ///
    /// # Errors
    /// If not. Layers of many families differ in nothing but their names, and compute something else.
    pub(crate) fn check_layout(
        &self,
        model_type: &str,
        layout: &Layout,
        biases: ProjectionBias,
        grouped: bool,
    ) -> Result<()> {
        let own = layout.name == OWN[0];
        // Without both, nothing tells a layer from one of Llama's, whose rotation would be left out.
        let bare = biases == ProjectionBias::NONE && self.positions == LayerPositions::FromWeights;
        let holds = |known: &Layout| !bare && known.holds_biases(biases) && (known.grouped || !grouped);
        if self.layouts.contains(&layout.name) || own && self.known_layouts().any(holds) {
            return Ok(());
        }
        let expected = self.layouts.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let rewritten = if own { ", or the biases and key-value heads of one of these" } else { "" };
        let found = format!("`{}`", layout.name);
        Err(Error::value(format!("the layout of a layer of `{model_type}`"), found, expected + rewritten))
    }
}

/// Whether a table lists this `model_type`.
pub(crate) fn is_listed(model_type: &str) -> bool {
    model_types().any(|listed| listed == model_type)
}

/// Models that mask their text in their own way, so that the section of the text is of the whole model's row, whatever
/// family it states.
#[rustfmt::skip]
const MASK_THEIR_TEXT: &[&str] = &[
    "gemma3", "gemma4_assistant", "gemma4_unified_assistant", "grounding-dino", "mm-grounding-dino", "paligemma",
    "shieldgemma2",
];

/// Whether the section of the text of this model is of the whole model's row.
pub(crate) fn masks_text(model_type: &str) -> bool {
    MASK_THEIR_TEXT.contains(&model_type)
}

/// Models that state the `model_type` of another one: that, a key and its value that tell them apart, and the row by
/// which they run. The key [`CLASS`] stands for [`model_class`].
const ALIASES: &[(&str, &str, &str, &str)] = &[
    ("xlm-roberta", "position_embedding_type", "rotary", "jina_embeddings_v3"),
    ("lfm2", CLASS, "Lfm2BidirectionalModel", "lfm2_bidirectional"),
    ("lfm2", CLASS, "Lfm2BidirectionalForMaskedLM", "lfm2_bidirectional"),
];
const CLASS: &str = "class";

/// The `model_type` by whose row the model of this `config.json` runs. Some published models state another one: Jina
/// embeddings v3 calls itself XLM-RoBERTa, an LFM2 that sees both ways LFM2.
pub fn resolved_model_type(config: &Map<String, Value>) -> Option<&str> {
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    let stated = text("model_type").filter(|name| !name.is_empty())?;
    let value = |key: &str| if key == CLASS { model_class(config) } else { text(key) };
    let mut own = ALIASES.iter().filter(|(model_type, key, is, _)| *model_type == stated && value(key) == Some(*is));
    Some(own.next().map_or(stated, |(.., resolved)| resolved))
}

/// The class that runs the model of this `config.json`: the one that `auto_map` names in code beside the checkpoint,
/// else the first of `architectures`.
pub fn model_class(config: &Map<String, Value>) -> Option<&str> {
    let own_code = config.get("auto_map").and_then(|map| map.get("AutoModel"));
    let class = own_code.or_else(|| config.get("architectures").and_then(|all| all.get(0))).and_then(Value::as_str)?;
    class.rsplit('.').next()
}

fn unknown_family(model_type: Option<&str>) -> Error {
    const MOST: usize = 4;
    /// No family has so long a name, and none is like one.
    const LONGEST: usize = 64;
    let near = |name: &str| {
        let names: BTreeSet<&str> = model_types().collect();
        let mut names: Vec<(usize, &str)> = names.into_iter().map(|known| (edits(name, known), known)).collect();
        names.sort_unstable();
        // Names that share most of their letters.
        names.retain(|(edits, known)| edits * 2 < known.len().max(name.len()));
        names.into_iter().take(MOST).map(|(_, known)| known).collect::<Vec<_>>().join(", ")
    };
    let near = model_type.filter(|name| name.len() <= LONGEST).map(near).filter(|near| !near.is_empty());
    Error::UnknownFamily {
        model_type: model_type.map(str::to_string),
        near: near.map(|near| format!("; spelled alike: {near}")).unwrap_or_default(),
    }
}

/// The number of letters to insert, remove or replace to turn one name into the other (Levenshtein's distance).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

//! Finds the layout under a prefix.
//!
//! Layouts are detected from names and shapes, not from `model_type`: files without a `config.json` (timm, Flax, d2l, a
//! `VarBuilder`) are read as well, several spellings of one family are told apart, and a name that no layout has is an
//! error instead of a tensor left out in silence.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};

use crate::attention::mechanisms::CONTEXT_NORM_PARTS;
use crate::checkpoint::source::{AnySource, WeightSource, below, join};
use crate::config::ProjectionBias;
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layout::{BESIDE, DISTANCE_EMBEDDINGS, GateNames, INDEXER, Layout, Orientation, parameter_names};
use crate::families::layouts::{LAYOUTS, detected};

/// Components of names below an attention prefix that are not part of attention: norms before and after it, buffers.
#[rustfmt::skip]
const IGNORED: &[&str] = &[
    "LayerNorm", "ln", "pre_norm", "self_attn_layer_norm", "inv_freq", "latent", "masked_bias",
    "pooling_attention_query", "relative_coords_table", "relative_position_index",
];

/// Tensors that change what attention computes and that this version does not apply. They are looked for by name
/// because some sources cannot list what they hold.
const NOT_APPLIED: &[(&str, &str)] = &[
    ("A_log", "it belongs to delta attention, which is recurrent"),
    ("q_layer_norm.weight", "it normalizes queries"),
    ("k_layer_norm.weight", "it normalizes keys"),
    ("norm_q.weight", "it normalizes queries"),
    ("gate_proj.weight", "it is the gate of the output"),
    ("g_proj.weight", "it is the gate of the output"),
    ("attn_sub_norm.weight", "it normalizes the context"),
    ("inner_attn_ln.weight", "it normalizes the context"),
    ("relative_position_bias_table", "it adds a relative position bias"),
    ("attention.relative_position_bias.relative_position_bias_table", "it adds a relative position bias"),
    ("self.distance_embedding.weight", "it adds relative position embeddings"),
    ("q_bias", "it is a separate query bias"),
    ("v_bias", "it is a separate value bias"),
];

/// Names beside `weight` of quantized modules. A checkpoint reads these modules as plain tensors; other sources, such
/// as a `VarBuilder` of candle, have them as they are stored.
const QUANTIZED: [&str; 5] = ["weight_scale", "weight_scale_inv", "scales", "SCB", "weight.absmax"];

impl Layout {
    fn fits(&self, source: &dyn WeightSource) -> bool {
        self.is_at(&source.full_name(""))
            && self.required().iter().all(|name| source.contains(name))
            && !self.excludes.iter().any(|name| source.contains(name))
            && self.orientation_matches(source)
            && self.gate_matches(source)
    }

    /// Whether the gate is where the layout has it, among layouts with the same names. A source that only confirms
    /// shapes does not show a gate in the query projection.
    fn gate_matches(&self, source: &dyn WeightSource) -> bool {
        match self.gate {
            GateNames::None | GateNames::Required(_) | GateNames::BeforeQuery => true,
            GateNames::InQuery => self.query_holds_gate(source),
            GateNames::Optional(_) => !self.query_holds_gate(source),
        }
    }

    /// Whether there is an indexer, which chooses the keys of a call with many, beside projections in this layout.
    pub(crate) fn holds_indexer(&self, source: &dyn WeightSource) -> bool {
        self.indexer.is_some_and(|names| names.iter().any(|name| source.contains(name)))
    }

    /// Whether the query projection has as many rows of a gate as of queries: twice as many as the output projection
    /// has inputs, while keys and values have heads of one size.
    fn query_holds_gate(&self, source: &dyn WeightSource) -> bool {
        let [q, k, v] = self.qkv.weights()[..] else { return false };
        let size = |name: &str, dim: usize| Some(*source.shape(name).ok()??.get(dim)?);
        match (size(q, 0), size(k, 0), size(v, 0), size(self.o.weight, 1)) {
            (Some(q), Some(k), Some(v), Some(o)) => q > 0 && k == v && q % 2 == 0 && q / 2 == o,
            _ => false,
        }
    }

    /// Whether the weight has the layout's orientation, where another layout has the same names in the other one:
    /// GPT-2's `c_attn` is `[in, out]`, GPT-BigCode's `[out, in]`. There are more outputs than inputs in both.
    /// Convolutions of pixels have one dimension
    /// more than those of frames.
    fn orientation_matches(&self, source: &dyn WeightSource) -> bool {
        if let Orientation::Pointwise(ones) = self.o.orientation {
            return source.shape(self.o.weight).is_ok_and(|shape| shape.is_none_or(|shape| shape.len() == 2 + ones));
        }
        // All weights have one orientation, and the last one of the queries, keys and values has more outputs than
        // inputs.
        let weight = self.qkv.weights().last().copied().filter(|_| self.check_orientation);
        match weight.map(|weight| source.shape(weight)) {
            Some(Ok(Some(shape))) if shape.len() == 2 => {
                // A layer without heads has no outputs.
                let in_out = if shape.contains(&0) { shape[1] == 0 } else { shape[0] < shape[1] };
                in_out == (self.o.orientation == Orientation::InOut)
            }
            _ => true,
        }
    }

    /// Checks that the biases present are a combination that the families of this layout publish.
    fn check_biases(&self, source: &dyn WeightSource) -> Result<()> {
        let names = self.bias_names();
        let present = names.map(|name| source.contains(name));
        let [q, k, v, o] = present;
        if self.has_biases(ProjectionBias { q, k, v, o }) {
            return Ok(());
        }
        let lacking = names.iter().zip(present).find(|(_, present)| !present);
        let (name, _) = lacking.unwrap_or((&names[1], false));
        let others: Vec<&str> =
            names.iter().zip(present).filter(|(_, present)| *present).map(|(name, _)| *name).collect();
        let why = match &others[..] {
            [] => format!("layout `{}` has biases", self.name),
            others => format!("layout `{}` has it beside {}", self.name, list(others)),
        };
        Err(Error::MissingTensor { name: source.full_name(name), why })
    }

    /// Checks that every tensor under the prefix that changes the result is read.
    fn check_unread(&self, source: &dyn WeightSource) -> Result<()> {
        let unsupported = |name: &str, why: &str| {
            Err(Error::UnsupportedTensor { name: source.full_name(name), layout: self.name, why: why.to_string() })
        };
        let mut read = self.required();
        let norm = CONTEXT_NORM_PARTS.map(|part| self.parameter_name(part));
        if let Some(gate) = self.gate_projection() {
            read.extend([gate.weight, gate.bias]);
        }
        read.extend(self.qkv.optional());
        read.extend(norm.iter().flatten().map(String::as_str));
        let position: Vec<&str> = self.stored_position_names().chain([DISTANCE_EMBEDDINGS]).collect();
        let own = |name: &str| self.parameters.iter().any(|(_, stored)| below(stored, name).is_some());
        let applied = |name: &str| read.contains(&name) || position.contains(&name) || own(name);
        if let Some((name, why)) = NOT_APPLIED.iter().find(|(name, _)| !applied(name) && source.contains(name)) {
            return unsupported(name, &format!("{why}, which this version does not apply"));
        }
        for module in self.required().into_iter().filter_map(|name| name.strip_suffix(".weight")) {
            let scale = QUANTIZED.iter().map(|part| join(module, part)).find(|name| source.contains(name));
            if let Some(name) = scale {
                return unsupported(&name, "it belongs to quantized weights, which are read from a `Checkpoint`");
            }
        }
        read.extend(self.bias_names());
        read.extend(&position);
        let names = source.names().unwrap_or_default();
        let is_position = |name: &str| position.iter().any(|part| below(part, name).is_some());
        let parameter = |name: &str| {
            let is_it = |stored: &str| stored == name || below(stored, name).is_some();
            parameter_names().any(|(own, names)| {
                names.iter().any(|stored| is_it(stored)) || self.parameter_name(own).is_some_and(|own| is_it(&own))
            })
        };
        let ignored = |name: &str| {
            parameter(name) || name.split('.').any(|part| IGNORED.contains(&part) || self.after.contains(&part))
        };
        // Whether it is needed depends on the call.
        let indexer = |name: &str| {
            let indexed = self.qkv.is_latent() || self.holds_indexer(source);
            indexed && below(INDEXER, name).is_some()
        };
        // GPT-2 and similar families store their causal mask next to the weights.
        let causal =
            |name: &str| name == "bias" && source.shape(name).is_ok_and(|shape| shape.is_some_and(|s| s.len() == 4));
        match names.iter().find(|name| {
            let known = ignored(name) || is_position(name) || causal(name) || indexer(name);
            !read.contains(&name.as_str()) && !known
        }) {
            Some(name) => unsupported(name, "it is not part of the layout, and may change what the layer computes"),
            None => Ok(()),
        }
    }
}

/// Finds the layout of the attention layer that `source` points at, by names and shapes.
///
/// # Errors
/// [`Error::UnknownLayout`] if none fits; [`Error::MissingTensor`] if a bias is missing that the family always has;
/// [`Error::UnsupportedTensor`] if there is a tensor that would change the result.
pub fn detect(source: &dyn WeightSource) -> Result<&'static Layout> {
    let (_, layout) = detected().find(|(_, layout)| layout.fits(source)).ok_or_else(|| unknown(source))?;
    layout.check_biases(source)?;
    layout.check_unread(source)?;
    Ok(layout)
}

fn unknown(source: &dyn WeightSource) -> Error {
    let lacking = |layout: &Layout| {
        let required = layout.required();
        required.into_iter().filter(|name| !source.contains(name)).collect::<Vec<_>>()
    };
    // The layout with the smallest share of missing names; a count would favor fused layouts, which need fewer.
    let share = |layout: &Layout| lacking(layout).len() * 12 / layout.required().len();
    let possible = LAYOUTS.iter().filter(|layout| layout.is_at(&source.full_name("")));
    let nearest = possible.min_by_key(|layout| share(layout)).unwrap_or(&LAYOUTS[0]);
    let keys = match source.names() {
        Some(names) if names.is_empty() => "it holds no tensor".to_string(),
        Some(names) => format!("it holds {}", list(&names)),
        None => {
            let known = LAYOUTS.iter().flat_map(Layout::required).filter(|name| source.contains(name));
            match known.collect::<std::collections::BTreeSet<_>>() {
                known if known.is_empty() => "it holds no known key".to_string(),
                known => format!("of the known keys it holds {}", list(&known.into_iter().collect::<Vec<_>>())),
            }
        }
    };
    Error::UnknownLayout {
        prefix: source.full_name(""),
        keys,
        nearest: nearest.name,
        lacks: list(&lacking(nearest)),
        hint: deeper_prefix(source).map(|prefix| format!("; did you mean prefix `{prefix}`?")).unwrap_or_default(),
    }
}

/// The first longer prefix under which a layout fits.
fn deeper_prefix(source: &dyn WeightSource) -> Option<String> {
    let names = source.names()?;
    attention_prefixes(&names).into_keys().find(|prefix| !prefix.is_empty()).map(|prefix| source.full_name(&prefix))
}

/// Prefixes under which a layout has its weights, each with the index of the layout.
pub(crate) fn attention_prefixes<T: AsRef<str>>(names: &[T]) -> BTreeMap<String, usize> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    // A tensor belongs to one layer. Several layouts may fit it, from several prefixes; the first of them counts.
    let mut claimed: HashSet<&str> = HashSet::new();
    let all: HashSet<&str> = names.iter().map(T::as_ref).collect();
    for (row, layout) in detected() {
        let required = layout.required();
        let first = required.iter().find(|name| !name.starts_with(BESIDE)).unwrap_or(&required[0]);
        for name in names.iter().map(T::as_ref) {
            let Some(prefix) = name.strip_suffix(first) else { continue };
            let Some(prefix) = prefix.strip_suffix('.').or(prefix.is_empty().then_some("")) else { continue };
            if !layout.is_at(prefix) || claimed.contains(name) || found.contains_key(prefix) {
                continue;
            }
            let holds = |name: &&str| all.contains(join(prefix, name).as_str());
            if required.iter().all(&holds) && !layout.excludes.iter().any(holds) {
                claimed.insert(name);
                found.insert(prefix.to_string(), row);
            }
        }
    }
    found
}

/// Checks that there is a tensor at `source`, if it can tell.
///
/// # Errors
/// [`Error::MissingTensor`] that lists what there is instead.
pub(crate) fn check_prefix(source: &AnySource) -> Result<()> {
    let is_empty = source.names().is_some_and(|names| names.is_empty());
    let all = if is_empty { source.root().names().unwrap_or_default() } else { Vec::new() };
    ensure!(all.is_empty(), nothing_below(&source.full_name(""), &all));
    Ok(())
}

/// The error for a prefix without weights among `names`: it names the longest beginning of the prefix that has some,
/// what follows, and the first attention layers.
pub(crate) fn nothing_below<T: AsRef<str>>(prefix: &str, names: &[T]) -> Error {
    const LAYERS: usize = 4;
    let mut layers: Vec<String> = attention_prefixes(names).into_keys().collect();
    layers.sort_by(|a, b| in_natural_order(a, b));
    let names = || names.iter().map(T::as_ref);
    let ends = prefix.match_indices('.').map(|(end, _)| &prefix[..end]);
    let start = ends.rev().find(|start| names().any(|name| below(start, name).is_some())).unwrap_or_default();
    let mut next: Vec<&str> = names().filter_map(|name| below(start, name)?.split('.').next()).collect();
    next.dedup();
    let start = if start.is_empty() { "the checkpoint".to_string() } else { format!("`{start}`") };
    let layers = match layers.len() {
        0 => String::new(),
        1..=LAYERS => format!("; the attention layers are {}", list(&layers)),
        all => format!("; the attention layers are {} and {} more", list(&layers[..LAYERS]), all - LAYERS),
    };
    let why = format!("no tensor is below this prefix; {start} has {}{layers}", list(&next));
    Error::MissingTensor { name: prefix.to_string(), why }
}

/// Layer 2 comes before layer 10.
pub(crate) fn in_natural_order(a: &str, b: &str) -> Ordering {
    let parts = |prefix| str::split(prefix, '.').map(|part| (part.parse::<u64>().ok(), part));
    parts(a).cmp(parts(b))
}

/// At most twelve names, quoted.
pub(crate) fn list<T: AsRef<str>>(names: &[T]) -> String {
    const MOST: usize = 12;
    let shown = names.iter().take(MOST).map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

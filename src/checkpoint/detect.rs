//! Finds the layout under a prefix.

use crate::checkpoint::position_weights::EMBEDDINGS;
use crate::checkpoint::source::WeightSource;
use crate::error::{Error, Result};
use crate::families::layout::{Layout, QkvNames, Stored};
use crate::families::layouts::LAYOUTS;

/// One more key and value that every query sees (`torch.nn.MultiheadAttention`, fairseq), in any layout.
pub(crate) const BIAS_KV: [&str; 2] = ["bias_k", "bias_v"];
/// The vector of additive scoring, `(h, head_dim)`, in any layout.
pub(crate) const SCORE: &str = "score.weight";

/// Components of names below an attention prefix that are not part of the attention: the norm after BERT's, a buffer.
const IGNORED: &[&str] = &["LayerNorm", "inv_freq", "latent", "masked_bias", "relative_position_index"];

/// Norms of queries and keys, by the names they have; under each a `weight` and perhaps a `bias`, or one for each head.
pub(crate) const NORMS: [[&str; 2]; 3] =
    [["q_norm", "k_norm"], ["q_layernorm", "k_layernorm"], ["self.layer_norm_q", "self.layer_norm_k"]];
/// A score a head that takes part in the softmax.
pub(crate) const SINKS: &str = "sinks";

/// Tensors that change what attention computes and that this version does not apply. Looked for by name where a source
/// cannot list what it holds.
const NOT_APPLIED: &[(&str, &str)] = &[
    ("q_layer_norm.weight", "it normalises queries"),
    ("k_layer_norm.weight", "it normalises keys"),
    ("query_layernorm.weight", "it normalises queries"),
    ("key_layernorm.weight", "it normalises keys"),
    ("q_proj.weight_scale", "it belongs to quantised weights"),
    ("relative_position_bias_table", "it adds a relative position bias"),
    ("attention.relative_position_bias.relative_position_bias_table", "it adds a relative position bias"),
    ("self.distance_embedding.weight", "it adds relative position embeddings"),
    ("q_bias", "it is a separate query bias"),
    ("v_bias", "it is a separate value bias"),
];

impl Layout {
    fn fits<S: WeightSource>(&self, source: &S) -> bool {
        self.required().iter().all(|name| source.contains(name)) && self.lies_so(source)
    }

    /// `c_attn` is `[in, out]` in GPT-2 and `[out, in]` in GPT-BigCode; either way there are more outputs than inputs.
    fn lies_so<S: WeightSource>(&self, source: &S) -> bool {
        let (QkvNames::Fused(dense, _) | QkvNames::Pair(_, dense)) = self.qkv else { return true };
        match source.shape(dense.weight) {
            Ok(Some(shape)) if shape.len() == 2 && dense.weight.starts_with("c_attn") => {
                (shape[0] < shape[1]) == (dense.stored == Stored::InOut)
            }
            _ => true,
        }
    }

    /// Checks that the biases present are a combination that the families of this layout publish.
    fn check_biases<S: WeightSource>(&self, source: &S) -> Result<()> {
        let names = self.bias_names();
        let present = names.map(|name| source.contains(name));
        if self.biases.is_empty() || self.biases.contains(&present) {
            return Ok(());
        }
        let lacking = names.iter().zip(present).find(|(_, there)| !there);
        let (name, _) = lacking.unwrap_or((&names[1], false));
        let others = names.iter().zip(present).filter(|(_, there)| *there).map(|(name, _)| *name).collect::<Vec<_>>();
        let why = match others.is_empty() {
            true => format!("layout `{}` has biases", self.name),
            false => format!("layout `{}` has it beside {}", self.name, list(&others)),
        };
        Err(Error::MissingTensor { name: source.full_name(name), why })
    }

    /// Checks that nothing under the prefix would change the result without being read.
    fn check_unread<S: WeightSource>(&self, source: &S) -> Result<()> {
        let unsupported = |name: &str, why: &str| {
            Err(Error::UnsupportedTensor { name: source.full_name(name), layout: self.name, why: why.to_string() })
        };
        let mut read = self.required();
        let position: Vec<&str> = self.stored_position_names().chain([EMBEDDINGS]).collect();
        let applied = |name: &str| read.contains(&name) || position.contains(&name);
        if let Some((name, why)) = NOT_APPLIED.iter().find(|(name, _)| !applied(name) && source.contains(name)) {
            return unsupported(name, &format!("{why}, which this version does not apply"));
        }
        read.extend(self.bias_names());
        read.extend(BIAS_KV);
        read.extend([SCORE, SINKS]);
        read.extend(&position);
        let names = source.names().unwrap_or_default();
        let below = |name: &str, part: &str| name.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
        let of_position = |name: &str| position.iter().any(|part| below(name, part));
        let norm = |name: &str| NORMS.iter().flatten().any(|norm| below(name, norm));
        let ignored = |name: &str| norm(name) || name.split('.').any(|part| IGNORED.contains(&part));
        // GPT-2 and its kin keep their causal mask beside the weights.
        let causal =
            |name: &str| name == "bias" && source.shape(name).is_ok_and(|shape| shape.is_some_and(|s| s.len() == 4));
        match names
            .iter()
            .find(|name| !read.contains(&name.as_str()) && !ignored(name) && !of_position(name) && !causal(name))
        {
            Some(name) => unsupported(name, "it is not part of the layout; is the prefix that of the attention layer?"),
            None => Ok(()),
        }
    }
}

/// Finds the layout of the attention layer that `source` points at, by the names it holds.
///
/// # Errors
/// [`Error::UnknownLayout`] if none fits; [`Error::MissingTensor`] if a bias is missing that the family always has;
/// [`Error::UnsupportedTensor`] if there is a tensor that would change the result.
pub fn detect<S: WeightSource>(source: &S) -> Result<&'static Layout> {
    let layout = LAYOUTS.iter().find(|layout| layout.fits(source)).ok_or_else(|| unknown(source))?;
    layout.check_biases(source)?;
    layout.check_unread(source)?;
    Ok(layout)
}

fn unknown<S: WeightSource>(source: &S) -> Error {
    let lacking = |layout: &Layout| {
        let required = layout.required();
        required.into_iter().filter(|name| !source.contains(name)).collect::<Vec<_>>()
    };
    // The one that has most of its names, compared as shares because a fused layout needs fewer.
    let share = |layout: &Layout| lacking(layout).len() * 12 / layout.required().len();
    let nearest = LAYOUTS.iter().min_by_key(|layout| share(layout)).unwrap_or(&LAYOUTS[0]);
    let keys = match source.names() {
        Some(names) if names.is_empty() => "it holds no key".to_string(),
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

/// The first prefix further down under which a layout fits.
fn deeper_prefix<S: WeightSource>(source: &S) -> Option<String> {
    let names = source.names()?;
    let present: std::collections::HashSet<&str> = names.iter().map(String::as_str).collect();
    names.iter().find_map(|name| {
        let fits = |layout: &&Layout| {
            let required = layout.required();
            let prefix = name.strip_suffix(required[0])?.strip_suffix('.')?;
            required.iter().all(|name| present.contains(format!("{prefix}.{name}").as_str())).then_some(prefix)
        };
        LAYOUTS.iter().find_map(|layout| fits(&layout)).map(|prefix| source.full_name(prefix))
    })
}

/// At most twelve names, quoted.
fn list<T: AsRef<str>>(names: &[T]) -> String {
    const MOST: usize = 12;
    let shown = names.iter().take(MOST).map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

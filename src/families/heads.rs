//! Numbers and sizes of the heads of a layer, from its family's row and the keys of its configuration.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::ensure;
use crate::error::{Error, Result};
use crate::families::config_classes::{default_decoder_heads, default_heads};
use crate::families::family::{Causal, HeadSizes, HeadsKey};
use crate::families::layer::Layer;
use crate::io::number;

/// Keys for the number of heads, in order of precedence, of every family.
#[rustfmt::skip]
const HEADS: [&str; 9] = [
    "num_attention_heads_per_layer", "num_attention_heads", "n_heads", "n_head", "num_heads", "attention_heads",
    "resampler_n_heads", "num_self_attention_heads", "conf_num_attention_heads",
];
/// Keys that come before [`HEADS`] in the decoder of a model that has an encoder, too.
const DECODER_HEADS: [&str; 3] =
    ["decoder_attention_heads", "decoder_num_attention_heads", "decoder_self_attention_heads"];
/// Keys that come before [`HEADS`] in the encoder of a model that has a decoder, too.
const ENCODER_HEADS: [&str; 2] = ["encoder_attention_heads", "encoder_num_attention_heads"];

/// The most heads that a configuration may state. Slopes, norms and lists of pruned heads are computed for each, layer
/// by layer, also if only headers are read. The largest published models have 128.
const MAX_HEADS: usize = 4096;

/// Whether a section of a `config.json` states a number of heads.
pub(crate) fn states_heads(section: &Value) -> bool {
    let keys = HEADS.iter().chain(&DECODER_HEADS).chain(&ENCODER_HEADS);
    keys.into_iter().any(|key| section.get(key).is_some_and(|heads| !heads.is_null()))
}

impl Layer<'_> {
    /// The number of heads of the unpruned layer, at most [`MAX_HEADS`].
    pub fn heads(&self) -> Result<usize> {
        let heads = self.stated_heads()? / self.heads_keys().next().map_or(1, |part| part.divisor);
        ensure!(heads <= MAX_HEADS, Error::config("num_attention_heads", heads, format!("at most {MAX_HEADS}")));
        Ok(heads)
    }

    /// The entries of the row's column `heads` for the parts that the layer is in.
    fn heads_keys(&self) -> impl Iterator<Item = &'static HeadsKey> {
        self.family.heads.iter().filter(|part| part.below.iter().all(|component| self.is_below(component)))
    }

    /// The key for the width of the part that the layer is in, if the section has keys for the sizes of that part.
    pub fn width_of_part(&self) -> Option<&'static str> {
        self.heads_keys().find(|part| self.section.get(part.key).is_some())?.width
    }

    fn stated_heads(&self) -> Result<usize> {
        if let Some(heads) = self.own_sizes().map(|own| number(own, "num_attention_heads")).transpose()?.flatten() {
            return Ok(heads);
        }
        if self.family.head_sizes == HeadSizes::PerBlockOfStage {
            return self.heads_of_stage();
        }
        let states = |keys: &[&str]| keys.iter().any(|key| self.section.get(key).is_some());
        // The heads of another part of the model are not those of this one.
        let of_all = |key: &str| [&HEADS[..], &DECODER_HEADS, &ENCODER_HEADS].iter().any(|keys| keys.contains(&key));
        if let Some(part) = self.heads_keys().find(|part| !of_all(part.key) && !states(&[part.key])) {
            return Err(Error::config(part.key, "absent", "the number of heads in this part of the model"));
        }
        // `encoder_attn` and `encoder_attention` are a decoder's attention to what the encoder made.
        let mut parts = self.prefix.split('.').filter(|part| !part.starts_with("encoder_att"));
        let by_prefix: &[&str] = match self.prefix {
            prefix if prefix.contains("decoder") => &DECODER_HEADS,
            _ if parts.any(|part| part.contains("encoder")) => &ENCODER_HEADS,
            _ => &[],
        };
        // An encoder or a decoder alone needs no prefix to tell which it is.
        let alone: &[&str] = match self.family.causal {
            _ if !states(&DECODER_HEADS) => &ENCODER_HEADS,
            Causal::Always => &DECODER_HEADS,
            _ => &[],
        };
        let decodes = self.prefix.contains("decoder") || self.family.causal == Causal::Always;
        if decodes
            && self.heads_keys().next().is_none()
            && !states(&DECODER_HEADS)
            && let Some(heads) = default_decoder_heads(self.model_type)
        {
            return Ok(heads);
        }
        let by_part = self.heads_keys().map(|part| part.key);
        for key in by_part.chain([by_prefix, &HEADS, alone].into_iter().flatten().copied()) {
            let per_stage = self.section.get(key).and_then(|heads| heads.get(self.index)).and_then(Value::as_u64);
            if let Some(heads) = per_stage.and_then(|heads| usize::try_from(heads).ok()) {
                return Ok(heads);
            }
            if let Some(heads) = self.number(key)? {
                // One of the two is an alias of the other, which counts.
                let aliases = if key == HEADS[1] { alone } else { &HEADS[1..2] };
                let is_decoder = key == DECODER_HEADS[0] && !states(&ENCODER_HEADS);
                let has_alias = key == HEADS[1] || key == ENCODER_HEADS[0] || is_decoder;
                for alias in aliases.iter().filter(|_| has_alias) {
                    if let Some(other) = self.number(alias)?.filter(|other| *other != heads) {
                        return Err(Error::config(alias, other, format!("{heads}, as `{key}` states")));
                    }
                }
                return Ok(heads);
            }
        }
        // As many heads of the family's default size as the width allows.
        if let (Some(width), Some(d)) = (self.number("hidden_size")?, self.family.default("head_dim")) {
            return Ok(width / d as usize);
        }
        let allowed = || match DECODER_HEADS.iter().chain(&ENCODER_HEADS).find(|key| states(&[key])) {
            Some(key) => format!("a prefix with `encoder` or `decoder` in it, as the configuration states `{key}`"),
            None => format!("one of {}", HEADS.join(", ")),
        };
        default_heads(self.model_type).ok_or_else(|| Error::config("num_attention_heads", "absent", allowed()))
    }

    /// The heads that the layer no longer has, by their indices in the unpruned model of `heads` heads, in ascending
    /// order.
    pub fn pruned_heads(&self, heads: usize) -> Result<Vec<usize>> {
        let layers = self.stated("pruned_heads", "a list of heads for each layer", Value::as_object)?;
        let Some(listed) = layers.and_then(|layers| layers.get(&self.index.to_string())) else {
            return Ok(Vec::new());
        };
        let wrong = |expected: String| Error::value("config key `pruned_heads`", listed, expected);
        let head =
            |head: &Value| head.as_u64().and_then(|head| usize::try_from(head).ok()).filter(|head| *head < heads);
        let list = listed.as_array().ok_or_else(|| wrong("a list of heads for each layer".to_string()))?;
        let all = list.iter().map(head).collect::<Option<BTreeSet<usize>>>();
        let all = all.ok_or_else(|| wrong(format!("heads below {heads}, the number of heads of the layer")))?;
        ensure!(all.len() == list.len(), wrong("each head once".to_string()));
        Ok(all.into_iter().collect())
    }

    /// The sizes that the key `per_layer_config` states for this layer, if the family reads it.
    fn own_sizes(&self) -> Option<&Value> {
        match self.family.head_sizes {
            HeadSizes::Same | HeadSizes::PerStage | HeadSizes::PerBlockOfStage => None,
            HeadSizes::Global { .. } | HeadSizes::PerLayer | HeadSizes::WindowsDoubleKeys => {
                self.section.get("per_layer_config")?.get(self.index.to_string())
            }
        }
    }

    /// A size of the heads of this layer by this key: `head_dim` or `num_key_value_heads`.
    pub(crate) fn head_size(&self, key: &str) -> Result<Option<usize>> {
        let [global_head_dim, global_heads] = match self.family.head_sizes {
            HeadSizes::Global { .. } => ["global_head_dim", "num_global_key_value_heads"].map(|key| self.number(key)),
            _ => [Ok(None), Ok(None)],
        };
        if let Some(own) = self.own_sizes().map(|own| number(own, key)).transpose()?.flatten() {
            return Ok(Some(own));
        }
        let usual = self.number(key)?;
        Ok(match self.family.head_sizes {
            HeadSizes::WindowsDoubleKeys if key == "num_key_value_heads" && self.has_window()? => {
                usual.map(|heads| heads.saturating_mul(2))
            }
            HeadSizes::Global { .. } if self.section.get("per_layer_config").is_some() || self.has_window()? => usual,
            HeadSizes::Global { switch } => match key {
                "head_dim" => global_head_dim?.or(usual),
                _ if switch.map(|switch| self.flag(switch)).transpose()?.is_some_and(|on| on != Some(true)) => usual,
                _ => global_heads?.or(usual),
            },
            _ => usual,
        })
    }
}

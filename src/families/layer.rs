//! Applies a family's row to one attention layer: its `config.json` section and prefix become configuration and mask.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::config::{AttentionConfig, CallInput, QkNorm};
use crate::error::{Error, Result};
use crate::families::family::{Family, LayerPositions, Required, RotaryLayers, Scale};
use crate::families::heads::default_heads;
use crate::families::keys::check_keys;
use crate::families::table::layer_family;
use crate::io::number;
use crate::position::{Alibi, AlibiFormula, Disentangled, GivenRotation, Position, T5RelativeBias};

/// Keys for the number of heads, in order of precedence. They are tried for every family, so that unlisted ones load.
const HEADS: [&str; 5] = ["num_attention_heads", "n_heads", "n_head", "num_heads", "attention_heads"];
/// The most heads that a configuration may state. Slopes, norms and lists of pruned heads are computed for each, layer
/// by layer, also if only headers are read. The largest published models have 128.
const MAX_HEADS: usize = 4096;
/// Keys that come first in the decoder or the encoder of a model that has both.
const DECODER_HEADS: [&str; 3] =
    ["decoder_attention_heads", "decoder_num_attention_heads", "decoder_self_attention_heads"];
const ENCODER_HEADS: [&str; 2] = ["encoder_attention_heads", "encoder_num_attention_heads"];

/// Whether a section of a `config.json` states a number of heads.
pub(crate) fn states_heads(section: &Value) -> bool {
    let keys = HEADS.iter().chain(&DECODER_HEADS).chain(&ENCODER_HEADS);
    keys.into_iter().any(|key| section.get(key).is_some_and(|heads| !heads.is_null()))
}

/// Parts of the prefixes of cross-attention.
const CROSS: [&str; 5] = ["encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "cross_attention"];

/// What a checkpoint holds for a layer and no configuration states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerContents<'a> {
    /// Whether there are norms of queries and keys.
    pub norms: bool,
    /// Rows of the table of biases of patches: the layer's own, or that of all layers.
    pub bias_rows: Option<usize>,
    /// Heads that the layer no longer has, by their indices in the unpruned model.
    pub pruned: &'a [usize],
}

/// One attention layer of a model: its family's row, and the part of `config.json` that describes it.
pub(crate) struct Layer<'a> {
    pub section: &'a Value,
    pub model_type: &'a str,
    pub family: &'static Family,
    pub prefix: &'a str,
    /// The layer's index: the first number in its prefix.
    pub index: usize,
    /// Whether it is cross-attention.
    pub cross: bool,
}

impl<'a> Layer<'a> {
    /// The layer at `prefix` of a model of this `model_type`, described by `section` of a `config.json`.
    ///
    /// # Errors
    /// The errors of [`layer_family`]; [`Error::UnsupportedKey`].
    pub fn new(section: &'a Value, model_type: Option<&'a str>, prefix: &'a str) -> Result<Self> {
        let (family, model_type) = (layer_family(model_type)?, model_type.unwrap_or_default());
        check_keys(section, model_type, family)?;
        family.check_part(model_type, prefix)?;
        // No model has so many layers that the next index would overflow.
        let index = prefix.split('.').find_map(|part| part.parse::<u32>().ok()).unwrap_or(0) as usize;
        let cross = CROSS.iter().any(|part| prefix.contains(part));
        let layer = Self { section, model_type, family, prefix, index, cross };
        layer.check_layer_types()?;
        Ok(layer)
    }

    /// The value of a numeric key, or its default in the family's config class. A key that is `null` has none.
    pub(super) fn float(&self, key: &str) -> Option<f64> {
        match self.section.get(key) {
            Some(stated) => stated.as_f64(),
            None => self.family.defaults.iter().find(|(name, _)| *name == key).map(|(_, default)| *default),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.section.get(key).and_then(Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.section.get(key).and_then(Value::as_str)
    }

    /// The same for a key that counts something.
    pub(super) fn number(&self, key: &str) -> Result<Option<usize>> {
        match self.section.get(key) {
            Some(_) => number(self.section, key),
            None => Ok(self.float(key).map(|default| default as usize)),
        }
    }

    /// The number of heads of the unpruned layer, at most [`MAX_HEADS`].
    pub fn heads(&self) -> Result<usize> {
        let prefix = format!(".{}.", self.prefix);
        let share = self.family.shares_of_heads.iter().find(|(part, _)| prefix.contains(&format!(".{part}.")));
        let heads = self.stated_heads()? / share.map_or(1, |(_, divisor)| *divisor);
        match heads > MAX_HEADS {
            true => Err(Error::config("num_attention_heads", heads, format!("at most {MAX_HEADS}"))),
            false => Ok(heads),
        }
    }

    fn stated_heads(&self) -> Result<usize> {
        let by_prefix: &[&str] = match self.prefix {
            prefix if prefix.contains("decoder") => &DECODER_HEADS,
            prefix if prefix.contains("encoder") => &ENCODER_HEADS,
            _ => &[],
        };
        // An encoder alone needs no prefix to tell which it is.
        let alone: &[&str] =
            if DECODER_HEADS.iter().all(|key| self.section.get(key).is_none()) { &ENCODER_HEADS } else { &[] };
        for key in by_prefix.iter().chain(&HEADS).chain(alone) {
            // Swin has a number per stage.
            let of_stage = self.section.get(key).and_then(|heads| heads.get(self.index)).and_then(Value::as_u64);
            if let Some(heads) = of_stage.and_then(|heads| usize::try_from(heads).ok()) {
                return Ok(heads);
            }
            if let Some(heads) = self.number(key)? {
                return Ok(heads);
            }
        }
        let allowed = || format!("one of {}", HEADS.join(", "));
        default_heads(self.model_type).ok_or_else(|| Error::config("num_attention_heads", "absent", allowed()))
    }

    /// The heads that the layer no longer has, by their indices in the unpruned model of `heads` heads, in ascending
    /// order.
    pub fn pruned_heads(&self, heads: usize) -> Result<Vec<usize>> {
        let Some(listed) = self.section.get("pruned_heads").and_then(|layers| layers.get(self.index.to_string()))
        else {
            return Ok(Vec::new());
        };
        let wrong = |expected: String| Error::value("config key `pruned_heads`", listed, expected);
        let head =
            |head: &Value| head.as_u64().and_then(|head| usize::try_from(head).ok()).filter(|head| *head < heads);
        let list = listed.as_array().ok_or_else(|| wrong("a list of heads for each layer".to_string()))?;
        let all = list.iter().map(head).collect::<Option<BTreeSet<usize>>>();
        let all = all.ok_or_else(|| wrong(format!("heads below {heads}, the number of heads of the layer")))?;
        match all.len() == list.len() {
            true => Ok(all.into_iter().collect()),
            false => Err(wrong("each head once".to_string())),
        }
    }

    /// Adds to `config`, which has the sizes, what the model does in this layer: scale, cap, norms, positions.
    pub fn configure(&self, config: AttentionConfig, contents: &LayerContents) -> Result<AttentionConfig> {
        let mut config = config;
        let d = config.resolved_head_dim();
        config.scale = self.scale(d)?;
        if self.family.softcap {
            config.softcap = self.float("attn_logit_softcapping");
        }
        if self.family.clip_qkv {
            let clip = self.section.pointer("/attn_config/clip_qkv").or(self.section.get("clip_qkv"));
            config.clip_qkv = clip.and_then(Value::as_f64);
        }
        if contents.norms {
            config.qk_norm = Some(self.qk_norm()?);
        }
        config.requires = self.required_inputs();
        config.model_type = self.family.model_types.iter().find(|name| **name == self.model_type).copied();
        if !self.cross {
            config.position = self.position(d, contents)?;
        }
        let pruned = contents.pruned;
        if !pruned.is_empty() {
            let all = config.num_attention_heads + pruned.len();
            let kept: Vec<usize> = (0..all).filter(|head| !pruned.contains(head)).collect();
            config.position.prune(&kept, all);
        }
        Ok(config)
    }

    /// What each call has to give.
    fn required_inputs(&self) -> Vec<CallInput> {
        let prefix = format!(".{}.", self.prefix);
        let applies = |required: &&Required| {
            let below = required.below.is_none_or(|part| prefix.contains(&format!(".{part}.")));
            let below = below && self.index >= required.from_layer;
            below && (required.keys.is_empty() || required.keys.iter().any(|key| self.flag(key) != Some(false)))
        };
        self.family.requires.iter().filter(applies).map(|required| required.input).collect()
    }

    /// The factor on the scores; `None`: the usual one.
    fn scale(&self, d: usize) -> Result<Option<f64>> {
        let usual = (d as f64).powf(-0.5);
        let required = |key: &'static str| {
            self.float(key).ok_or_else(|| Error::config(key, "none", "a number: the family scales its scores by it"))
        };
        Ok(match self.family.scale {
            Scale::HeadDim => None,
            Scale::One => Some(1.0),
            Scale::QueryPreAttnScalar => Some(required("query_pre_attn_scalar")?.powf(-0.5)),
            Scale::AttentionMultiplier => self.float("attention_multiplier"),
            Scale::KeyMultiplier => Some(usual * required("key_multiplier")?),
            Scale::Mpt => self.section.pointer("/attn_config/softmax_scale").and_then(Value::as_f64),
            Scale::Disentangled => Some(self.disentangled_scale(d)?),
            Scale::Gpt2 => {
                let scale = if self.flag("scale_attn_weights") == Some(false) { 1.0 } else { usual };
                let by_layer = self.flag("scale_attn_by_inverse_layer_idx") == Some(true);
                Some(if by_layer { scale / ((self.index + 1) as f64) } else { scale })
            }
        })
    }

    fn qk_norm(&self) -> Result<QkNorm> {
        let Some((kind, over)) = self.family.qk_norm else {
            let expected = format!("absent: `{}` has none", self.model_type);
            return Err(Error::value("norms of queries and keys", "in the checkpoint", expected));
        };
        let keys = ["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"];
        let stated = || keys.iter().find_map(|key| self.float(key)).unwrap_or(1e-6);
        Ok(QkNorm { kind, over, eps: self.family.qk_norm_eps.unwrap_or_else(stated) })
    }

    fn position(&self, d: usize, contents: &LayerContents) -> Result<Position> {
        let stated = self.text("position_embedding_type");
        let positions = self.family.positions;
        Ok(match positions {
            LayerPositions::Alibi => Position::Alibi(Alibi::default()),
            LayerPositions::MptAlibi => self.mpt_alibi()?,
            LayerPositions::Rotary(row)
                if row.layers == RotaryLayers::UnlessAlibi && self.flag("alibi") == Some(true) =>
            {
                Position::Alibi(Alibi::default().with_formula(AlibiFormula::Falcon))
            }
            // Jina-BERT, and whoever else states it.
            _ if stated == Some("alibi") => Position::Alibi(Alibi::default().with_symmetric(true)),
            LayerPositions::MpnetBias => Position::T5RelativeBias(T5RelativeBias::new(32, 128, true)),
            LayerPositions::T5Bias => self.t5_bias()?,
            LayerPositions::Rotary(row) if self.is_rotated(row.layers)? => Position::Rotary(self.rotary(&row, d)?),
            LayerPositions::Rotary(_) => Position::None,
            LayerPositions::Given => Position::GivenRotation(GivenRotation::default()),
            LayerPositions::Video => self.video_rotary()?,
            LayerPositions::DinoRotary => self.dino_rotary()?,
            LayerPositions::PatchRotary(row) => self.patch_rotary(&row)?,
            LayerPositions::Disentangled { v2 } => self.disentangled(v2)?,
            LayerPositions::FromWeights => self.patch_positions(contents.bias_rows)?,
        })
    }

    /// MPT's ALiBi. transformers applies it with a largest exponent of 8 whatever these two keys state.
    fn mpt_alibi(&self) -> Result<Position> {
        for (key, read) in [("alibi", Value::from(true)), ("alibi_bias_max", Value::from(8))] {
            let stated = self.section.get("attn_config").and_then(|keys| keys.get(key));
            if let Some(stated) = stated.filter(|stated| **stated != read && stated.as_f64() != Some(8.0)) {
                let expected = format!("{read}: transformers computes with it whatever is stated");
                return Err(Error::value(format!("config key `attn_config.{key}`"), stated, expected));
            }
        }
        Ok(Position::Alibi(Alibi::default()))
    }

    fn t5_bias(&self) -> Result<Position> {
        let buckets = self.number("relative_attention_num_buckets")?.unwrap_or(32);
        let distance = self.number("relative_attention_max_distance")?.unwrap_or(128);
        let bidirectional = !self.prefix.contains("decoder");
        Ok(Position::T5RelativeBias(T5RelativeBias::new(buckets, distance, bidirectional)))
    }
}

impl Layer<'_> {
    /// The scale of disentangled attention. It counts the terms that are stated even if relative attention is off.
    pub(super) fn disentangled_scale(&self, d: usize) -> Result<f64> {
        let [c2p, p2c] = self.terms()?;
        Ok(Disentangled::new(1).with_c2p(c2p).with_p2c(p2c).scale(d))
    }

    /// Whether content is compared with positions (`c2p`), and positions with content (`p2c`).
    fn terms(&self) -> Result<[bool; 2]> {
        let terms = match self.section.get("pos_att_type") {
            Some(Value::String(terms)) => terms.split('|').map(str::trim).collect(),
            Some(Value::Array(terms)) => terms.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        match terms.iter().find(|term| !["c2p", "p2c", ""].contains(term)) {
            Some(other) => Err(Error::value("config key `pos_att_type`", other, "c2p and p2c")),
            None => Ok([terms.contains(&"c2p"), terms.contains(&"p2c")]),
        }
    }

    pub(super) fn disentangled(&self, v2: bool) -> Result<Position> {
        if self.flag("relative_attention") != Some(true) {
            return Ok(Position::None);
        }
        let [c2p, p2c] = self.terms()?;
        // Negative or 0 means none.
        let positive = |key: &str| match self.section.get(key).map(Value::as_i64) {
            Some(Some(n)) if n > 0 => Ok(Some(n as usize)),
            Some(None) if !self.section[key].is_null() => {
                Err(Error::value(format!("config key `{key}`"), &self.section[key], "a whole number"))
            }
            _ => Ok(None),
        };
        let longest = self.number("max_position_embeddings")?.unwrap_or(512);
        let mut disentangled =
            Disentangled::new(positive("max_relative_positions")?.unwrap_or(longest)).with_c2p(c2p).with_p2c(p2c);
        if v2 {
            disentangled.position_buckets = positive("position_buckets")?;
            disentangled.share_att_key = self.flag("share_att_key") == Some(true);
            let norm = self.section.get("norm_rel_ebd").and_then(Value::as_str).unwrap_or("none");
            if norm.split('|').any(|norm| norm.trim() == "layer_norm") {
                disentangled.norm_eps = Some(self.float("layer_norm_eps").unwrap_or(1e-7));
            }
        }
        Ok(Position::Disentangled(disentangled))
    }
}

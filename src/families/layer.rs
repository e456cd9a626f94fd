//! Applies a family's row to one attention layer: its `config.json` section and prefix become configuration and mask.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::attention::Differential;
use crate::config::{AttentionConfig, CallInput, HeadNorm};
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::family::{Causal, Family, LayerPositions, Required, RotaryLayers, Scale};
use crate::families::heads::default_heads;
use crate::families::keys::RecordedSection;
use crate::families::table::layer_family;
use crate::io::{number, stated};
use crate::position::{Alibi, AlibiFormula, GivenRotation, Position, RelativeSinusoids, RotaryStyle, T5RelativeBias};

/// Keys for the number of heads, in order of precedence. They are tried for every family, so that unlisted ones load.
const HEADS: [&str; 9] = [
    "num_attention_heads_per_layer",
    "num_attention_heads",
    "n_heads",
    "n_head",
    "num_heads",
    "attention_heads",
    "resampler_n_heads",
    "num_self_attention_heads",
    "conf_num_attention_heads",
];
/// The most heads that a configuration may state. Slopes, norms and lists of pruned heads are computed for each, layer
/// by layer, also if only headers are read. The largest published models have 128.
const MAX_HEADS: usize = 4096;
/// Keys that come first in the decoder or the encoder of a model that has both.
const DECODER_HEADS: [&str; 3] =
    ["decoder_attention_heads", "decoder_num_attention_heads", "decoder_self_attention_heads"];
const ENCODER_HEADS: [&str; 2] = ["encoder_attention_heads", "encoder_num_attention_heads"];
/// The key of a model with an encoder of speech beside one of text.
const SPEECH_HEADS: &str = "speech_encoder_attention_heads";

/// The key of Perceiver for those of its cross-attention.
const PERCEIVER_CROSS_HEADS: &str = "num_cross_attention_heads";

/// Components of the prefixes of parts that have no section of their own, each with its keys for heads and width.
const PARTS: [(&str, [&str; 2]); 7] = [
    ("memory_attention", ["memory_attention_num_attention_heads", "memory_attention_hidden_size"]),
    ("channel_attn", ["num_groups", "dim_embed"]),
    ("adapter", ["num_attention_heads", "hidden_size"]),
    ("sequence_compressor_resampler", ["resampler_heads", ""]),
    ("predictor", ["pred_num_attention_heads", "pred_hidden_size"]),
    ("mit", ["mit_num_attention_heads", "mit_hidden_size"]),
    ("prompts_generator", ["prompt_num_attention_heads", "prompt_hidden_size"]),
];

/// Whether a section of a `config.json` states a number of heads.
pub(crate) fn states_heads(section: &Value) -> bool {
    let keys = HEADS.iter().chain(&DECODER_HEADS).chain(&ENCODER_HEADS);
    keys.into_iter().any(|key| section.get(key).is_some_and(|heads| !heads.is_null()))
}

/// The key for those of cross-attention, whose heads also have sizes of their own (Dia).
pub(crate) const CROSS_HEADS: &str = "cross_num_attention_heads";

/// Parts of the prefixes of cross-attention.
pub(crate) const CROSS: [&str; 8] = [
    "encoder_attn",
    "EncDecAttention",
    "crossattention",
    "cross_attn",
    "cross_attention",
    "encoder_decoder_attention",
    "x_attn",
    "second_sub_layer",
];

/// What a checkpoint holds for a layer and no configuration states.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LayerContents<'a> {
    /// Whether there are norms of queries and keys.
    pub norms: bool,
    /// Rows of the gate of the output, if there is one.
    pub gate: Option<usize>,
    /// Whether there is an indexer.
    pub indexer: bool,
    /// Whether there are keys of blocks of tokens.
    pub blocks: bool,
    /// Whether there is a norm of the context.
    pub context_norm: bool,
    /// Rows of the table of biases of patches: the layer's own, or that of all layers.
    pub bias_rows: Option<usize>,
    /// Rows of the tables of rows and columns between patches.
    pub patch_keys: Option<[usize; 2]>,
    /// The name of the layout.
    pub layout: &'static str,
    /// Heads that the layer no longer has, by their indices in the unpruned model.
    pub pruned: &'a [usize],
}

/// One attention layer of a model: its family's row, and the part of `config.json` that describes it.
#[derive(Clone, Copy)]
pub(crate) struct Layer<'a> {
    pub section: &'a RecordedSection<'a>,
    pub model_type: &'a str,
    pub family: &'static Family,
    pub prefix: &'a str,
    /// The layer's index: the first number in its prefix.
    pub index: usize,
    /// Whether it is cross-attention.
    pub cross: bool,
}

/// The component of a prefix that is the number of a layer in a stack, and its place: the first number, but not one in
/// front of all others, which is that of a module of sentence-transformers (`0.auto_model.layers.3`).
pub fn numbered_component(prefix: &str) -> Option<(usize, u32)> {
    let mut numbers =
        prefix.split('.').enumerate().filter_map(|(place, component)| Some((place, component.parse::<u32>().ok()?)));
    let first = numbers.next()?;
    Some(numbers.next().filter(|_| first.0 == 0).unwrap_or(first))
}

impl<'a> Layer<'a> {
    /// The layer at `prefix` of a model of this `model_type`, described by `section` of a `config.json`.
    ///
    /// # Errors
    /// The errors of [`layer_family`]; [`Error::UnsupportedKey`].
    pub fn new(section: &'a RecordedSection<'a>, model_type: Option<&'a str>, prefix: &'a str) -> Result<Self> {
        let (family, model_type) = (layer_family(model_type)?, model_type.unwrap_or_default());
        // No model has so many layers that the next index would overflow.
        let index = numbered_component(prefix).map_or(0, |(_, number)| number as usize);
        let cross = CROSS.iter().any(|part| prefix.contains(part));
        let layer = Self { section, model_type, family, prefix, index, cross };
        layer.check_keys()?;
        family.check_part(model_type, prefix)?;
        layer.check_lists()?;
        Ok(layer)
    }

    /// The value of a numeric key, or its default in the family's config class. A key that is `null` has none.
    pub(super) fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.section.get(key) {
            Some(_) => self.stated(key, "a number", Value::as_f64),
            None => Ok(self.family.default(key)),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.stated(key, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.stated(key, "a text", Value::as_str)
    }

    /// What `read` gives of a key that is neither absent nor null. A value of another kind is an error: a default in
    /// its place would be another model.
    pub(super) fn stated<T>(&self, key: &str, kind: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        stated(self.section.get(key), key, kind, read)
    }

    /// Whether the row lists a key that only some families read.
    pub(super) fn reads(&self, key: &str) -> bool {
        self.family.reads.contains(&key)
    }

    /// The value of a key that only some families read, if the row lists it.
    pub(crate) fn own(&self, key: &str) -> Option<&'a Value> {
        self.reads(key).then(|| self.section.get(key)).flatten()
    }

    /// The same for a key that counts something.
    pub(super) fn number(&self, key: &str) -> Result<Option<usize>> {
        match self.section.get(key) {
            Some(_) => number(self.section.json, key),
            None => Ok(self.family.default(key).map(|default| default as usize)),
        }
    }

    /// The number of heads of the unpruned layer, at most [`MAX_HEADS`].
    pub fn heads(&self) -> Result<usize> {
        let prefix = format!(".{}.", self.prefix);
        let share = self.family.shares_of_heads.iter().find(|(part, _)| prefix.contains(&format!(".{part}.")));
        let heads = self.stated_heads()? / share.map_or(1, |(_, divisor)| *divisor);
        ensure!(heads <= MAX_HEADS, Error::config("num_attention_heads", heads, format!("at most {MAX_HEADS}")));
        Ok(heads)
    }

    /// The keys for heads and width of the part that the layer is in, if the section has keys for it.
    pub fn keys_of_part(&self) -> Option<[&'static str; 2]> {
        let is_here =
            |(part, [heads, _]): &&(&str, [&str; 2])| self.is_below(part) && self.section.get(heads).is_some();
        PARTS.iter().find(is_here).map(|(_, keys)| *keys)
    }

    /// Whether the prefix has this component.
    pub(super) fn is_below(&self, part: &str) -> bool {
        self.prefix.split('.').any(|component| component == part)
    }

    fn stated_heads(&self) -> Result<usize> {
        if let (true, Some(heads)) = (self.cross, self.number(CROSS_HEADS)?) {
            return Ok(heads);
        }
        let by_prefix: &[&str] = match self.prefix {
            _ if self.cross && self.section.get(PERCEIVER_CROSS_HEADS).is_some() => &[PERCEIVER_CROSS_HEADS],
            prefix if prefix.contains("t2u_model") && prefix.contains("decoder") => &["t2u_decoder_attention_heads"],
            prefix if prefix.contains("t2u_model") => &["t2u_encoder_attention_heads"],
            prefix if prefix.contains("decoder") => &DECODER_HEADS,
            prefix if prefix.contains("speech_encoder") => &[SPEECH_HEADS, ENCODER_HEADS[0], ENCODER_HEADS[1]],
            prefix if prefix.contains("encoder") => &ENCODER_HEADS,
            _ => &[],
        };
        // An encoder or a decoder alone needs no prefix to tell which it is.
        let alone: &[&str] = match self.family.causal {
            _ if DECODER_HEADS.iter().all(|key| self.section.get(key).is_none()) => &ENCODER_HEADS,
            Causal::Always => &DECODER_HEADS,
            _ => &[],
        };
        let own = self.own_sizes().map(|own| number(own, "num_attention_heads"));
        if let Some(heads) = own.transpose()?.flatten() {
            return Ok(heads);
        }
        if self.family.pools_queries {
            return self.heads_of_stage();
        }
        let of_part = self.keys_of_part().map(|[heads, _]| heads);
        for key in of_part.iter().chain(by_prefix).chain(&HEADS).chain(alone) {
            // Swin has a number per stage.
            let of_stage = self.section.get(key).and_then(|heads| heads.get(self.index)).and_then(Value::as_u64);
            if let Some(heads) = of_stage.and_then(|heads| usize::try_from(heads).ok()) {
                return Ok(heads);
            }
            if let Some(heads) = self.number(key)? {
                return Ok(heads);
            }
        }
        // BridgeTower's vision tower has as many heads as its width allows.
        if let (Some(width), Some(d)) = (self.number("hidden_size")?, self.family.default("head_dim")) {
            return Ok(width / d as usize);
        }
        let parts = DECODER_HEADS.iter().chain(&ENCODER_HEADS).find(|key| self.section.get(key).is_some());
        let allowed = || match parts {
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

    /// Adds to `config`, which has the sizes, what the model does in this layer: scale, cap, norms, positions.
    pub fn configure(&self, mut config: AttentionConfig, contents: &LayerContents) -> Result<AttentionConfig> {
        let neighbors = self.value_convolution(config.value_convolution())?;
        config = config.with_value_convolution(neighbors);
        let d = config.resolved_head_dim();
        if let (Some(latent), Some(row)) = (config.latent, self.family.latent) {
            config.latent = Some(self.latent(&row, latent, &config)?);
        }
        config.scale = self.scale(d)?;
        config.softcap = self.family.softcap.map(|key| self.float(key)).transpose()?.flatten();
        if self.family.clip_qkv {
            let beside = self.float("clip_qkv");
            config = config.with_clip_qkv(self.nested_float("clip_qkv")?.map_or(beside, Ok)?);
        }
        config = config.with_between_channels(self.family.between_channels.is_some_and(|part| self.is_below(part)));
        config = config.with_query_pool(if self.family.pools_queries { self.query_pool()? } else { None });
        if self.family.differential {
            let lambda_init = 0.8 - 0.6 * (-0.3 * self.index as f64).exp();
            config = config.with_differential(Differential::new(lambda_init, self.norm_eps()?));
        }
        config = config.with_global_tokens(self.family.global_tokens && !self.cross && self.has_window()?);
        let gate = self.output_gate(&config, contents.gate)?;
        let max_keys = self.max_keys(&config, contents.indexer)?;
        config = config.with_output_gate(gate).with_max_keys(max_keys);
        if !self.cross || contents.context_norm {
            config = config.with_context_norm(self.context_norm(contents.context_norm)?);
        }
        config.requires = self.required_inputs()?;
        config.model_type = self.family.model_types.iter().find(|name| **name == self.model_type).copied();
        // Cross-attention has none, and reads their keys as the other layers do.
        let position = self.position(config.sizes().head_dim, contents);
        if !self.cross || config.requires.contains(&CallInput::CosSin) {
            config.position = position?;
        }
        config.key_value_source = self.key_value_source(config.key_value_source)?;
        config.steps = self.steps(contents.norms, config.key_value_source, d)?;
        config.steps = config.steps_taken();
        let pruned = contents.pruned;
        if !pruned.is_empty() {
            let all = config.num_attention_heads + pruned.len();
            let kept: Vec<usize> = (0..all).filter(|head| !pruned.contains(head)).collect();
            config.position.prune(&kept, all);
        }
        Ok(config)
    }

    /// What each call has to give.
    fn required_inputs(&self) -> Result<Vec<CallInput>> {
        let prefix = format!(".{}.", self.prefix);
        let mut inputs = Vec::new();
        for Required { input, below, from_layer, keys } in self.family.requires {
            let below = below.is_none_or(|part| prefix.contains(&format!(".{part}.")));
            let flags = keys.iter().map(|key| self.flag(key)).collect::<Result<Vec<_>>>()?;
            let is_on = flags.is_empty() || flags.iter().any(|flag| *flag != Some(false));
            if below && is_on && self.index >= *from_layer {
                inputs.push(*input);
            }
        }
        Ok(inputs)
    }

    /// The number at a key of the nested `attn_config` (MPT, DBRX), if it is stated there, perhaps as null.
    fn nested_float(&self, key: &str) -> Result<Option<Option<f64>>> {
        let Some(keys) = self.stated("attn_config", "a set of parameters", Value::as_object)? else { return Ok(None) };
        match keys.get(key) {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(None)),
            Some(value) => {
                let wrong = || Error::value(format!("config key `attn_config.{key}`"), value, "a number");
                value.as_f64().map(|number| Some(Some(number))).ok_or_else(wrong)
            }
        }
    }

    /// The factor on the scores; `None`: the usual one.
    fn scale(&self, d: usize) -> Result<Option<f64>> {
        let usual = (d as f64).powf(-0.5);
        let required = |key: &'static str| {
            self.float(key)?.ok_or_else(|| Error::config(key, "none", "a number: the family scales its scores by it"))
        };
        Ok(match self.family.scale {
            Scale::HeadDim => None,
            Scale::One => Some(1.0),
            Scale::Cosine => Some(1.0 / d as f64),
            Scale::Heads => Some((self.heads()? as f64).powf(-0.5)),
            Scale::HalfHeadDim => Some((d as f64 / 2.0).powf(-0.5)),
            Scale::QueryPreAttnScalar => Some(required("query_pre_attn_scalar")?.powf(-0.5)),
            Scale::AttentionMultiplier => self.float("attention_multiplier")?,
            Scale::KeyMultiplier => Some(usual * required("key_multiplier")?),
            Scale::Mpt => self.nested_float("softmax_scale")?.flatten(),
            Scale::Disentangled => Some(self.disentangled_scale(d)?),
            Scale::Mscale => self.mscale()?.map(|mscale| usual * mscale * mscale),
            Scale::Gpt2 => {
                let scale = if self.flag("scale_attn_weights")? == Some(false) { 1.0 } else { usual };
                let by_layer = self.flag("scale_attn_by_inverse_layer_idx")? == Some(true);
                Some(if by_layer { scale / ((self.index + 1) as f64) } else { scale })
            }
        })
    }

    pub(super) fn qk_norm(&self) -> Result<HeadNorm> {
        let Some((kind, over)) = self.family.qk_norm else {
            let expected = format!("absent: `{}` has none", self.model_type);
            return Err(Error::value("norms of queries and keys", "in the checkpoint", expected));
        };
        Ok(HeadNorm::new(kind, over, self.norm_eps()?))
    }

    /// What norms of queries, keys and values add to the variance.
    pub(super) fn norm_eps(&self) -> Result<f64> {
        if let Some(eps) = self.family.qk_norm_eps {
            return Ok(eps);
        }
        let keys = ["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"];
        for key in keys {
            if let Some(eps) = self.float(key)? {
                return Ok(eps);
            }
        }
        match keys.into_iter().find(|key| self.section.get(key).is_some()) {
            Some(key) => Err(Error::config(key, "null", "a number")),
            None => Ok(1e-6),
        }
    }

    pub(super) fn position(&self, d: usize, contents: &LayerContents) -> Result<Position> {
        let position = self.family_position(d, contents);
        match self.family.positions {
            LayerPositions::Alibi | LayerPositions::MptAlibi => position,
            // Jina-BERT, and whoever else states it.
            _ if self.text("position_embedding_type")? == Some("alibi") => {
                Ok(Position::Alibi(Alibi::default().with_symmetric(true)))
            }
            _ => position,
        }
    }

    fn family_position(&self, d: usize, contents: &LayerContents) -> Result<Position> {
        Ok(match self.family.positions {
            LayerPositions::Alibi => Position::Alibi(Alibi::default()),
            LayerPositions::MptAlibi => self.mpt_alibi()?,
            LayerPositions::MpnetBias => {
                self.section.note(&["relative_attention_num_buckets"]);
                Position::T5RelativeBias(T5RelativeBias::new(32, 128, true))
            }
            LayerPositions::T5Bias => self.t5_bias()?,
            LayerPositions::Rotary(row) => {
                let rotary = self.rotary(&row, d);
                if row.layers == RotaryLayers::UnlessAlibi && self.flag("alibi")? == Some(true) {
                    Position::Alibi(Alibi::default().with_formula(AlibiFormula::Falcon))
                } else if self.is_rotated(row.layers)? {
                    Position::Rotary(rotary?)
                } else {
                    Position::None
                }
            }
            LayerPositions::Given(style) => {
                // A call gives what these keys state.
                self.section.note(&["rope_theta", "rope_parameters"]);
                // Kimi's own files, which transformers permutes, have neighbors as pairs.
                let style = if contents.layout == "kimi" { RotaryStyle::Interleaved } else { style };
                Position::GivenRotation(GivenRotation::new(style))
            }
            LayerPositions::Video => self.video_rotary()?,
            LayerPositions::DinoRotary => self.dino_rotary()?,
            LayerPositions::PatchRotary(row) => self.patch_rotary(&row)?,
            LayerPositions::Disentangled { v2, silent } => self.disentangled(v2, silent)?,
            LayerPositions::FromWeights => self.patch_positions(contents.bias_rows)?,
            LayerPositions::ComputedBias { shrinks } => self.computed_bias(shrinks)?,
            LayerPositions::RelativeSinusoids => Position::RelativeSinusoids(RelativeSinusoids::default()),
            LayerPositions::SegmentSinusoids => self.segment_sinusoids()?,
            LayerPositions::LocalSinusoids { right, chunk } => self.local_sinusoids(right, chunk)?,
            LayerPositions::Conformer(default) => self.conformer(default, contents.layout)?,
            LayerPositions::RelativeKeyBlocks(key) => self.relative_key_blocks(key)?,
            LayerPositions::SharedRelativeKeys(part, key) => self.shared_relative_keys(part, key)?,
            LayerPositions::RelativeKey2d => self.relative_key_2d(contents.patch_keys)?,
            LayerPositions::RelativeKeyValue => self.relative_key_value()?,
            LayerPositions::GatedBias => self.gated_bias()?,
            LayerPositions::MainOrCompress => Position::Rotary(self.main_or_compress(d, contents.blocks)?),
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
        if self.required_inputs()?.contains(&CallInput::ScoreBias { scaled: false }) {
            return Ok(Position::None); // The call gives the biases.
        }
        let bidirectional = self.family.causal != Causal::Always && !self.prefix.contains("decoder");
        Ok(Position::T5RelativeBias(T5RelativeBias::new(buckets, distance, bidirectional)))
    }
}

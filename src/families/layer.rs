//! Applies a family's row to one attention layer: its `config.json` section and prefix become configuration and mask.

use serde_json::Value;

use crate::config::{AttentionConfig, CallInput, HeadNorm};
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::family::{Causal, Family, LayerPositions, Required, RotaryLayers, Scale, StepRow};
use crate::families::keys::RecordedSection;
use crate::families::table::layer_family;
use crate::io::{number, stated};
use crate::position::{
    Alibi, AlibiFormula, GivenRotation, Position, RelativeSinusoids, RotaryScaling, RotaryStyle, T5RelativeBias,
};

/// Parts of the prefixes of cross-attention.
#[rustfmt::skip]
pub(crate) const CROSS: [&str; 8] = [
    "encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "cross_attention", "encoder_decoder_attention",
    "x_attn", "second_sub_layer",
];

/// Facts that a checkpoint shows of a layer and no configuration states.
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
        layer.check_part()?;
        layer.check_lists()?;
        Ok(layer)
    }

    /// Checks that the layer is in no part of the model that cannot run.
    fn check_part(&self) -> Result<()> {
        match self.family.unsupported_parts.iter().find(|(part, _)| self.is_below(part)) {
            Some((part, why)) => {
                let why = format!("layers below `{part}` have {why}");
                Err(Error::UnsupportedFamily { model_type: self.model_type.to_string(), why })
            }
            None => Ok(()),
        }
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

    /// Whether a key is true, or there is none.
    pub(super) fn is_on(&self, key: Option<&str>) -> Result<bool> {
        key.map_or(Ok(true), |key| Ok(self.flag(key)? == Some(true)))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.stated(key, "a text", Value::as_str)
    }

    /// The value of a key that is neither absent nor null, by `read`. A value of another kind is an error: a default in
    /// its place would be another model.
    pub(super) fn stated<T>(&self, key: &str, kind: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        stated(self.section.get(key), key, kind, read)
    }

    /// Whether the row lists a key that only some families read.
    pub(super) fn reads(&self, key: &str) -> bool {
        self.family.own_keys.contains(&key)
    }

    /// Whether the row lists a value of a key that only some families read.
    pub(super) fn reads_value(&self, key: &str, value: &str) -> bool {
        self.family.own_keys.iter().any(|own| own.split_once('=') == Some((key, value)))
    }

    /// The value of a key that only some families read, if the row lists it.
    pub(crate) fn own(&self, key: &str) -> Option<&'a Value> {
        self.reads(key).then(|| self.section.get(key)).flatten()
    }

    /// The value of a key that counts something, or its default in the family's config class.
    pub(super) fn number(&self, key: &str) -> Result<Option<usize>> {
        match self.section.get(key) {
            Some(_) => number(self.section.json, key),
            None => Ok(self.family.default(key).map(|default| default as usize)),
        }
    }

    /// Whether the prefix has this component.
    pub(super) fn is_below(&self, part: &str) -> bool {
        self.prefix.split('.').any(|component| component == part)
    }

    /// Adds to `config`, which has the sizes, what the model does in this layer: mechanisms, scale, positions, steps.
    pub fn configure(&self, config: AttentionConfig, contents: &LayerContents) -> Result<AttentionConfig> {
        let d = config.resolved_head_dim();
        let config = self.with_mechanisms(config, contents)?;
        let mut config = config.with_requires(&self.required_inputs()?);
        config.scale = self.scale(d)?;
        config.model_type = self.family.model_types.iter().find(|name| **name == self.model_type).copied();
        // Cross-attention has none, and reads their keys as the other layers do.
        let position = self.position(config.sizes().head_dim, contents);
        if !self.cross || config.requires.contains(&CallInput::CosSin) {
            config = config.with_position(position?);
        }
        let steps = self.steps(contents.norms, config.key_value_source, d)?;
        config = config.with_steps(steps);
        config.steps = config.steps_taken();
        let pruned = contents.pruned;
        if !pruned.is_empty() {
            let all = config.num_attention_heads + pruned.len();
            let kept: Vec<usize> = (0..all).filter(|head| !pruned.contains(head)).collect();
            config.position.prune(&kept, all);
        }
        Ok(config)
    }

    /// The inputs that each call has to give.
    fn required_inputs(&self) -> Result<Vec<CallInput>> {
        let mut inputs = Vec::new();
        for Required { input, below, from_layer, keys } in self.family.requires {
            let is_here = below.is_none_or(|part| self.is_below(part));
            let flags = keys.iter().map(|key| self.flag(key)).collect::<Result<Vec<_>>>()?;
            let is_on = flags.is_empty() || flags.iter().any(|flag| *flag != Some(false));
            if is_here && is_on && self.index >= *from_layer {
                inputs.push(*input);
            }
        }
        Ok(inputs)
    }

    /// The number at a key of the nested `attn_config` (MPT, DBRX), if it is stated there, perhaps as null.
    pub(super) fn nested_float(&self, key: &str) -> Result<Option<Option<f64>>> {
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
            Scale::QueryPreAttnScalar if self.family.default("query_pre_attn_scalar").is_none() => {
                self.float("query_pre_attn_scalar")?.map(|scalar| scalar.powf(-0.5))
            }
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

    /// The number that norms of queries, keys and values add to the variance.
    pub(super) fn norm_eps(&self) -> Result<f64> {
        for step in self.family.steps {
            if let StepRow::NormEps(eps) = *step {
                return Ok(eps);
            }
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
                    // One angle for all places changes no score, but some scalings multiply the scores.
                    let scaling = if row.layers == RotaryLayers::None { rotary?.scaling } else { RotaryScaling::None };
                    ensure!(
                        scaling == RotaryScaling::None,
                        Error::config("rope_type", format!("{scaling:?}"), "default")
                    );
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

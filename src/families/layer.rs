//! Applies a family's row to one attention layer: its `config.json` section and prefix become configuration and mask.

use serde_json::Value;

use crate::config::{AttentionConfig, QkNorm};
use crate::error::{Error, Result};
use crate::families::family::{Causal, Family, LayerPositions, RotaryLayers, Scale, WindowLayers};
use crate::families::keys::check_keys;
use crate::families::table::layer_family;
use crate::io::number;
use crate::mask::AttentionMask;
use crate::position::{Alibi, AlibiFormula, AlibiSlopes, Position, T5RelativeBias};

/// Keys for the number of heads, in order of precedence. They are tried for every family, so that unlisted ones load.
const HEADS: [&str; 4] = ["num_attention_heads", "n_heads", "n_head", "num_heads"];
/// Keys that come first in the decoder or the encoder of a model that has both.
const DECODER_HEADS: [&str; 1] = ["decoder_attention_heads"];
const ENCODER_HEADS: [&str; 1] = ["encoder_attention_heads"];

/// Whether a section of a `config.json` states a number of heads.
pub(crate) fn states_heads(section: &Value) -> bool {
    let keys = HEADS.iter().chain(&DECODER_HEADS).chain(&ENCODER_HEADS);
    keys.into_iter().any(|key| section.get(key).is_some_and(|heads| !heads.is_null()))
}

/// What a checkpoint holds for a layer and no configuration states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerContents<'a> {
    /// Whether there are norms of queries and keys.
    pub norms: bool,
    /// Rows of the layer's own table of biases.
    pub bias_rows: Option<usize>,
    /// Heads that the layer no longer has, by their indices in the unpruned model.
    pub pruned: &'a [usize],
}

/// One attention layer of a model: its family's row, and the part of `config.json` that describes it.
pub(crate) struct Layer<'a> {
    pub section: &'a Value,
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
    /// Those of [`layer_family`]; [`Error::UnsupportedKey`].
    pub fn new(section: &'a Value, model_type: Option<&str>, prefix: &'a str) -> Result<Self> {
        let family = layer_family(model_type)?;
        check_keys(section, model_type.unwrap_or_default(), family)?;
        // No model has so many layers that the next index would overflow.
        let index = prefix.split('.').find_map(|part| part.parse::<u32>().ok()).unwrap_or(0) as usize;
        let cross = ["encoder_attn", "EncDecAttention", "crossattention"].iter().any(|part| prefix.contains(part));
        Ok(Self { section, family, prefix, index, cross })
    }

    pub(super) fn float(&self, key: &str) -> Option<f64> {
        self.section.get(key).and_then(Value::as_f64)
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.section.get(key).and_then(Value::as_bool)
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.section.get(key).and_then(Value::as_str)
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<usize>> {
        number(self.section, key)
    }

    /// The number of heads of the unpruned layer.
    pub fn heads(&self) -> Result<usize> {
        let by_prefix: &[&str] = match self.prefix {
            prefix if prefix.contains("decoder") => &DECODER_HEADS,
            prefix if prefix.contains("encoder") => &ENCODER_HEADS,
            _ => &[],
        };
        for key in by_prefix.iter().chain(&HEADS) {
            // Swin has a number per stage.
            let of_stage = self.section.get(key).and_then(|heads| heads.get(self.index)).and_then(Value::as_u64);
            if let Some(heads) = of_stage.and_then(|heads| usize::try_from(heads).ok()) {
                return Ok(heads);
            }
            if let Some(heads) = self.number(key)? {
                return Ok(heads);
            }
        }
        Err(Error::config("num_attention_heads", "absent", format!("one of {}", HEADS.join(", "))))
    }

    /// The heads that the layer no longer has, by their indices in the unpruned model.
    pub fn pruned_heads(&self) -> Result<Vec<usize>> {
        let Some(listed) = self.section.get("pruned_heads").and_then(|layers| layers.get(self.index.to_string()))
        else {
            return Ok(Vec::new());
        };
        serde_json::from_value(listed.clone())
            .map_err(|_| Error::value("config key `pruned_heads`", listed, "a list of heads for each layer"))
    }

    /// Adds to `config`, which has the sizes, what the model does in this layer: scale, cap, norms, positions.
    pub fn configure(&self, config: AttentionConfig, contents: &LayerContents) -> Result<AttentionConfig> {
        let mut config = config;
        let d = config.resolved_head_dim();
        config.scale = self.scale(d)?;
        config.softcap = self.float("attn_logit_softcapping");
        let clip = self.section.pointer("/attn_config/clip_qkv").or(self.section.get("clip_qkv"));
        config.clip_qkv = clip.and_then(Value::as_f64);
        if contents.norms {
            config.qk_norm = Some(self.qk_norm());
        }
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

    fn scale(&self, d: usize) -> Result<Option<f64>> {
        match self.family.scale {
            Scale::One => return Ok(Some(1.0)),
            Scale::Disentangled => return self.disentangled_scale(d).map(Some),
            Scale::HeadDim | Scale::Gpt2 => {}
        }
        if let Some(scalar) = self.float("query_pre_attn_scalar") {
            return Ok(Some(scalar.powf(-0.5)));
        }
        let stated = self.section.pointer("/attn_config/softmax_scale").and_then(Value::as_f64);
        if let Some(scale) = self.float("attention_multiplier").or(stated) {
            return Ok(Some(scale));
        }
        if self.family.scale != Scale::Gpt2 {
            return Ok(None);
        }
        let scale = if self.flag("scale_attn_weights") == Some(false) { 1.0 } else { (d as f64).powf(-0.5) };
        let by_layer = self.flag("scale_attn_by_inverse_layer_idx") == Some(true);
        Ok(Some(if by_layer { scale / ((self.index + 1) as f64) } else { scale }))
    }

    fn qk_norm(&self) -> QkNorm {
        let (kind, over) = self.family.qk_norm;
        let eps = ["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"].iter();
        QkNorm { kind, over, eps: eps.filter_map(|key| self.float(key)).next().unwrap_or(1e-6) }
    }

    fn position(&self, d: usize, contents: &LayerContents) -> Result<Position> {
        let stated = self.text("position_embedding_type");
        let positions = self.family.positions;
        Ok(match positions {
            LayerPositions::Alibi => Position::Alibi(Alibi::default()),
            LayerPositions::MptAlibi => self.mpt_alibi(),
            LayerPositions::Rotary(row)
                if row.layers == RotaryLayers::UnlessAlibi && self.flag("alibi") == Some(true) =>
            {
                Position::Alibi(Alibi::default().with_formula(AlibiFormula::Falcon))
            }
            // Jina-BERT, and whoever else states it.
            _ if stated == Some("alibi") => Position::Alibi(Alibi::default().with_symmetric(true)),
            LayerPositions::MpnetBias => Position::T5RelativeBias(T5RelativeBias::new(32, 128, true)),
            LayerPositions::T5Bias => self.t5_bias()?,
            LayerPositions::Rotary(row) => match row.layers {
                RotaryLayers::IfStated if stated != Some("rotary") => Position::None,
                RotaryLayers::Windowed if !self.has_window()? => Position::None,
                _ => Position::Rotary(self.rotary(&row, d)?),
            },
            LayerPositions::DinoRotary => self.dino_rotary()?,
            LayerPositions::Disentangled { v2 } => self.disentangled(v2)?,
            LayerPositions::FromWeights => self.patch_positions(contents.bias_rows)?,
        })
    }

    fn mpt_alibi(&self) -> Position {
        if self.section.pointer("/attn_config/alibi").and_then(Value::as_bool) == Some(false) {
            return Position::None;
        }
        let bias_max = self.section.pointer("/attn_config/alibi_bias_max").and_then(Value::as_f64).unwrap_or(8.0);
        Position::Alibi(Alibi::default().with_slopes(AlibiSlopes::Geometric { bias_max }))
    }

    fn t5_bias(&self) -> Result<Position> {
        let buckets = self.number("relative_attention_num_buckets")?.unwrap_or(32);
        let distance = self.number("relative_attention_max_distance")?.unwrap_or(128);
        let bidirectional = !self.prefix.contains("decoder");
        Ok(Position::T5RelativeBias(T5RelativeBias::new(buckets, distance, bidirectional)))
    }

    /// Whether the layer has a sliding window.
    pub(super) fn has_window(&self) -> Result<bool> {
        let listed = |key: &str| self.section.get(key).and_then(|kinds| kinds.get(self.index)).and_then(Value::as_str);
        if let Some(kind) = listed("layer_types") {
            return Ok(kind.starts_with("sliding"));
        }
        let group = |key: Option<&str>, default: usize| -> Result<usize> {
            let stated = key.map(|key| self.number(key)).transpose()?.flatten();
            Ok(stated.filter(|size| *size > 0).unwrap_or(default))
        };
        Ok(match self.family.window.layers {
            WindowLayers::Listed => false,
            WindowLayers::ListedLocal => listed("attention_layers") == Some("local"),
            WindowLayers::All => true,
            WindowLayers::AllButLastOf { key, default } => !(self.index + 1).is_multiple_of(group(key, default)?),
            WindowLayers::AllButFirstOf { key, default } => !self.index.is_multiple_of(group(key, default)?),
            WindowLayers::FromLayerNumber => {
                let first = self.number("max_window_layers")?.unwrap_or(usize::MAX);
                self.flag("use_sliding_window") == Some(true) && self.index >= first
            }
        })
    }

    fn is_causal(&self) -> bool {
        let causal = match self.family.causal {
            Causal::Never => false,
            Causal::Always => true,
            Causal::Decoder => self.prefix.contains("decoder"),
            Causal::TextTower => self.prefix.contains("text_model") && self.section.get("eos_token_id").is_some(),
        };
        // EmbeddingGemma is a Gemma 3 that sees both ways.
        causal && self.flag("use_bidirectional_attention") != Some(true)
    }

    /// The mask that the model always applies in this layer.
    pub fn mask(&self) -> Result<AttentionMask> {
        if self.cross {
            return Ok(AttentionMask::full());
        }
        let window = self.family.window;
        let window = match (self.has_window()?, window.default) {
            (false, _) => None,
            (true, Some(default)) => Some(self.number(window.key)?.unwrap_or(default)),
            (true, None) => self.number(window.key)?.filter(|width| *width > 0),
        };
        Ok(match (window, self.is_causal()) {
            (Some(width), true) => AttentionMask::window(Some(width - 1), Some(0)),
            // The width of both sides together, as ModernBERT and EmbeddingGemma state it.
            (Some(width), false) => AttentionMask::window(Some(width / 2), Some(width / 2)),
            (None, true) => AttentionMask::causal(),
            (None, false) => AttentionMask::full(),
        })
    }
}

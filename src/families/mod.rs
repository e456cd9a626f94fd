//! What the published families do in attention beyond projections: positions, norms, scales, windows.

pub(crate) mod layout;
pub(crate) mod layouts;
mod rotary;
mod schemes;

use serde_json::Value;

use crate::config::{AttentionConfig, NormKind, NormOver, QkNorm};
use crate::error::{Error, Result};
use crate::io::number;
use crate::mask::AttentionMask;
use crate::position::{Alibi, AlibiSlopes, Position, RelativeBuckets};

/// Families that read in one direction and rotate queries and keys.
const ROTARY_DECODERS: &[&str] = &[
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "olmo",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "stablelm",
    "cohere",
    "cohere2",
    "gpt_oss",
    "granite",
    "starcoder2",
    "persimmon",
    "gptj",
    "codegen",
    "gpt_neox",
    "falcon",
];
/// Families that read in one direction and know positions otherwise.
const OTHER_DECODERS: &[&str] = &["gpt2", "gpt_bigcode", "gpt_neo", "bloom", "mpt", "opt", "clip_text_model"];
/// Families that read in both directions and rotate queries and keys.
const ROTARY_ENCODERS: &[&str] = &["modernbert", "nomic_bert", "esm", "new", "gte", "jina_embeddings_v3"];
const T5: &[&str] = &["t5", "mt5", "umt5", "switch_transformers"];
const ENCODER_DECODERS: &[&str] =
    &["bart", "mbart", "marian", "pegasus", "blenderbot", "blenderbot-small", "m2m_100", "whisper", "speech_to_text"];
/// Families whose scores are not scaled.
const UNSCALED: &[&str] = &["t5", "mt5", "umt5", "switch_transformers", "gpt_neo"];
/// Families that this version cannot run as their model does, and why.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("longt5", "local attention with relative positions"),
    ("swinv2", "cosine attention with a computed position bias"),
];

/// What a checkpoint holds for a layer that no configuration says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held<'a> {
    /// Norms of queries and keys.
    pub norms: bool,
    /// Rows of the layer's own table of biases.
    pub table: Option<usize>,
    /// Heads that it no longer has, by their numbers in the unpruned model.
    pub pruned: &'a [usize],
}

/// The part of a `config.json` that describes one attention layer.
pub(crate) struct Layer<'a> {
    pub section: &'a Value,
    pub model_type: &'a str,
    pub prefix: &'a str,
    /// The layer's number: the first number in its prefix.
    pub index: usize,
    pub cross: bool,
}

impl<'a> Layer<'a> {
    pub fn new(section: &'a Value, prefix: &'a str) -> Self {
        let model_type = section.get("model_type").and_then(Value::as_str).unwrap_or_default();
        // No model has so many layers that the next number would overflow.
        let index = prefix.split('.').find_map(|part| part.parse::<u32>().ok()).unwrap_or(0) as usize;
        let cross = ["encoder_attn", "EncDecAttention", "crossattention"].iter().any(|part| prefix.contains(part));
        Self { section, model_type, prefix, index, cross }
    }

    fn usual(&self, table: &[(&str, f64)]) -> Option<f64> {
        table.iter().find(|(family, _)| *family == self.model_type).map(|(_, value)| *value)
    }

    fn is(&self, families: &[&str]) -> bool {
        families.contains(&self.model_type)
    }

    /// Whether self-attention sees no later token.
    fn is_decoder(&self) -> bool {
        self.is(ROTARY_DECODERS) || self.is(OTHER_DECODERS)
    }

    fn is_rotary(&self) -> bool {
        self.is(ROTARY_DECODERS) || self.is(ROTARY_ENCODERS)
    }

    fn float(&self, key: &str) -> Option<f64> {
        self.section.get(key).and_then(Value::as_f64)
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.section.get(key).and_then(Value::as_bool)
    }

    fn number(&self, key: &str) -> Result<Option<usize>> {
        number(self.section, key)
    }

    /// The heads that the layer no longer has, by their numbers in the unpruned model.
    pub fn pruned_heads(&self) -> Result<Vec<usize>> {
        let Some(listed) = self.section.get("pruned_heads").and_then(|layers| layers.get(self.index.to_string()))
        else {
            return Ok(Vec::new());
        };
        serde_json::from_value(listed.clone())
            .map_err(|_| Error::value("config key `pruned_heads`", listed, "a list of heads for each layer"))
    }

    /// Whether the family is one whose attention this version knows completely.
    pub fn is_known(&self) -> bool {
        self.is_decoder() || self.is_rotary() || self.is(T5) || self.is(&["mpnet"]) || self.is_of_schemes()
    }

    /// What the model does that this version cannot.
    pub fn unsupported(&self) -> Option<&'static str> {
        UNSUPPORTED.iter().find(|(family, _)| *family == self.model_type).map(|(_, why)| *why)
    }

    /// The layer as its model has it.
    pub fn configure(&self, config: AttentionConfig, held: &Held) -> Result<AttentionConfig> {
        let mut config = config;
        let d = config.head_dim();
        config.scale = self.scale(d)?;
        config.softcap = self.float("attn_logit_softcapping");
        let clip = self.section.pointer("/attn_config/clip_qkv").or(self.section.get("clip_qkv"));
        config.clip_qkv = clip.and_then(Value::as_f64);
        if held.norms {
            config.qk_norm = Some(self.qk_norm());
        }
        if !self.cross {
            config.position = self.position(d, held)?;
        }
        let pruned = held.pruned;
        if let (Position::Alibi(alibi), false) = (&mut config.position, pruned.is_empty()) {
            let all = config.num_attention_heads + pruned.len();
            let slopes = alibi.of_heads(all).into_iter().enumerate().filter(|(head, _)| !pruned.contains(head));
            alibi.slopes = AlibiSlopes::Given(slopes.map(|(_, slope)| slope).collect());
        }
        Ok(config)
    }

    fn scale(&self, d: usize) -> Result<Option<f64>> {
        if self.is(UNSCALED) {
            return Ok(Some(1.0));
        }
        if let Some(scale) = self.disentangled_scale(d)? {
            return Ok(Some(scale));
        }
        let plain = (d as f64).powf(-0.5);
        if let Some(scalar) = self.float("query_pre_attn_scalar") {
            return Ok(Some(scalar.powf(-0.5)));
        }
        if let Some(multiplier) = self.float("attention_multiplier") {
            return Ok(Some(multiplier));
        }
        if let Some(scale) = self.section.pointer("/attn_config/softmax_scale").and_then(Value::as_f64) {
            return Ok(Some(scale));
        }
        if !self.is(&["gpt2", "gpt_bigcode"]) {
            return Ok(None);
        }
        let scale = if self.flag("scale_attn_weights") == Some(false) { 1.0 } else { plain };
        let by_layer = self.flag("scale_attn_by_inverse_layer_idx") == Some(true);
        Ok(Some(if by_layer { scale / ((self.index + 1) as f64) } else { scale }))
    }

    fn qk_norm(&self) -> QkNorm {
        let kind = match self.model_type {
            "gemma3" | "gemma3_text" => NormKind::RmsOffset,
            "qwen3" | "qwen3_moe" | "olmo2" | "olmo3" => NormKind::Rms,
            _ => NormKind::Layer,
        };
        // Of BERT's kin, only Jina's for code has norms.
        let over = if self.is(&["olmo2", "olmo3", "bert"]) { NormOver::AllHeads } else { NormOver::Head };
        let eps = ["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"].iter();
        QkNorm { kind, over, eps: eps.filter_map(|key| self.float(key)).next().unwrap_or(1e-6) }
    }

    fn position(&self, d: usize, held: &Held) -> Result<Position> {
        let state = self.section.get("position_embedding_type").and_then(Value::as_str);
        Ok(match self.model_type {
            "bloom" => Position::Alibi(Alibi::default()),
            "falcon" if self.flag("alibi") == Some(true) => Position::Alibi(Alibi::default().with_falcon(true)),
            "mpt" => {
                let bias_max = self.section.pointer("/attn_config/alibi_bias_max").and_then(Value::as_f64);
                let bias_max = bias_max.unwrap_or(8.0);
                match self.section.pointer("/attn_config/alibi").and_then(Value::as_bool) {
                    Some(false) => Position::None,
                    _ => Position::Alibi(Alibi::default().with_slopes(AlibiSlopes::Geometric { bias_max })),
                }
            }
            _ if state == Some("alibi") => Position::Alibi(Alibi::default().with_symmetric(true)),
            "esm" if state != Some("rotary") => Position::None,
            // The configuration's number only sizes the table.
            "mpnet" => Position::RelativeBuckets(RelativeBuckets::new(32, 128, true)),
            _ if self.is(T5) => self.buckets(!self.prefix.contains("decoder"))?,
            // Only its local layers are rotated.
            "cohere2" if !self.is_local()? => Position::None,
            _ if self.is_rotary() => Position::Rotary(self.rotary(d)?),
            _ => return self.scheme(held),
        })
    }

    fn buckets(&self, bidirectional: bool) -> Result<Position> {
        let count = self.number("relative_attention_num_buckets")?.unwrap_or(32);
        let distance = self.number("relative_attention_max_distance")?.unwrap_or(128);
        Ok(Position::RelativeBuckets(RelativeBuckets::new(count, distance, bidirectional)))
    }

    /// Whether the layer sees only near tokens.
    fn is_local(&self) -> Result<bool> {
        let kinds = self.section.get("layer_types").and_then(|kinds| kinds.get(self.index)).and_then(Value::as_str);
        if let Some(kind) = kinds {
            return Ok(kind.starts_with("sliding"));
        }
        let every = |key: &str, usual: usize| Ok::<_, Error>(self.number(key)?.filter(|n| *n > 0).unwrap_or(usual));
        Ok(match self.model_type {
            "gemma2" | "gpt_oss" => self.index.is_multiple_of(2),
            "gemma3" | "gemma3_text" => !(self.index + 1).is_multiple_of(every("sliding_window_pattern", 6)?),
            "olmo3" => !(self.index + 1).is_multiple_of(4),
            "cohere2" => !(self.index + 1).is_multiple_of(every("sliding_window_pattern", 4)?),
            "modernbert" => !self.index.is_multiple_of(every("global_attn_every_n_layers", 3)?),
            "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => {
                let from = self.number("max_window_layers")?.unwrap_or(usize::MAX);
                self.flag("use_sliding_window") == Some(true) && self.index >= from
            }
            "gpt_neo" => {
                let kinds = self.section.get("attention_layers").and_then(|kinds| kinds.get(self.index));
                kinds.and_then(Value::as_str) == Some("local")
            }
            "mistral" | "mixtral" | "starcoder2" | "phi3" => true,
            _ => false,
        })
    }

    /// Whether the layer is in the decoder of a family that writes text by an encoder and a decoder.
    fn is_decoder_part(&self) -> bool {
        self.prefix.contains("decoder") && (self.is(T5) || self.is(ENCODER_DECODERS))
    }

    /// The mask that the model always applies in this layer.
    pub fn mask(&self) -> Result<AttentionMask> {
        if self.cross {
            return Ok(AttentionMask::full());
        }
        let clip_text = self.prefix.contains("text_model") && self.section.get("eos_token_id").is_some();
        let clip_text = clip_text && self.model_type.starts_with("clip");
        let bidirectional = self.flag("use_bidirectional_attention") == Some(true);
        let causal = !bidirectional && (self.is_decoder() || self.is_decoder_part() || clip_text);
        let key = if self.model_type == "gpt_neo" { "window_size" } else { "sliding_window" };
        let window = match (self.is_local()?, self.model_type) {
            (false, _) => None,
            (true, "modernbert") => {
                let half = self.number("local_attention")?.unwrap_or(128) / 2;
                return Ok(AttentionMask::window(Some(half), Some(half)));
            }
            (true, _) => self.number(key)?.filter(|window| *window > 0),
        };
        Ok(match (window, causal) {
            (Some(window), true) => AttentionMask::window(Some(window - 1), Some(0)),
            // EmbeddingGemma states the width of both sides together.
            (Some(window), false) => AttentionMask::window(Some(window / 2), Some(window / 2)),
            (None, true) => AttentionMask::causal(),
            (None, false) => AttentionMask::full(),
        })
    }
}

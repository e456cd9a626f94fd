//! What the published families do in attention beyond projections: positions, norms, scales, windows.

use serde_json::Value;

use super::hf_config::{number, optional};
use crate::config::{AttentionConfig, NormKind, NormOver, QkNorm};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::position::{Alibi, AlibiSlopes, Position, RelativeBuckets, Rotary, RotaryScaling, RotaryStyle};

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
const INTERLEAVED: &[&str] = &["gptj", "codegen", "cohere", "cohere2"];
/// Families that may rotate only a share of a head's numbers, and that share where the configuration is silent.
const PARTIAL: &[&str] = &["phi", "phi3", "stablelm", "persimmon", "gpt_neox", "nomic_bert"];
const USUAL_SHARE: &[(&str, f64)] = &[("phi", 0.5), ("persimmon", 0.5), ("stablelm", 0.25), ("gpt_neox", 0.25)];
/// The base where the configuration is silent and it is not 10,000.
const USUAL_THETA: &[(&str, f64)] = &[
    ("cohere", 500_000.0),
    ("gpt_oss", 150_000.0),
    ("nomic_bert", 1_000.0),
    ("new", 160_000.0),
    ("gte", 160_000.0),
    ("jina_embeddings_v3", 20_000.0),
];
const T5: &[&str] = &["t5", "mt5", "umt5", "switch_transformers"];
const ENCODER_DECODERS: &[&str] =
    &["bart", "mbart", "marian", "pegasus", "blenderbot", "blenderbot-small", "m2m_100", "whisper", "speech_to_text"];
/// Families whose scores are not scaled.
const UNSCALED: &[&str] = &["t5", "mt5", "umt5", "switch_transformers", "gpt_neo"];
/// Families that this version cannot run as their model does, and why.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("longt5", "local attention with relative positions"),
    ("deberta", "disentangled attention"),
    ("deberta-v2", "disentangled attention"),
    ("dinov3_vit", "rotary positions in two dimensions"),
];

/// The part of a `config.json` that describes one attention layer.
pub(super) struct Layer<'a> {
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
        let index = prefix.split('.').find_map(|part| part.parse().ok()).unwrap_or(0);
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

    /// Whether the family is one whose attention this version knows completely.
    pub fn is_known(&self) -> bool {
        self.is_decoder() || self.is_rotary() || self.is(T5) || self.is(&["mpnet"])
    }

    /// What the model does that this version cannot.
    pub fn unsupported(&self) -> Option<&'static str> {
        let family = UNSUPPORTED.iter().find(|(family, _)| *family == self.model_type).map(|(_, why)| *why);
        family.or_else(|| {
            let beit = ["use_relative_position_bias", "use_shared_relative_position_bias"];
            beit.iter().any(|key| self.flag(key) == Some(true)).then_some("a relative position bias in two dimensions")
        })
    }

    /// The layer as its model has it. `has_norms`: the checkpoint holds norms of queries and keys.
    pub fn configure(&self, config: AttentionConfig, has_norms: bool) -> Result<AttentionConfig> {
        let mut config = config;
        let d = config.head_dim();
        config.scale = self.scale(d)?;
        config.softcap = self.float("attn_logit_softcapping");
        let clip = self.section.pointer("/attn_config/clip_qkv").or(self.section.get("clip_qkv"));
        config.clip_qkv = clip.and_then(Value::as_f64);
        if has_norms {
            config.qk_norm = Some(self.qk_norm());
        }
        if !self.cross {
            config.position = self.position(d)?;
        }
        Ok(config)
    }

    fn scale(&self, d: usize) -> Result<Option<f64>> {
        if self.is(UNSCALED) {
            return Ok(Some(1.0));
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
        Ok(Some(if by_layer { scale / (self.index + 1) as f64 } else { scale }))
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

    fn position(&self, d: usize) -> Result<Position> {
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
            _ => Position::None,
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
            return Ok(AttentionMask::none());
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
            (None, false) => AttentionMask::none(),
        })
    }

    fn rotary(&self, d: usize) -> Result<Rotary> {
        let local = self.is_local()?;
        let stated = self.section.get("rope_parameters").filter(|stated| !stated.is_null());
        // Some families have one set for each kind of layer.
        let kind = if local { "sliding_attention" } else { "full_attention" };
        let stated = stated.map(|stated| stated.get(kind).unwrap_or(stated));
        let scaling = stated.or(self.section.get("rope_scaling")).filter(|scaling| !scaling.is_null());
        let local_only = local && stated.is_none();
        let of =
            |key: &str| stated.and_then(|stated| stated.get(key)).or(self.section.get(key)).and_then(Value::as_f64);
        let local_theta = if local_only { of("rope_local_base_freq").or(of("local_rope_theta")) } else { None };
        let theta = local_theta.or(of("rope_theta")).or(of("global_rope_theta")).or(of("rotary_emb_base"));
        let share = of("partial_rotary_factor").or(of("rotary_pct")).or(of("rotary_emb_fraction"));
        let share = share.or(self.usual(USUAL_SHARE)).filter(|_| self.is(PARTIAL));
        let dim = match optional(self.section, "rotary_dim")? {
            Some(dim) => dim,
            None => share.map_or(d, |share| (share * d as f64) as usize),
        };
        let interleaved = self.is(INTERLEAVED) || self.flag("rotary_emb_interleaved") == Some(true);
        let style = if interleaved { RotaryStyle::Interleaved } else { RotaryStyle::HalfSplit };
        let mut rotary = Rotary::default()
            .with_dim(dim)
            .with_style(style)
            .with_theta(theta.or(self.usual(USUAL_THETA)).unwrap_or(10_000.0));
        // Gemma 3 and OLMo 3 scale only the global layers.
        let scaled = !(local_only && self.is(&["gemma3", "gemma3_text", "olmo3"]));
        if let Some(scaling) = scaling.filter(|_| local_theta.is_none() && scaled) {
            rotary = rotary.with_scaling(self.scaling(scaling)?);
        } else if let Some(factor) = self.float("rotary_scaling_factor") {
            // NomicBERT's own word for it.
            let original_max_position_embeddings = self.number("max_trained_positions")?.unwrap_or(2048);
            rotary = rotary.with_scaling(RotaryScaling::Dynamic { factor, original_max_position_embeddings });
        }
        Ok(rotary)
    }

    fn scaling(&self, scaling: &Value) -> Result<RotaryScaling> {
        let kind = scaling.get("rope_type").or(scaling.get("type")).and_then(Value::as_str).unwrap_or("default");
        let float = |key: &str| scaling.get(key).and_then(Value::as_f64);
        let longest = || self.number("max_position_embeddings").map(|longest| longest.unwrap_or(2048));
        let original = || -> Result<usize> {
            let stated = number(scaling, "original_max_position_embeddings")?;
            Ok(match stated.or(self.number("original_max_position_embeddings")?) {
                Some(original) => original,
                None => longest()?,
            })
        };
        let factor = || -> Result<f64> {
            Ok(match float("factor") {
                Some(factor) => factor,
                None => longest()? as f64 / original()? as f64,
            })
        };
        let list = |key: &str| -> Vec<f64> {
            let list = scaling.get(key).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        Ok(match kind {
            "default" => RotaryScaling::None,
            "linear" => RotaryScaling::Linear { factor: factor()? },
            // Here the longest text is the model's own.
            "dynamic" => RotaryScaling::Dynamic { factor: factor()?, original_max_position_embeddings: longest()? },
            "yarn" => {
                let by = |mscale: f64, factor: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
                let factor = factor()?;
                let mscale = match (float("mscale"), float("mscale_all_dim")) {
                    (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                        Some(by(mscale, factor) / by(all, factor))
                    }
                    _ => None,
                };
                RotaryScaling::Yarn {
                    factor,
                    original_max_position_embeddings: original()?,
                    beta_fast: float("beta_fast").filter(|beta| *beta != 0.0).unwrap_or(32.0),
                    beta_slow: float("beta_slow").filter(|beta| *beta != 0.0).unwrap_or(1.0),
                    attention_factor: float("attention_factor").or(mscale),
                    truncate: scaling.get("truncate").and_then(Value::as_bool).unwrap_or(true),
                }
            }
            "longrope" | "su" => {
                let original = original()?;
                let factor = factor()?;
                let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
                RotaryScaling::LongRope {
                    short_factor: list("short_factor"),
                    long_factor: list("long_factor"),
                    original_max_position_embeddings: original,
                    attention_factor: float("attention_factor").unwrap_or(usual),
                }
            }
            "llama3" => RotaryScaling::Llama3 {
                factor: factor()?,
                original_max_position_embeddings: original()?,
                low_freq_factor: float("low_freq_factor").unwrap_or(1.0),
                high_freq_factor: float("high_freq_factor").unwrap_or(4.0),
            },
            other => {
                let known = "default, linear, dynamic, yarn, longrope or llama3";
                return Err(Error::value("config key `rope_type`", other, known));
            }
        })
    }
}

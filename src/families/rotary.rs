//! Rotary positions as configurations state them.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::Layer;
use crate::io::{number, whole_number};
use crate::position::{Rotary, RotaryScaling, RotaryStyle};

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

impl Layer<'_> {
    pub(crate) fn rotary(&self, d: usize) -> Result<Rotary> {
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
        let dim = match whole_number(self.section, "rotary_dim")? {
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

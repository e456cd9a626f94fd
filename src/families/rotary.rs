//! Rotary positions of a layer, from its family's row and the keys of its configuration.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::family::RotaryRow;
use crate::families::layer::Layer;
use crate::io::{number, whole_number};
use crate::position::{Rotary, RotaryScaling, RotaryStyle};

impl Layer<'_> {
    pub(super) fn rotary(&self, row: &RotaryRow, d: usize) -> Result<Rotary> {
        let windowed = self.has_window()?;
        let stated = self.section.get("rope_parameters").filter(|stated| !stated.is_null());
        // Some families have one set per kind of layer.
        let kind = if windowed { "sliding_attention" } else { "full_attention" };
        let stated = stated.map(|stated| stated.get(kind).unwrap_or(stated));
        let scaling = stated.or(self.section.get("rope_scaling")).filter(|scaling| !scaling.is_null());
        // Earlier spellings have a key of its own for the base of layers with a window.
        let windowed = windowed && stated.is_none();
        let of =
            |key: &str| stated.and_then(|stated| stated.get(key)).or(self.section.get(key)).and_then(Value::as_f64);
        let window_theta = if windowed { of("rope_local_base_freq").or(of("local_rope_theta")) } else { None };
        let theta = window_theta.or(of("rope_theta")).or(of("global_rope_theta")).or(of("rotary_emb_base"));
        let share = of("partial_rotary_factor").or(of("rotary_pct")).or(of("rotary_emb_fraction"));
        let share = row.share.map(|default| share.unwrap_or(default));
        let dim = match whole_number(self.section, "rotary_dim")? {
            Some(dim) => dim,
            None => share.map_or(d, |share| (share * d as f64) as usize),
        };
        let interleaved = row.interleaved || self.flag("rotary_emb_interleaved") == Some(true);
        let style = if interleaved { RotaryStyle::Interleaved } else { RotaryStyle::HalfSplit };
        let mut rotary = Rotary::default().with_dim(dim).with_style(style).with_theta(theta.unwrap_or(row.theta));
        let scaled = window_theta.is_none() && (row.scales_windowed || !windowed);
        if let Some(scaling) = scaling.filter(|_| scaled) {
            rotary = rotary.with_scaling(self.rotary_scaling(scaling)?);
        } else if let Some(factor) = self.float("rotary_scaling_factor") {
            // NomicBERT's own key.
            let original_max_position_embeddings = self.number("max_trained_positions")?.unwrap_or(2048);
            rotary = rotary.with_scaling(RotaryScaling::Dynamic { factor, original_max_position_embeddings });
        }
        Ok(rotary)
    }

    fn rotary_scaling(&self, scaling: &Value) -> Result<RotaryScaling> {
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
            // Here the original length is `max_position_embeddings` itself.
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

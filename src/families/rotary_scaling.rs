//! Scaling of rotary positions to longer contexts.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::family::{QueryFactor, StepRow};
use crate::families::layer::Layer;
use crate::families::rotary::rope_type;
use crate::io::{self, number};
use crate::position::RotaryScaling;

/// A set of rotary parameters that scales the rotation of a layer.
struct ScalingKeys<'a> {
    layer: &'a Layer<'a>,
    set: &'a Value,
    /// Whether there is a set for each kind of layer.
    per_kind: bool,
}

impl ScalingKeys<'_> {
    fn float(&self, key: &str) -> Result<Option<f64>> {
        io::stated(self.set.get(key), key, "a number", Value::as_f64)
    }

    fn found(&self, key: &str) -> String {
        self.set.get(key).map_or("absent".to_string(), Value::to_string)
    }

    fn required(&self, key: &'static str) -> Result<f64> {
        let absent = || Error::config(key, self.found(key), "a number, by which the rotation is scaled");
        self.float(key)?.ok_or_else(absent)
    }

    fn list(&self, key: &'static str) -> Result<Vec<f64>> {
        let list = self.set.get(key).and_then(Value::as_array);
        let list = list.and_then(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        list.ok_or_else(|| Error::config(key, self.found(key), "a list of numbers"))
    }

    /// The longest context of the model.
    fn longest(&self) -> Result<usize> {
        let stated = self.layer.number("max_position_embeddings")?;
        stated.ok_or_else(|| Error::config("max_position_embeddings", "none", "a length, from which to scale"))
    }

    /// The length that the model was trained with. The model's own key comes first, unless there is a set per kind of
    /// layer.
    fn original(&self) -> Result<usize> {
        const KEY: &str = "original_max_position_embeddings";
        let own = if self.per_kind { None } else { self.layer.section.get(KEY) };
        if own.or(self.set.get(KEY)).is_some_and(Value::is_null) {
            return Err(Error::config(KEY, "null", "a length, or absent"));
        }
        let own = if self.per_kind { None } else { self.layer.number(KEY)? };
        own.or(number(self.set, KEY)?).map_or_else(|| self.longest(), Ok)
    }

    /// The factor, or the ratio of both lengths.
    fn factor(&self) -> Result<f64> {
        match self.float("factor")? {
            Some(factor) => Ok(factor),
            None => Ok(self.longest()? as f64 / self.original()? as f64),
        }
    }

    fn yarn(&self) -> Result<RotaryScaling> {
        // Null is the ratio of both lengths.
        let factor = if self.set.get("factor").is_some() { self.factor()? } else { self.required("factor")? };
        let mscale = match (self.float("mscale")?, self.float("mscale_all_dim")?) {
            (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                Some(yarn_mscale(mscale, factor) / yarn_mscale(all, factor))
            }
            _ => None,
        };
        // Beside the sets of kinds of layers, not in them.
        let truncate = if self.per_kind { self.layer.section.get("rope_parameters") } else { Some(self.set) };
        Ok(RotaryScaling::Yarn {
            factor,
            original_max_position_embeddings: self.original()?,
            beta_fast: self.float("beta_fast")?.filter(|beta| *beta != 0.0).unwrap_or(32.0),
            beta_slow: self.float("beta_slow")?.filter(|beta| *beta != 0.0).unwrap_or(1.0),
            attention_factor: self.float("attention_factor")?.or(mscale),
            truncate: truncate.and_then(|set| set.get("truncate")).is_none_or(is_true),
        })
    }

    fn longrope(&self) -> Result<RotaryScaling> {
        let original = self.original()?;
        // PhiMoE has a factor for short texts and one for long ones, which are equal in published models. Its model in
        // transformers 5.23 rotates long texts by `short_factor` too.
        let (long_factor, attention_factor) = match (self.float("short_mscale")?, self.float("long_mscale")?) {
            (None, None) => {
                let usual = |factor: f64| {
                    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() }
                };
                let stated = self.float("attention_factor")?;
                ("long_factor", stated.map_or_else(|| self.factor().map(usual), Ok)?)
            }
            (Some(short), Some(long)) if short == long => ("short_factor", short),
            (_, long) => return Err(Error::config("long_mscale", format!("{long:?}"), "that of `short_mscale`")),
        };
        Ok(RotaryScaling::LongRope {
            short_factor: self.list("short_factor")?,
            long_factor: self.list(long_factor)?,
            original_max_position_embeddings: original,
            attention_factor,
        })
    }

    /// Checks that the family has the factor on its queries that the set states.
    fn check_query_factor(&self) -> Result<()> {
        const KEY: &str = "llama_4_scaling_beta";
        let has_factor = self.layer.family.steps.contains(&StepRow::QueryFactor(QueryFactor::RopeBeta));
        match self.set.get(KEY).filter(|beta| !beta.is_null() && beta.as_f64() != Some(0.0)) {
            Some(beta) if !has_factor => {
                Err(Error::config(KEY, beta, "absent: this family has no factor on its queries"))
            }
            _ => Ok(()),
        }
    }
}

impl Layer<'_> {
    /// The scaling that a set of rotary parameters states; `per_kind`: whether there is one for each kind of layer.
    pub(super) fn rotary_scaling(&self, set: &Value, per_kind: bool) -> Result<RotaryScaling> {
        let keys = ScalingKeys { layer: self, set, per_kind };
        keys.check_query_factor()?;
        let kind = match rope_type(set)? {
            "deepseek_yarn" if self.reads_value("rope_type", "deepseek_yarn") => "yarn",
            kind => kind,
        };
        match kind {
            // Rotation by time, row and column of images (M-RoPE) is the usual one where the three are equal: in text.
            "default" | "mrope" => Ok(RotaryScaling::None),
            "linear" => Ok(RotaryScaling::Linear { factor: keys.required("factor")? }),
            "dynamic" => Ok(RotaryScaling::Dynamic {
                factor: keys.required("factor")?,
                // Here the original length is `max_position_embeddings` itself.
                original_max_position_embeddings: keys.longest()?,
            }),
            "ntk" if self.reads("mixed_b") => {
                Ok(RotaryScaling::Ntk { factor: keys.required("factor")?, mixed_b: keys.float("mixed_b")? })
            }
            // Early files of Phi-3 call their scaling so, too.
            "yarn" if set.get("short_factor").is_some() => keys.longrope(),
            "longrope" | "su" => keys.longrope(),
            "yarn" => keys.yarn(),
            "llama3" => Ok(RotaryScaling::Llama3 {
                factor: keys.required("factor")?,
                original_max_position_embeddings: keys.original()?,
                low_freq_factor: keys.required("low_freq_factor")?,
                high_freq_factor: keys.required("high_freq_factor")?,
            }),
            other => {
                let known = "default, linear, dynamic, yarn, longrope or llama3";
                Err(Error::value("config key `rope_type`", other, known))
            }
        }
    }

    /// The scaling by NomicBERT's own key, if there is one.
    pub(super) fn nomic_scaling(&self) -> Result<RotaryScaling> {
        const KEY: &str = "rotary_scaling_factor";
        let Some(factor) = io::stated(self.own(KEY), KEY, "a number", Value::as_f64)? else {
            return Ok(RotaryScaling::None);
        };
        let original_max_position_embeddings = self.number("max_trained_positions")?.unwrap_or(2048);
        Ok(RotaryScaling::Dynamic { factor, original_max_position_embeddings })
    }
}

/// YaRN's factor on the scores of a rotation that is scaled by `factor`.
pub(super) fn yarn_mscale(mscale: f64, factor: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// Whether Python takes a value as true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(keys) => !keys.is_empty(),
    }
}

//! Rotary positions of a layer, from its family's row and the keys of its configuration.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::family::{Mrope, QueryFactor, RotaryLayers, RotaryRow};
use crate::families::layer::Layer;
use crate::io::{self, number, whole_number};
use crate::position::{Rotary, RotaryScaling, RotaryStyle};

impl Layer<'_> {
    pub(super) fn rotary(&self, row: &RotaryRow, d: usize) -> Result<Rotary> {
        // Keys are read before the first branch and the first error.
        let stated = self.stated_rotation(row);
        let beside = |key: &str| match key {
            "rope_theta" | "partial_rotary_factor" => self.section.get(key),
            "global_rope_theta" | "local_rope_theta" | "rope_local_base_freq" => {
                row.window_theta.and_then(|_| self.section.get(key))
            }
            _ => self.own(key),
        };
        let set = stated.as_ref().ok().and_then(|(set, _)| *set);
        let of = |keys: &[&'static str]| {
            first_number(keys, |key| {
                let beside = beside(key);
                set.and_then(|set| set.get(key)).or(beside)
            })
        };
        let theta = of(&["rope_theta", "global_rope_theta", "rotary_emb_base"]);
        let window_theta = of(&["rope_local_base_freq", "local_rope_theta"]);
        let share = of(&["partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"]);
        let own_flag = |key: &str| io::stated(self.own(key), key, "true or false", Value::as_bool);
        let interleaved = ["rope_interleave", "rotary_emb_interleaved"].map(own_flag);
        // NomicBERT's own key.
        const FACTOR: &str = "rotary_scaling_factor";
        let own_factor = io::stated(self.own(FACTOR), FACTOR, "a number", Value::as_f64);
        let dim = match row.least_of_projection {
            Some(least) => self.rotary_dim_of_projection(least),
            None if row.rotary_dim => self.rotary_dim(),
            None => Ok(None),
        };
        let (stated, per_kind) = stated?;
        // Earlier spellings have a key of its own for the base of layers with a window.
        let windowed = self.has_window()? && !per_kind;
        let theta = match row.window_theta.filter(|_| windowed) {
            Some(default) => window_theta?.unwrap_or(default),
            None if row.layers == RotaryLayers::OwnTheta
                && let Some(own) = self.listed("layer_rope_theta") =>
            {
                own.as_f64().unwrap_or(row.theta)
            }
            None => theta?.unwrap_or(row.theta),
        };
        // GPT-NeoX reads its own spellings there, `rotary_emb_base` and `rotary_pct`.
        if self.reads("rotary_pct")
            && let Some(beside) = self.float("rope_theta")?
            && stated.is_none_or(|set| set.get("rope_theta").is_none())
            && self.float("rotary_emb_base")?.unwrap_or(row.theta) != beside
        {
            let allowed = "a key of `rope_parameters`, or absent: this family reads `rotary_emb_base` beside them";
            return Err(Error::config("rope_theta", beside, allowed));
        }
        if (per_kind || self.reads("rotary_pct"))
            && let Some(beside) = self.float("partial_rotary_factor")?
            && stated.is_none_or(|set| set.get("partial_rotary_factor").is_none())
        {
            let allowed = "a key of each set of `rope_parameters`: families differ in whether they read it beside them";
            return Err(Error::config("partial_rotary_factor", beside, allowed));
        }
        let kind = stated.map_or(Ok("default"), rope_type)?;
        let proportional = kind == "proportional";
        // A family that rotates whole heads does not read one that is null.
        let share = if row.share.is_some() || proportional { share? } else { share.ok().flatten() };
        let share = share.filter(|share| !self.is_share_of_latent(*share, d));
        if proportional && !self.reads("proportional") {
            let known = "default, linear, dynamic, yarn, longrope or llama3";
            return Err(Error::value("config key `rope_type`", "proportional", known));
        }
        // There it is the share of the pairs that turn, not of the head.
        let pairs = share.filter(|_| proportional);
        let share = share.filter(|_| !proportional);
        if let (None, Some(share)) = (row.share, share.filter(|share| *share != 1.0)) {
            return Err(Error::config("partial_rotary_factor", share, "1: the family rotates whole heads"));
        }
        let share = row.share.map(|default| share.unwrap_or(default));
        let dim = dim?.unwrap_or_else(|| share.map_or(d, |share| (share * d as f64) as usize));
        let [stated_pairs, also_pairs] = interleaved;
        let interleaved = stated_pairs?.unwrap_or(row.interleaved) || also_pairs? == Some(true);
        let style = if interleaved { RotaryStyle::Interleaved } else { RotaryStyle::HalfSplit };
        // HunYuan's factor on the base, whatever the length.
        let alpha = stated.filter(|_| self.reads("alpha")).and_then(|stated| stated.get("alpha"));
        let alpha = io::stated(alpha, "alpha", "a number", Value::as_f64)?.filter(|alpha| *alpha != 0.0);
        let theta = alpha.map_or(theta, |alpha| theta * alpha.powf(dim as f64 / (dim as f64 - 2.0)));
        let rotary = Rotary::default().with_dim(dim).with_style(style).with_theta(theta);
        let mut rotary = Rotary { heads: row.heads, ..rotary.with_reversed(row.reversed) };
        if let (Some(order), Some(section)) = (row.mrope, stated.and_then(|stated| stated.get("mrope_section"))) {
            let section = mrope_section(section)?;
            // A section of another size means nothing in text, whose three positions are equal.
            if section.iter().sum::<usize>() == dim / 2 {
                rotary = rotary.with_mrope_section(section).with_mrope_interleaved(order == Mrope::Alternating);
            }
        }
        if let Some(scaling) = stated.filter(|_| row.scales_windowed || !windowed) {
            if proportional {
                let pairs = (pairs.unwrap_or(1.0) * dim as f64 / 2.0) as usize;
                let factor = first_number(&["factor"], |key| scaling.get(key))?.unwrap_or(1.0);
                rotary = rotary.with_scaling(RotaryScaling::Proportional { pairs, factor });
            } else if alpha.is_none() || !["dynamic", "xdrope"].contains(&kind) {
                rotary = rotary.with_scaling(self.rotary_scaling(scaling, per_kind)?);
            }
        } else if let Some(factor) = own_factor? {
            let original_max_position_embeddings = self.number("max_trained_positions")?.unwrap_or(2048);
            rotary = rotary.with_scaling(RotaryScaling::Dynamic { factor, original_max_position_embeddings });
        }
        Ok(rotary)
    }

    /// What the configuration states about the rotation of this layer, and whether it does so per kind of layer.
    pub(super) fn stated_rotation(&self, row: &RotaryRow) -> Result<(Option<&Value>, bool)> {
        const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];
        let held = |key: &str| {
            let empty = |value: &Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            self.section.get(key).filter(|value| !empty(value))
        };
        let [new, old] = [held("rope_parameters"), held("rope_scaling")];
        if let (Some(new), Some(old)) = (new, old)
            && new != old
        {
            let allowed = "absent, or equal to `rope_parameters`";
            return Err(Error::config("rope_scaling", old, allowed));
        }
        let Some(new) = new else {
            if old.is_none() && row.required_in_config {
                let allowed = "stated: the family scales its rotation unless the configuration states another";
                return Err(Error::config("rope_parameters", "absent", allowed));
            }
            return Ok((old, false));
        };
        if !KINDS.iter().any(|kind| new.get(kind).is_some()) {
            if row.window_theta.is_some() && old.is_none() {
                let allowed = "a set for each kind of layer, `full_attention` and `sliding_attention`";
                return Err(Error::config("rope_parameters", new, allowed));
            }
            return Ok((Some(new), false));
        }
        let kind = KINDS[usize::from(self.has_window()?)];
        match new.get(kind).filter(|set| set.is_object()) {
            Some(set) => Ok((Some(set), true)),
            None => Err(Error::config("rope_parameters", new, format!("a set for `{kind}`"))),
        }
    }

    /// How many elements of a head are rotated, by the key `rotary_dim`, which may be written as a decimal number.
    fn rotary_dim(&self) -> Result<Option<usize>> {
        match self.section.get("rotary_dim") {
            Some(_) => whole_number(self.section.json, "rotary_dim"),
            None => self.number("rotary_dim"),
        }
    }

    /// How many elements of a head are rotated, by the key `projection_dim`.
    fn rotary_dim_of_projection(&self, least: usize) -> Result<Option<usize>> {
        const KEY: &str = "projection_dim";
        let width = self.number(KEY)?.ok_or_else(|| Error::config(KEY, "none", "a number: the rotation follows it"))?;
        Ok(width.checked_div(self.heads()?.saturating_mul(2)).map(|dim| dim.max(least)))
    }

    pub(super) fn rotary_scaling(&self, scaling: &Value, per_kind: bool) -> Result<RotaryScaling> {
        if scaling.get("llama_4_scaling_beta").is_some_and(|beta| !beta.is_null() && beta.as_f64() != Some(0.0))
            && self.family.steps.query_factor != QueryFactor::RopeBeta
        {
            let allowed = "absent: this family has no factor on its queries";
            return Err(Error::config("llama_4_scaling_beta", &scaling["llama_4_scaling_beta"], allowed));
        }
        let float = |key: &str| io::stated(scaling.get(key), key, "a number", Value::as_f64);
        let longest = || {
            let stated = self.number("max_position_embeddings")?;
            stated.ok_or_else(|| Error::config("max_position_embeddings", "none", "a length, from which to scale"))
        };
        // The model's own key comes first, unless there is a set per kind of layer.
        let original = || -> Result<usize> {
            const KEY: &str = "original_max_position_embeddings";
            let own = if per_kind { None } else { self.section.get(KEY) };
            if own.or(scaling.get(KEY)).is_some_and(Value::is_null) {
                return Err(Error::config(KEY, "null", "a length, or absent"));
            }
            let own = if per_kind { None } else { self.number(KEY)? };
            match own.or(number(scaling, KEY)?) {
                Some(original) => Ok(original),
                None => longest(),
            }
        };
        let factor = || -> Result<f64> {
            Ok(match float("factor")? {
                Some(factor) => factor,
                None => longest()? as f64 / original()? as f64,
            })
        };
        let found = |key: &str| scaling.get(key).map_or("absent".to_string(), Value::to_string);
        let required = |key: &'static str| {
            float(key)?.ok_or_else(|| Error::config(key, found(key), "a number, by which the rotation is scaled"))
        };
        let list = |key: &'static str| {
            let list = scaling.get(key).and_then(Value::as_array);
            let list = list.and_then(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
            list.ok_or_else(|| Error::config(key, found(key), "a list of numbers"))
        };
        let kind = rope_type(scaling)?;
        Ok(match if kind == "deepseek_yarn" && self.reads(kind) { "yarn" } else { kind } {
            // Rotation by time, row and column of images (M-RoPE) is the usual one where the three are equal: in text.
            "default" | "mrope" => RotaryScaling::None,
            "linear" => RotaryScaling::Linear { factor: required("factor")? },
            // Here the original length is `max_position_embeddings` itself.
            "dynamic" => {
                RotaryScaling::Dynamic { factor: required("factor")?, original_max_position_embeddings: longest()? }
            }
            "ntk" if self.reads("mixed_b") => {
                RotaryScaling::Ntk { factor: required("factor")?, mixed_b: float("mixed_b")? }
            }
            // Early files of Phi-3 call it so.
            "yarn" if scaling.get("short_factor").is_none() => {
                let by = |mscale: f64, factor: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
                // Null is the ratio of both lengths.
                let factor = if scaling.get("factor").is_some() { factor()? } else { required("factor")? };
                let mscale = match (float("mscale")?, float("mscale_all_dim")?) {
                    (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                        Some(by(mscale, factor) / by(all, factor))
                    }
                    _ => None,
                };
                // Also beside the sets of kinds of layers, not in them.
                let truncate = if per_kind { self.section.get("rope_parameters") } else { Some(scaling) };
                RotaryScaling::Yarn {
                    factor,
                    original_max_position_embeddings: original()?,
                    beta_fast: float("beta_fast")?.filter(|beta| *beta != 0.0).unwrap_or(32.0),
                    beta_slow: float("beta_slow")?.filter(|beta| *beta != 0.0).unwrap_or(1.0),
                    attention_factor: float("attention_factor")?.or(mscale),
                    truncate: truncate.and_then(|set| set.get("truncate")).is_none_or(is_true),
                }
            }
            "longrope" | "su" | "yarn" => {
                let original = original()?;
                let usual = || {
                    let factor = factor()?;
                    Ok::<_, Error>(if factor <= 1.0 {
                        1.0
                    } else {
                        (1.0 + factor.ln() / (original as f64).ln()).sqrt()
                    })
                };
                // PhiMoE has a factor for short texts and one for long ones, which are equal in published models. Its
                // model in transformers 5.23 rotates long texts by `short_factor` too.
                let (long, attention_factor) = match (float("short_mscale")?, float("long_mscale")?) {
                    (None, None) => match float("attention_factor")? {
                        Some(stated) => ("long_factor", stated),
                        None => ("long_factor", usual()?),
                    },
                    (Some(short), Some(long)) if short == long => ("short_factor", short),
                    (_, long) => {
                        return Err(Error::config("long_mscale", format!("{long:?}"), "that of `short_mscale`"));
                    }
                };
                RotaryScaling::LongRope {
                    short_factor: list("short_factor")?,
                    long_factor: list(long)?,
                    original_max_position_embeddings: original,
                    attention_factor,
                }
            }
            "llama3" => RotaryScaling::Llama3 {
                factor: required("factor")?,
                original_max_position_embeddings: original()?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
            },
            other => {
                let known = "default, linear, dynamic, yarn, longrope or llama3";
                return Err(Error::value("config key `rope_type`", other, known));
            }
        })
    }
}

/// The kind of rotation that a set of rotary parameters states: by `type`, if there is no `rope_type`.
pub(super) fn rope_type(set: &Value) -> Result<&str> {
    let key = if set.get("rope_type").is_some() { "rope_type" } else { "type" };
    match set.get(key) {
        None => Ok("default"),
        Some(Value::String(kind)) => Ok(kind),
        Some(other) => Err(Error::config(key, other, "a text, such as default or yarn")),
    }
}

/// The number at the first of `keys` for which `get` has one. Null is no number, and not absent. All keys are read.
pub(super) fn first_number<'a>(keys: &[&'static str], get: impl Fn(&str) -> Option<&'a Value>) -> Result<Option<f64>> {
    let stated: Vec<_> = keys.iter().filter_map(|key| Some((*key, get(key)?))).collect();
    match (stated.iter().find_map(|(_, value)| value.as_f64()), stated.first()) {
        (None, Some((key, other))) => Err(Error::config(key, other, "a number")),
        (number, _) => Ok(number),
    }
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

/// The pairs of each of the three positions of M-RoPE.
fn mrope_section(stated: &Value) -> Result<[usize; 3]> {
    let pairs = stated.as_array().into_iter().flatten().map(|pairs| Some(u16::try_from(pairs.as_u64()?).ok()?.into()));
    let section = pairs.collect::<Option<Vec<usize>>>().and_then(|pairs| pairs.try_into().ok());
    section.ok_or_else(|| Error::config("mrope_section", stated, "three numbers of pairs"))
}

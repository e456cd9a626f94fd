//! Rotary positions of a layer, from its family's row and the keys of its configuration.

use serde_json::Value;

use crate::ensure;
use crate::error::{Error, Result};
use crate::families::family::{Mrope, RotaryLayers, RotaryRow};
use crate::families::layer::Layer;
use crate::io::{self, whole_number};
use crate::position::{Rotary, RotaryScaling, RotaryStyle};

/// The rotation that the configuration states for a layer, or the family's row where it is silent.
struct RotaryKeys<'a> {
    layer: &'a Layer<'a>,
    row: &'a RotaryRow,
    /// The set of rotary parameters for the layer, if one is stated.
    set: Option<&'a Value>,
    /// Whether there is a set for each kind of layer.
    per_kind: bool,
    /// Whether the layer has a window, whose base and scaling have keys of their own.
    windowed: bool,
    /// The `rope_type`.
    kind: &'a str,
    /// The base of the wavelengths.
    theta: f64,
    /// The stated share of a head that is rotated, or of its pairs where the type is `proportional`.
    share: Option<f64>,
    /// The stated number of elements of a head that are rotated.
    dim: Option<usize>,
    interleaved: bool,
    /// HunYuan's factor on the base of a dynamic rotation, whatever the length.
    alpha: Option<f64>,
}

impl<'a> RotaryKeys<'a> {
    /// The keys of a layer with heads of `d` elements.
    fn read(layer: &'a Layer<'a>, row: &'a RotaryRow, d: usize) -> Result<Self> {
        layer.note_rotary_keys(row);
        let (set, per_kind) = layer.stated_rotation(row)?;
        let kind = set.map_or(Ok("default"), rope_type)?;
        let flag = |key: &'static str| io::stated(layer.own(key), key, "true or false", Value::as_bool);
        let has_alpha = layer.reads("alpha") && matches!(kind, "dynamic" | "xdrope");
        let alpha = set.filter(|_| has_alpha).and_then(|set| set.get("alpha"));
        let alpha = io::stated(alpha, "alpha", "a number", Value::as_f64)?;
        let mut keys = Self {
            layer,
            row,
            set,
            per_kind,
            windowed: layer.has_window()? && !per_kind,
            kind,
            theta: row.theta,
            share: None,
            dim: match row.least_of_projection {
                Some(least) => layer.rotary_dim_of_projection(least)?,
                None if row.rotary_dim => layer.rotary_dim()?,
                None => None,
            },
            interleaved: flag("rope_interleave")?.unwrap_or(row.interleaved)
                || flag("rotary_emb_interleaved")? == Some(true),
            alpha: alpha.filter(|alpha| *alpha != 0.0),
        };
        keys.theta = keys.read_theta()?;
        keys.share = keys.read_share()?.filter(|share| !layer.is_share_of_latent(*share, d));
        Ok(keys)
    }

    /// The number at the first of these keys that the set states, or the section beside it.
    fn number(&self, keys: &[&'static str]) -> Result<Option<f64>> {
        first_number(keys, |key| {
            let beside = match key {
                "rope_theta" | "partial_rotary_factor" => self.layer.section.get(key),
                "global_rope_theta" | "local_rope_theta" | "rope_local_base_freq" => {
                    self.row.window_theta.and_then(|_| self.layer.section.get(key))
                }
                _ => self.layer.own(key),
            };
            self.set.and_then(|set| set.get(key)).or(beside)
        })
    }

    fn read_theta(&self) -> Result<f64> {
        if let Some(theta) = self.layer.listed_theta()? {
            return Ok(theta);
        }
        // Earlier spellings have a key of its own for the base of layers with a window.
        if let Some(default) = self.row.window_theta.filter(|_| self.windowed) {
            return Ok(self.number(&["rope_local_base_freq", "local_rope_theta"])?.unwrap_or(default));
        }
        let theta = match self.row.layers {
            RotaryLayers::OwnTheta if let Some(theta) = self.layer.listed("layer_rope_theta") => theta.as_f64(),
            _ => self.number(&["rope_theta", "global_rope_theta", "rotary_emb_base"])?,
        };
        if theta.is_none() && self.row.required_in_config && self.layer.section.json.get("rope_parameters").is_none() {
            let allowed = "stated: the family's base is that of a file without `rope_scaling`";
            return Err(Error::config("rope_theta", "absent", allowed));
        }
        Ok(theta.unwrap_or(self.row.theta))
    }

    fn read_share(&self) -> Result<Option<f64>> {
        let share = self.number(&["partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"]);
        // A family that rotates whole heads does not read one that is null.
        if self.row.share.is_some() || self.is_proportional() { share } else { Ok(share.ok().flatten()) }
    }

    /// Whether a share is one of the pairs that turn, not of the head.
    fn is_proportional(&self) -> bool {
        self.kind == "proportional"
    }

    /// Checks that no key stands where the family's model does not read it.
    fn check(&self) -> Result<()> {
        let states = |key: &str| self.set.is_some_and(|set| set.get(key).is_some());
        // Nomic's model rotates whole heads; its own code has another key for it.
        if self.layer.reads("rotary_emb_fraction") && states("partial_rotary_factor") && self.share != Some(1.0) {
            let found = self.share.unwrap_or_default();
            return Err(Error::config("partial_rotary_factor", found, "1: the family rotates whole heads"));
        }
        // GPT-NeoX reads its own spellings there, `rotary_emb_base` and `rotary_pct`.
        let is_neox = self.layer.reads("rotary_pct");
        if is_neox
            && let Some(beside) = self.layer.float("rope_theta")?
            && !states("rope_theta")
            && self.layer.float("rotary_emb_base")?.unwrap_or(self.row.theta) != beside
        {
            let allowed = "a key of `rope_parameters`, or absent: this family reads `rotary_emb_base` beside them";
            return Err(Error::config("rope_theta", beside, allowed));
        }
        if (self.per_kind || is_neox)
            && let Some(beside) = self.layer.float("partial_rotary_factor")?
            && !states("partial_rotary_factor")
        {
            let allowed = "a key of each set of `rope_parameters`: families differ in whether they read it beside them";
            return Err(Error::config("partial_rotary_factor", beside, allowed));
        }
        if self.is_proportional() {
            let known = "default, linear, dynamic, yarn, longrope or llama3";
            let is_read = self.layer.reads_value("rope_type", self.kind);
            ensure!(is_read, Error::value("config key `rope_type`", self.kind, known));
        } else if let (None, Some(share)) = (self.row.share, self.share.filter(|share| *share != 1.0)) {
            return Err(Error::config("partial_rotary_factor", share, "1: the family rotates whole heads"));
        }
        Ok(())
    }

    /// The rotation of heads of `d` elements.
    fn into_rotary(self, d: usize) -> Result<Rotary> {
        let row = self.row;
        let share = row.share.map(|default| self.share.filter(|_| !self.is_proportional()).unwrap_or(default));
        let dim = self.dim.unwrap_or_else(|| share.map_or(d, |share| (share * d as f64) as usize));
        let theta = self.alpha.map_or(self.theta, |alpha| self.theta * alpha.powf(dim as f64 / (dim as f64 - 2.0)));
        let style = if self.interleaved { RotaryStyle::Interleaved } else { RotaryStyle::HalfSplit };
        let rotary = Rotary::default().with_dim(dim).with_style(style).with_theta(theta);
        let mut rotary = Rotary { heads: row.heads, ..rotary.with_reversed(row.reversed) };
        if let (Some(order), Some(section)) = (row.mrope, self.set.and_then(|set| set.get("mrope_section"))) {
            let section = mrope_section(section)?;
            // A section of another size means nothing in text, whose three positions are equal.
            if section.iter().sum::<usize>() == dim / 2 {
                rotary = rotary.with_mrope_section(section).with_mrope_interleaved(order == Mrope::Alternating);
            }
        }
        Ok(rotary.with_scaling(self.scaling(dim)?))
    }

    /// The scaling of a rotation of `dim` elements.
    fn scaling(&self, dim: usize) -> Result<RotaryScaling> {
        const LAYERS: &str = "rope_scaling_layers";
        let listed = io::stated(self.layer.own(LAYERS), LAYERS, "a list of layers", Value::as_array)?;
        if listed.is_some_and(|layers| !layers.contains(&Value::from(self.layer.index))) {
            return Ok(RotaryScaling::None);
        }
        let Some(set) = self.set.filter(|_| self.row.scales_windowed || !self.windowed) else {
            return self.layer.nomic_scaling();
        };
        match self.kind {
            "proportional" => {
                let pairs = (self.share.unwrap_or(1.0) * dim as f64 / 2.0) as usize;
                let factor = first_number(&["factor"], |key| set.get(key))?.unwrap_or(1.0);
                Ok(RotaryScaling::Proportional { pairs, factor })
            }
            _ if self.alpha.is_some() => Ok(RotaryScaling::None),
            _ => self.layer.rotary_scaling(set, self.per_kind),
        }
    }
}

impl Layer<'_> {
    pub(super) fn rotary(&self, row: &RotaryRow, d: usize) -> Result<Rotary> {
        let keys = RotaryKeys::read(self, row, d)?;
        keys.check()?;
        keys.into_rotary(d)
    }

    /// The base in the list of Ultrabert's files: for each kind of layer the last of those of its layers.
    fn listed_theta(&self) -> Result<Option<f64>> {
        const KEY: &str = "rope_theta";
        let Some(bases) = self.section.get(KEY).and_then(Value::as_array).filter(|_| self.reads("attention_windows"))
        else {
            return Ok(None);
        };
        let windowed = self.has_window()?;
        let alike = |index: &usize| Layer { index: *index, ..*self }.has_window().is_ok_and(|other| other == windowed);
        let theta = (0..bases.len()).rev().find(alike).and_then(|index| bases[index].as_f64());
        theta.map(Some).ok_or_else(|| Error::config(KEY, Value::from(bases.clone()), "a number for each layer"))
    }

    /// Counts the keys for a rotation as read, whichever of them decide.
    fn note_rotary_keys(&self, row: &RotaryRow) {
        self.section.note(&["rope_theta", "partial_rotary_factor"]);
        if row.window_theta.is_some() {
            self.section.note(&["global_rope_theta", "local_rope_theta", "rope_local_base_freq"]);
        }
        if row.rotary_dim {
            self.section.note(&["rotary_dim"]);
        }
    }

    /// The set of rotary parameters that the configuration states for this layer, and whether it has one for each kind
    /// of layer.
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
                let allowed = "stated: the rotation of a silent file is not the usual one";
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
        let has_base = |set: &&Value| row.window_theta.is_none() || set.get("rope_theta").is_some();
        match new.get(kind).filter(|set| set.is_object()).filter(has_base) {
            Some(set) => Ok((Some(set), true)),
            None => Err(Error::config("rope_parameters", new, format!("a set for `{kind}`, with its `rope_theta`"))),
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

/// The pairs of each of the three positions of M-RoPE.
fn mrope_section(stated: &Value) -> Result<[usize; 3]> {
    let pairs = stated.as_array().into_iter().flatten().map(|pairs| Some(u16::try_from(pairs.as_u64()?).ok()?.into()));
    let section = pairs.collect::<Option<Vec<usize>>>().and_then(|pairs| pairs.try_into().ok());
    section.ok_or_else(|| Error::config("mrope_section", stated, "three numbers of pairs"))
}

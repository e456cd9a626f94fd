//! Relative positions of layers: what scores gain by the distances of tokens.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::family::LayerPositions;
use crate::families::layer::Layer;
use crate::position::{
    Disentangled, GatedRelativeBias, Position, RelativeKey, RelativeKey2d, RelativeKeyValue, RelativeSinusoids,
};

impl Layer<'_> {
    pub(super) fn conformer(&self, default: &str, layout: &str) -> Result<Position> {
        let key = "position_embeddings_type";
        let stated = self.section.get(key);
        if layout != "conformer" || self.is_below("adapter") {
            return Ok(Position::None);
        }
        Ok(match stated.map_or(Some(default), Value::as_str) {
            Some("relative") => Position::RelativeSinusoids(RelativeSinusoids::default()),
            Some("relative_key") => {
                let side = |key: &str, default: usize| Ok::<_, Error>(self.number(key)?.unwrap_or(default));
                let left = side("left_max_position_embeddings", 64)?;
                Position::RelativeKey(RelativeKey::new(left, side("right_max_position_embeddings", 8)?))
            }
            None if stated.is_some_and(Value::is_null) => Position::None,
            _ => {
                let what = "positions inside attention, such as a rotation of the input of queries and keys";
                return Err(self.unsupported(key, stated.unwrap_or(&Value::Null), what));
            }
        })
    }

    pub(super) fn local_sinusoids(&self, right: &'static str, chunk: Option<&'static str>) -> Result<Position> {
        if let Some(stated) = self.number(right)?.filter(|stated| *stated > 0) {
            return Err(Error::config(right, stated, "0: this version has these windows on the left alone"));
        }
        if let Some(key) = chunk {
            // The sinusoids are those of half the width of what a chunk sees.
            let chunk = self.number(key)?.unwrap_or_default();
            let left = self.number(self.family.window.key)?.unwrap_or_default().saturating_sub(1);
            if chunk.saturating_add(left) / 2 != left {
                return Err(Error::config(key, chunk, format!("{left}: distances are counted from half of a context")));
            }
        }
        Ok(Position::RelativeSinusoids(RelativeSinusoids::default().with_in_halves(true)))
    }

    /// Of layers that see both ways, with every distance as it is and in one direction.
    pub(super) fn segment_sinusoids(&self) -> Result<Position> {
        let other = |key: &'static str, is_read: fn(&Value) -> bool, what: &str| match self.section.get(key) {
            Some(value) if !is_read(value) => Err(self.unsupported(key, value, what)),
            _ => Ok(()),
        };
        other("attn_type", |value| value == "bi", "causal attention")?;
        other("bi_data", |value| value == false, "distances in the other direction in half of a batch")?;
        other("clamp_len", |value| value.as_f64().is_some_and(|most| most <= 0.0), "a largest distance")?;
        Ok(Position::RelativeSinusoids(RelativeSinusoids::default().with_segments(true)))
    }

    pub(super) fn relative_key_blocks(&self, key: &'static str) -> Result<Position> {
        let required = |key: &'static str| {
            self.number(key)?.ok_or_else(|| Error::config(key, "none", "a number, which the positions depend on"))
        };
        let most = required(key)?;
        let keys = RelativeKey::new(most, most).with_reversed(true).with_block(required("context_size")?);
        Ok(Position::RelativeKey(keys))
    }

    pub(super) fn shared_relative_keys(&self, part: &str, key: &'static str) -> Result<Position> {
        let most = self.number(key)?;
        if !self.is_below(part) {
            return Ok(Position::None);
        }
        let most = most.filter(|most| *most > 0).ok_or_else(|| Error::config(key, "none", "a number of distances"))?;
        Ok(Position::RelativeKey(RelativeKey::new(most - 1, most).with_reversed(true)))
    }

    /// `rows`: those of the tables that the checkpoint holds.
    pub(super) fn relative_key_2d(&self, rows: Option<[usize; 2]>) -> Result<Position> {
        for key in ["use_rel_pos", "use_relative_position_embeddings"] {
            if let Some(stated) = self.flag(key)?.filter(|stated| *stated != rows.is_some()) {
                let found = if rows.is_some() { "holds such tables" } else { "holds no such tables" };
                return Err(Error::config(key, stated, format!("{}: the layer {found}", rows.is_some())));
            }
        }
        let Some(rows) = rows else { return Ok(Position::None) };
        match rows.into_iter().find(|rows| rows % 2 == 0) {
            Some(even) => Err(Error::value("the rows of a table of relative positions", even, "an odd number")),
            None => Ok(Position::RelativeKey2d(RelativeKey2d::new(rows.map(|rows| rows.div_ceil(2))))),
        }
    }

    /// Without a `window_size`, or with 0, there are no positions.
    pub(super) fn relative_key_value(&self) -> Result<Position> {
        Ok(match self.number("window_size")? {
            None | Some(0) => Position::None,
            Some(window) => Position::RelativeKeyValue(RelativeKeyValue::new(window)),
        })
    }

    pub(super) fn gated_bias(&self) -> Result<Position> {
        let buckets = self.number("num_buckets")?.unwrap_or(320);
        let farthest = self.number("max_bucket_distance")?.unwrap_or(800);
        Ok(Position::GatedRelativeBias(GatedRelativeBias::new(buckets, farthest)))
    }

    /// The scale of disentangled attention. It counts the terms that are stated even if relative attention is off.
    pub(super) fn disentangled_scale(&self, d: usize) -> Result<f64> {
        let [c2p, p2c] = self.terms()?;
        Ok(Disentangled::new(1).with_c2p(c2p).with_p2c(p2c).scale(d))
    }

    /// Whether content is compared with positions (`c2p`), and positions with content (`p2c`).
    fn terms(&self) -> Result<[bool; 2]> {
        let terms = match self.section.get("pos_att_type") {
            Some(Value::String(terms)) => terms.split('|').map(str::trim).collect(),
            Some(Value::Array(terms)) if terms.iter().all(Value::is_string) => {
                terms.iter().filter_map(Value::as_str).collect()
            }
            Some(other) if !other.is_null() => {
                return Err(Error::value("config key `pos_att_type`", other, "c2p and p2c"));
            }
            None if matches!(self.family.positions, LayerPositions::Disentangled { silent: true, .. }) => {
                vec!["p2c", "c2p"]
            }
            _ => Vec::new(),
        };
        match terms.iter().find(|term| !["c2p", "p2c", ""].contains(term)) {
            Some(other) => Err(Error::value("config key `pos_att_type`", other, "c2p and p2c")),
            None => Ok([terms.contains(&"c2p"), terms.contains(&"p2c")]),
        }
    }

    pub(super) fn disentangled(&self, v2: bool, silent: bool) -> Result<Position> {
        // A key that is `null` is stated.
        let is_set = |key: &str| match self.section.get(key) {
            None => Ok(silent),
            Some(_) => Ok::<_, Error>(self.flag(key)? == Some(true)),
        };
        if !is_set("relative_attention")? {
            return Ok(Position::None);
        }
        let [c2p, p2c] = self.terms()?;
        // Negative or 0 means none.
        let positive = |key: &str| match self.section.get(key).map(Value::as_i64) {
            None => Ok(self.family.default(key).map(|default| default as usize)),
            Some(Some(n)) if n > 0 => Ok(Some(n as usize)),
            Some(None) if !self.section.json[key].is_null() => {
                Err(Error::value(format!("config key `{key}`"), &self.section.json[key], "a whole number"))
            }
            _ => Ok(None),
        };
        let longest = self.number("max_position_embeddings")?.unwrap_or(512);
        let mut disentangled =
            Disentangled::new(positive("max_relative_positions")?.unwrap_or(longest)).with_c2p(c2p).with_p2c(p2c);
        if v2 {
            disentangled.position_buckets = positive("position_buckets")?;
            disentangled.share_att_key = is_set("share_att_key")?;
            let unstated = if silent { "layer_norm" } else { "none" };
            let norm = self.text("norm_rel_ebd")?.unwrap_or(unstated);
            if norm.split('|').any(|norm| norm.trim() == "layer_norm") {
                disentangled.norm_eps = Some(self.float("layer_norm_eps")?.unwrap_or(1e-7));
            }
        }
        Ok(Position::Disentangled(disentangled))
    }
}

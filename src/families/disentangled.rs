//! DeBERTa's disentangled attention, as its configuration states it.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::layer::Layer;
use crate::position::{Disentangled, Position};

impl Layer<'_> {
    /// The scale of disentangled attention. It counts the terms that are stated even if relative attention is off.
    pub(super) fn disentangled_scale(&self, d: usize) -> Result<f64> {
        let [c2p, p2c] = self.terms()?;
        Ok(Disentangled::new(1).with_c2p(c2p).with_p2c(p2c).scale(d))
    }

    /// Whether content is compared with positions (`c2p`), and positions with content (`p2c`).
    fn terms(&self) -> Result<[bool; 2]> {
        let terms = match self.section.get("pos_att_type") {
            Some(Value::String(terms)) => terms.split('|').map(str::trim).collect(),
            Some(Value::Array(terms)) => terms.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        match terms.iter().find(|term| !["c2p", "p2c", ""].contains(term)) {
            Some(other) => Err(Error::value("config key `pos_att_type`", other, "c2p and p2c")),
            None => Ok([terms.contains(&"c2p"), terms.contains(&"p2c")]),
        }
    }

    pub(super) fn disentangled(&self, v2: bool) -> Result<Position> {
        if self.flag("relative_attention") != Some(true) {
            return Ok(Position::None);
        }
        let [c2p, p2c] = self.terms()?;
        // Negative or 0 means none.
        let positive = |key: &str| match self.section.get(key).map(Value::as_i64) {
            Some(Some(n)) if n > 0 => Ok(Some(n as usize)),
            Some(None) if !self.section[key].is_null() => {
                Err(Error::value(format!("config key `{key}`"), &self.section[key], "a whole number"))
            }
            _ => Ok(None),
        };
        let longest = self.number("max_position_embeddings")?.unwrap_or(512);
        let mut disentangled =
            Disentangled::new(positive("max_relative_positions")?.unwrap_or(longest)).with_c2p(c2p).with_p2c(p2c);
        if v2 {
            disentangled.position_buckets = positive("position_buckets")?;
            disentangled.share_att_key = self.flag("share_att_key") == Some(true);
            let norm = self.section.get("norm_rel_ebd").and_then(Value::as_str).unwrap_or("none");
            if norm.split('|').any(|norm| norm.trim() == "layer_norm") {
                disentangled.norm_eps = Some(self.float("layer_norm_eps").unwrap_or(1e-7));
            }
        }
        Ok(Position::Disentangled(disentangled))
    }
}

//! Positions of patches, and distances that are compared: BEiT, Swin, EVA, DINOv3, DeBERTa.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::{Held, Layer};
use crate::position::{Disentangled, GridCoordinates, Position, RelativeGrid, RotaryGrid, RotaryStyle};

/// Families whose layers may have a table of biases by the offset between patches.
const TABLES: &[&str] = &["beit", "data2vec-vision", "swin"];
const DEBERTA: &[&str] = &["deberta", "deberta-v2"];

impl Layer<'_> {
    pub(crate) fn is_of_schemes(&self) -> bool {
        self.is(TABLES) || self.is(DEBERTA) || self.is(&["dinov3_vit"])
    }

    /// Whether widths and numbers of heads are those of stages (Swin).
    pub fn has_stages(&self) -> bool {
        self.is(&["swin"])
    }

    pub(crate) fn scheme(&self, held: &Held) -> Result<Position> {
        if self.is(DEBERTA) {
            return self.disentangled();
        }
        if self.is(&["dinov3_vit"]) {
            let registers = self.number("num_register_tokens")?.unwrap_or(0);
            let rotary = RotaryGrid::new(self.float("rope_theta").unwrap_or(100.0));
            let rotary =
                rotary.with_coordinates(GridCoordinates::Centred).with_prefix_tokens(registers.saturating_add(1));
            return Ok(Position::RotaryGrid(rotary));
        }
        if self.flag("use_rot_pos_emb") == Some(true) {
            return self.eva();
        }
        let shared = self.flag("use_shared_relative_position_bias") == Some(true);
        if held.table.is_some() || shared {
            return self.table(held.table);
        }
        Ok(Position::None)
    }

    /// BEiT's and Swin's: the size of the table tells the grid if that is a square.
    fn table(&self, rows: Option<usize>) -> Result<Position> {
        let fits = |grid: [usize; 2]| {
            let tables = [true, false].map(|class_token| RelativeGrid::new(grid, class_token));
            tables.into_iter().find(|table| rows.is_none_or(|rows| table.table_rows() == rows))
        };
        let square = |offsets: usize| {
            let side = offsets.isqrt();
            (side * side == offsets && side % 2 == 1).then_some([side.div_ceil(2); 2])
        };
        let stated = self.grid()?;
        let found = match (stated, rows) {
            (Some(grid), _) => fits(grid),
            (None, Some(rows)) => {
                [rows.checked_sub(3), Some(rows)].into_iter().flatten().find_map(square).and_then(fits)
            }
            (None, None) => None,
        };
        found.map(Position::RelativeGrid).ok_or_else(|| {
            let found = rows.map_or("absent".to_string(), |rows| format!("{rows} rows"));
            let expected = match stated {
                Some([height, width]) => format!("(2 · {height} - 1)(2 · {width} - 1) of them, or 3 more"),
                None => "those of a square, or the config keys `img_size` and `patch_size`".to_string(),
            };
            Error::value("the table of relative position biases", found, expected)
        })
    }

    /// timm's EVA, with the arguments of its constructor.
    fn eva(&self) -> Result<Position> {
        if self.flag("rope_mixed_mode") == Some(true) {
            return Err(Error::value("config key `rope_mixed_mode`", true, "false"));
        }
        let registers = self.number("num_reg_tokens")?.unwrap_or(0);
        let class = usize::from(self.flag("class_token") != Some(false));
        let mut rotary = RotaryGrid::new(self.float("rope_temperature").unwrap_or(10_000.0));
        rotary.prefix_tokens = registers.saturating_add(class);
        rotary.grid = self.grid()?;
        if self.flag("rope_rotate_half") != Some(true) {
            rotary.style = RotaryStyle::Interleaved;
        }
        if let Some([rows, columns]) = self.pair("ref_feat_shape")? {
            rotary.coordinates = GridCoordinates::Reference { rows, columns };
        }
        Ok(Position::RotaryGrid(rotary))
    }

    /// Rows and columns of patches.
    fn grid(&self) -> Result<Option<[usize; 2]>> {
        let pair = |keys: [&str; 2]| Ok::<_, Error>(self.pair(keys[0])?.or(self.pair(keys[1])?));
        if self.has_stages() {
            // A small image has smaller windows; the table tells.
            return Ok(None);
        }
        match (pair(["image_size", "img_size"])?, self.pair("patch_size")?) {
            (Some([height, width]), Some([down, right])) if down > 0 && right > 0 => {
                Ok(Some([height / down, width / right]))
            }
            _ => Ok(None),
        }
    }

    /// A number for both, or one each.
    fn pair(&self, key: &str) -> Result<Option<[usize; 2]>> {
        let expected = || Error::value(format!("config key `{key}`"), &self.section[key], "one or two whole numbers");
        let whole = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(expected);
        match self.section.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(pair)) => match pair.as_slice() {
                [a, b] => Ok(Some([whole(a)?, whole(b)?])),
                _ => Err(expected()),
            },
            Some(value) => whole(value).map(|n| Some([n, n])),
        }
    }

    /// DeBERTa's scale counts the terms that are named even where relative attention is off.
    pub(crate) fn disentangled_scale(&self, d: usize) -> Result<Option<f64>> {
        if !self.is(DEBERTA) {
            return Ok(None);
        }
        let [c2p, p2c] = self.terms()?;
        Ok(Some(Disentangled::new(1).with_c2p(c2p).with_p2c(p2c).scale(d)))
    }

    /// Whether queries, and whether keys, are compared with distances.
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

    fn disentangled(&self) -> Result<Position> {
        if self.flag("relative_attention") != Some(true) {
            return Ok(Position::None);
        }
        let [c2p, p2c] = self.terms()?;
        // Negative or 0 where there is none.
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
        if self.is(&["deberta-v2"]) {
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

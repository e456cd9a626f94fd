//! Positions of patches: BEiT's and Swin's tables of biases, rotary positions of EVA and DINOv3.

use serde_json::Value;

use crate::ensure;
use crate::error::{Error, Result};
use crate::families::family::{PatchRotaryRow, PatchWindows};
use crate::families::layer::Layer;
use crate::families::rotary::{first_number, rope_type};
use crate::position::{GridCoordinates, Position, RelativeBias2d, Rotary2d, Rotary3d, RotaryStyle};

const NUMBERS: &str = "a list of whole numbers";

impl Layer<'_> {
    /// Positions by what checkpoint and configuration hold. `rows`: those of the table of biases.
    pub(super) fn patch_positions(&self, rows: Option<usize>) -> Result<Position> {
        let (key, own) = ("use_shared_relative_position_bias", self.flag("use_relative_position_bias"));
        let shared = self.flag(key);
        if self.reads("use_rot_pos_emb") && self.flag("use_rot_pos_emb")? == Some(true) {
            return self.eva_rotary();
        }
        let is_shared = shared? == Some(true);
        if is_shared && own? == Some(true) {
            return Err(self.unsupported(key, &Value::Bool(true), "biases of all layers beside those of each"));
        }
        if is_shared || rows.is_some() {
            return self.bias_table(rows);
        }
        Ok(Position::None)
    }

    pub(super) fn dino_rotary(&self) -> Result<Position> {
        self.section.note(&["rope_parameters"]);
        let mut registers = self.number("num_register_tokens")?.unwrap_or(0);
        // The queries of EoMT come first in its last blocks.
        if let (Some(blocks), Some(layers)) = (self.number("num_blocks")?, self.number("num_hidden_layers")?)
            && self.index >= layers.saturating_sub(blocks)
        {
            registers = registers.saturating_add(self.number("num_queries")?.unwrap_or(0));
        }
        let rotary = Rotary2d::new(self.float("rope_theta")?.unwrap_or(100.0));
        let rotary = rotary.with_coordinates(GridCoordinates::Centered).with_prefix_tokens(registers.saturating_add(1));
        Ok(Position::Rotary2d(rotary))
    }

    pub(super) fn video_rotary(&self) -> Result<Position> {
        let side = self.number("crop_size")?.unwrap_or(256).checked_div(self.number("patch_size")?.unwrap_or(16));
        let side = side.ok_or_else(|| Error::config("patch_size", 0, "at least 1"))?;
        Ok(Position::Rotary3d(Rotary3d::new([side; 2])))
    }

    pub(super) fn patch_rotary(&self, row: &PatchRotaryRow) -> Result<Position> {
        let stated = self.section.get("rope_parameters").filter(|stated| !stated.is_null());
        let theta = first_number(&["rope_theta"], |key| {
            let beside = self.section.get(key);
            stated.and_then(|set| set.get(key)).or(beside)
        })?;
        let kind = stated.map_or(Ok("default"), rope_type)?;
        ensure!(
            stated.is_none() || theta.is_some(),
            Error::config("rope_theta", "absent", "a number in `rope_parameters`")
        );
        ensure!(["axial", "default"].contains(&kind), Error::config("rope_type", kind, "axial"));
        let mut rotary = Rotary2d::new(theta.unwrap_or(10_000.0))
            .with_prefix_tokens(row.prefix_tokens)
            .with_frequencies(row.frequencies);
        if let Some((key, default)) = row.block {
            rotary = rotary.with_block(self.number(key)?.unwrap_or(default));
        }
        rotary = rotary.with_style(row.style).with_columns_first(row.columns_first).with_first(row.first);
        rotary = rotary.with_halves(row.halves);
        rotary = rotary.with_suffix_tokens(row.suffix_tokens);
        Ok(Position::Rotary2d(self.in_windows(rotary, row.windows)?))
    }

    /// `rotary` of patches that come in windows.
    fn in_windows(&self, rotary: Rotary2d, windows: PatchWindows) -> Result<Rotary2d> {
        let required = |key: &'static str| {
            let found = self.number(key)?.filter(|size| *size > 0);
            found.ok_or_else(|| Error::config(key, "absent", "the size of the windows of patches"))
        };
        let listed = |key: &'static str| {
            let list = self.numbers(key, "the list of layers without windows");
            list.map(|list| list.contains(&self.index))
        };
        Ok(match windows {
            PatchWindows::None => rotary,
            PatchWindows::Ordered => {
                let side = required("window_size")? / rotary.block.max(1) / required("patch_size")?;
                let full = listed("fullatt_block_indexes")?;
                rotary.with_window(side).with_within_window(!full)
            }
            PatchWindows::Rows if listed("global_attn_indexes")? => {
                let side = required("window_size")?;
                match self.grid()? {
                    Some([rows, columns]) if rows != columns => {
                        let expected = "a square: rows and columns of others are not scaled alike";
                        return Err(Error::value("the grid of patches", format!("{rows} x {columns}"), expected));
                    }
                    _ => rotary.with_coordinates(GridCoordinates::Reference { rows: side, columns: side }),
                }
            }
            PatchWindows::Rows => rotary,
        })
    }

    /// The table of BEiT and Swin. Its size gives the grid if the configuration does not and the grid is a square.
    fn bias_table(&self, rows: Option<usize>) -> Result<Position> {
        let fits = |grid: [usize; 2]| {
            let tables = [true, false].map(|class_token| RelativeBias2d::new(grid, class_token));
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
        found.map(Position::RelativeBias2d).ok_or_else(|| {
            let found = rows.map_or("absent".to_string(), |rows| format!("{rows} rows"));
            let expected = match stated {
                Some([height, width]) => format!("(2 · {height} - 1)(2 · {width} - 1) of them, or 3 more"),
                None => "those of a square, or the config keys `img_size` and `patch_size`".to_string(),
            };
            Error::value("the table of relative position biases", found, expected)
        })
    }

    /// The list of whole numbers at a key; `expected` says what it lists.
    fn numbers(&self, key: &'static str, expected: &str) -> Result<Vec<usize>> {
        let list = self.section.get(key).and_then(Value::as_array);
        let numbers = list.map(|list| list.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect());
        let found = || self.section.get(key).map_or("absent".to_string(), Value::to_string);
        numbers.flatten().ok_or_else(|| Error::config(key, found(), expected))
    }

    /// The stage of the block that the layer is in, and whether it is the first block of it.
    fn stage(&self) -> Result<(usize, bool)> {
        let mut first = 0usize;
        for (stage, blocks) in self.numbers("blocks_per_stage", NUMBERS)?.into_iter().enumerate() {
            let next = first.saturating_add(blocks);
            if self.index < next {
                return Ok((stage, self.index == first));
            }
            first = next;
        }
        Err(Error::config("blocks_per_stage", first, format!("more than {} blocks in all", self.index)))
    }

    pub(super) fn heads_of_stage(&self) -> Result<usize> {
        const KEY: &str = "num_attention_heads_per_stage";
        let (stage, heads) = (self.stage()?.0, self.numbers(KEY, NUMBERS)?);
        let absent = || Error::config(KEY, format!("{heads:?}"), format!("a number for stage {stage}"));
        heads.get(stage).copied().ok_or_else(absent)
    }

    /// The side of the blocks of patches that make one query.
    pub(super) fn query_pool(&self) -> Result<Option<usize>> {
        let (stage, is_first) = self.stage()?;
        let pooled = self.number("num_query_pool_stages")?.unwrap_or(3);
        match self.pair("query_stride")?.unwrap_or([2, 2]) {
            [rows, columns] if rows == columns => Ok(Some(rows).filter(|_| is_first && (1..=pooled).contains(&stage))),
            other => Err(Error::config("query_stride", format!("{other:?}"), "the same for rows and columns")),
        }
    }

    /// The biases of a window of Swin v2.
    pub(super) fn computed_bias(&self, shrinks: bool) -> Result<Position> {
        let absent = |key: &'static str| Error::config(key, "absent", "a number, or one for rows and for columns");
        let pair = |key: &'static str| self.pair(key)?.ok_or_else(|| absent(key));
        let (image, patch, window) = (pair("image_size")?, pair("patch_size")?, pair("window_size")?);
        // Windows are squares of at most the rows of the stage.
        let rows = image[0].checked_div(patch[0]).unwrap_or(0).checked_shr(if shrinks { self.index as u32 } else { 0 });
        let side = rows.unwrap_or(0).min(window[0]);
        let trained = self.section.get("pretrained_window_sizes").and_then(|sizes| sizes.get(self.index));
        let trained = trained.and_then(Value::as_u64).filter(|side| *side > 0).map_or(side, |side| side as usize);
        Ok(Position::RelativeBias2d(RelativeBias2d::new([side; 2], false).with_computed([trained.max(2); 2])))
    }

    /// Rotary positions of timm's EVA, whose keys are the arguments of its constructor.
    fn eva_rotary(&self) -> Result<Position> {
        if self.flag("rope_mixed_mode")? == Some(true) {
            return Err(Error::value("config key `rope_mixed_mode`", true, "false"));
        }
        let registers = self.number("num_reg_tokens")?.unwrap_or(0);
        let class = usize::from(self.flag("class_token")? != Some(false));
        let mut rotary = Rotary2d::new(self.float("rope_temperature")?.unwrap_or(10_000.0));
        rotary.prefix_tokens = registers.saturating_add(class);
        rotary.grid = self.grid()?;
        if self.flag("rope_rotate_half")? != Some(true) {
            rotary.style = RotaryStyle::Interleaved;
        }
        if let Some([rows, columns]) = self.pair("ref_feat_shape")? {
            rotary.coordinates = GridCoordinates::Reference { rows, columns };
        }
        Ok(Position::Rotary2d(rotary))
    }

    /// Rows and columns of patches, if the configuration states image and patch sizes.
    fn grid(&self) -> Result<Option<[usize; 2]>> {
        let pair = |keys: [&str; 2]| Ok::<_, Error>(self.pair(keys[0])?.or(self.pair(keys[1])?));
        if self.family.head_sizes.is_per_stage() {
            // The grid is that of a window, which is smaller than stated for a small image; the table has its size.
            return Ok(None);
        }
        match (pair(["image_size", "img_size"])?, self.pair("patch_size")?) {
            (Some([height, width]), Some([down, right])) if down > 0 && right > 0 => {
                Ok(Some([height / down, width / right]))
            }
            _ => Ok(None),
        }
    }

    /// The value of a key that is one number for both dimensions or a list of two.
    fn pair(&self, key: &str) -> Result<Option<[usize; 2]>> {
        let expected =
            || Error::value(format!("config key `{key}`"), &self.section.json[key], "one or two whole numbers");
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
}

//! Which tokens a layer's queries see: causal or both ways, and within a sliding window.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::family::{Causal, LayerPositions, RotaryLayers, Sides, Window, WindowLayers};
use crate::families::layer::Layer;
use crate::mask::AttentionMask;

/// Values of `layer_types` for layers whose visible tokens the mask of a window or of none describes.
const ATTENTION_KINDS: [&str; 4] = ["full_attention", "sliding_attention", "attention", "hybrid"];
/// The value of `layer_types` for layers that attend inside chunks.
const CHUNKED: &str = "chunked_attention";
/// The key for how many layers at the front are dense, and the key for the size of their groups (Cohere 2 MoE).
const FIRST_DENSE: &str = "first_k_dense_replace";
const DENSE_PATTERN: &str = "prefix_dense_sliding_window_pattern";
/// The key for the width of each layer's window, null in layers without one (Ultrabert).
const WINDOWS: &str = "attention_windows";
/// Values of `layer_types` for layers that are not attention.
const OTHER_KINDS: [&str; 7] = ["linear_attention", "mamba", "conv", "recurrent", "moe", "mlp", "rnn"];

impl<'a> Layer<'a> {
    /// The entry for this layer at a key that is a list with one for each layer.
    pub(super) fn listed(&self, key: &str) -> Option<&'a Value> {
        self.section.get(key).and_then(|layers| layers.get(self.index))
    }

    /// Checks that keys with an entry per layer are lists of the right kind, with one for this layer.
    pub(super) fn check_lists(&self) -> Result<()> {
        const TEXTS: (&str, fn(&Value) -> bool) = ("a text for each layer", Value::is_string);
        let marks = |mark: &Value| mark.is_u64() || mark.is_boolean();
        let rotated = |rules: &[RotaryLayers]| match self.family.positions {
            LayerPositions::Rotary(row) => rules.contains(&row.layers),
            _ => false,
        };
        let own_thetas = rotated(&[RotaryLayers::OwnTheta, RotaryLayers::NonZeroTheta]);
        let lists = [
            ("layer_types", TEXTS, true),
            ("attention_layers", TEXTS, self.family.window.layers == WindowLayers::ListedLocal),
            (
                WINDOWS,
                ("a width or null for each layer", |width| width.is_u64() || width.is_null()),
                self.reads(WINDOWS),
            ),
            ("layer_rope_theta", ("a number for each layer", Value::is_number as _), own_thetas),
            ("no_rope_layers", ("0 or 1 for each layer", marks as _), rotated(&[RotaryLayers::NoRopeLayers])),
        ];
        for (key, (kind, fits), _) in lists.into_iter().filter(|(.., is_read)| *is_read) {
            let Some(stated) = self.section.get(key).filter(|stated| !stated.is_null()) else { continue };
            let wrong = |found: String| Error::value(format!("config key `{key}`"), found, kind);
            let list = stated.as_array().ok_or_else(|| wrong(stated.to_string()))?;
            if let Some(other) = list.iter().find(|entry| !fits(entry)) {
                return Err(wrong(format!("a list with {other}")));
            }
            // Llama 4 files have an empty list for none.
            if !list.is_empty() && list.len() <= self.index {
                return Err(wrong(format!("a list of {}, without one for layer {}", list.len(), self.index)));
            }
        }
        self.check_layer_types()
    }

    /// Checks that `layer_types` has an entry for each layer; transformers refuses another list, too.
    fn check_layer_types(&self) -> Result<()> {
        const KEY: &str = "num_hidden_layers";
        let Some(layers) = self.section.get("layer_types").and_then(Value::as_array).map(Vec::len) else {
            return Ok(());
        };
        let expected = self.number(KEY)?.unwrap_or(layers.max(self.index + 1));
        if layers != expected {
            let found = format!("a list of {layers}");
            let expected = format!("{expected} entries, one for each layer (`{KEY}`)");
            return Err(Error::value("config key `layer_types`", found, expected));
        }
        Ok(())
    }

    /// The layer's entry of `layer_types`, which must be a kind of attention that this version runs.
    fn kind(&self) -> Result<Option<&'a str>> {
        let Some(kind) = self.listed("layer_types").and_then(Value::as_str) else { return Ok(None) };
        let counts = !matches!(
            self.family.window.layers,
            WindowLayers::None | WindowLayers::Chunks | WindowLayers::All { .. } | WindowLayers::ListedLocal
        );
        let has_chunks = self.family.window.layers == WindowLayers::Chunks;
        let unknown = kind == CHUNKED && !has_chunks || counts && !ATTENTION_KINDS.contains(&kind);
        if OTHER_KINDS.contains(&kind) || unknown {
            let expected = format!("one of {}", ATTENTION_KINDS.join(", "));
            return Err(Error::value(format!("`layer_types` of layer {}", self.index), kind, expected));
        }
        Ok(Some(kind).filter(|_| counts))
    }

    /// Whether the layer has a sliding window.
    pub(super) fn has_window(&self) -> Result<bool> {
        if self.family.window.layers != WindowLayers::None {
            // Layers without a window read its width, too.
            self.section.note(&[self.family.window.key]);
        }
        if self.family.window.layers == WindowLayers::AllButLastOf6AndLast
            && self.number("num_hidden_layers")? == Some(self.index + 1)
        {
            return Ok(false);
        }
        if let Some(kind) = self.kind()? {
            return Ok(kind == "sliding_attention");
        }
        if let Some(width) = self.listed(WINDOWS).filter(|_| self.reads(WINDOWS)) {
            return Ok(width.as_u64().is_some_and(|width| width > 0));
        }
        let group = |key: Option<&'static str>, default: usize| -> Result<usize> {
            key.map_or(Ok(None), |key| self.group_size(key)).map(|stated| stated.unwrap_or(default))
        };
        let switched = || Ok::<_, Error>(self.flag("use_sliding_window")? == Some(true));
        let first = || match self.number("max_window_layers")? {
            None if self.section.get("max_window_layers").is_some() => {
                Err(Error::config("max_window_layers", "null", "the number of a layer, or absent"))
            }
            first => Ok(first.unwrap_or(usize::MAX)),
        };
        Ok(match self.family.window.layers {
            WindowLayers::None | WindowLayers::Chunks | WindowLayers::Listed => false,
            WindowLayers::Below(part) => self.is_below(part),
            WindowLayers::ListedLocal => self.listed("attention_layers").and_then(Value::as_str) == Some("local"),
            WindowLayers::All { switch } => (!switch || switched()?) && self.stated_width()?.is_some(),
            WindowLayers::AllButLastOf { key, default } => match self.first_dense()? {
                dense if self.index < dense => !(self.index + 1).is_multiple_of(group(Some(DENSE_PATTERN), 1)?),
                dense => !(self.index - dense + 1).is_multiple_of(group(key, default)?),
            },
            WindowLayers::AllButLastOf6AndLast => {
                let key = Some("sliding_window_pattern").filter(|key| self.reads(key));
                !(self.index + 1).is_multiple_of(group(key, 6)?)
            }
            WindowLayers::AllButFirstAndLastOf6 => self.index > 0 && !(self.index + 1).is_multiple_of(6),
            WindowLayers::AllButFirstOf { key, default } => !self.index.is_multiple_of(group(key, default)?),
            WindowLayers::FromLayerNumber { switch } => {
                let on = if switch { switched()? } else { self.number(self.family.window.key)?.is_some() };
                on && self.index >= first()?
            }
            WindowLayers::SecondBelowLayerNumber => {
                switched()? && self.index.is_multiple_of(2) && self.index < first()?
            }
            WindowLayers::NotRotated => {
                switched()?
                    && self.number(self.family.window.key)?.is_some()
                    && !self.is_rotated(RotaryLayers::NoRopeLayers)?
            }
        })
    }

    /// How many layers at the front are dense and have a pattern of windows of their own, if the family has such.
    fn first_dense(&self) -> Result<usize> {
        Ok(if self.reads(FIRST_DENSE) { self.number(FIRST_DENSE)?.unwrap_or(0) } else { 0 })
    }

    /// The number of layers of a group, if it is stated or the family has a default.
    fn group_size(&self, key: &'static str) -> Result<Option<usize>> {
        match (self.section.get(key), self.number(key)?) {
            (_, Some(size)) if size > 0 => Ok(Some(size)),
            (None, _) => Ok(None),
            (Some(other), _) => Err(Error::config(key, other, "a number of layers from 1, or absent")),
        }
    }

    /// Whether this layer applies rotary embedding, given the family's rule `layers`.
    pub(super) fn is_rotated(&self, layers: RotaryLayers) -> Result<bool> {
        Ok(match layers {
            RotaryLayers::All | RotaryLayers::UnlessAlibi => true,
            RotaryLayers::Windowed => self.has_window()?,
            RotaryLayers::WindowedOrDense => {
                let none = self.group_size(DENSE_PATTERN)?.unwrap_or(1) == 1;
                let dense = match self.listed("mlp_layer_types") {
                    Some(kind) => kind == "dense",
                    None => self.index < self.first_dense()?,
                };
                self.has_window()? || dense && none
            }
            RotaryLayers::WindowedIfAny => self.has_window()? || self.number(self.family.window.key)?.is_none(),
            RotaryLayers::NoRopeLayers => {
                let interval = self.group_size("no_rope_layer_interval");
                match self.listed("no_rope_layers") {
                    Some(mark) => mark.as_u64() != Some(0) && mark.as_bool() != Some(false),
                    None => interval?.is_none_or(|interval| !(self.index + 1).is_multiple_of(interval)),
                }
            }
            RotaryLayers::OwnTheta | RotaryLayers::NonZeroTheta => {
                self.listed("layer_rope_theta").and_then(Value::as_f64).is_none_or(|theta| theta != 0.0)
            }
            RotaryLayers::IfStated(value) => self.text("position_embedding_type")? == Some(value),
            RotaryLayers::None => false,
            RotaryLayers::IfSet(key) => self.flag(key)?.unwrap_or(self.family.default(key).is_some()),
            RotaryLayers::IfKindStated => {
                let kind = ["full_attention", "sliding_attention"][usize::from(self.has_window()?)];
                self.section.get("rope_parameters").and_then(|sets| sets.get(kind)).is_some_and(Value::is_object)
            }
            RotaryLayers::IfTheta => {
                let theta = |section: &Value| section.get("rope_theta").is_some_and(Value::is_number);
                theta(self.section.json) || self.section.get("rope_parameters").is_some_and(theta)
            }
        })
    }

    /// Whether a Gemma sees both ways.
    fn is_bidirectional(&self) -> Result<bool> {
        const KEY: &str = "use_bidirectional_attention";
        let by_name = match self.family.causal {
            Causal::UnlessBidirectional => false,
            Causal::UnlessAllBidirectional => true,
            _ => return Ok(false),
        };
        match self.section.get(KEY) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(bidirectional)) if !by_name => Ok(*bidirectional),
            Some(Value::String(tokens)) if by_name && ["vision", "all"].contains(&tokens.as_str()) => {
                Ok(tokens == "all")
            }
            Some(other) => Err(Error::config(KEY, other, if by_name { "all or vision" } else { "true or false" })),
        }
    }

    /// The mask that the model always applies in this layer.
    pub fn mask(&self) -> Result<AttentionMask> {
        // Cross-attention has none, and reads the keys as the other layers do.
        let mask = self.self_attention_mask();
        if self.cross { Ok(AttentionMask::full()) } else { mask }
    }

    fn self_attention_mask(&self) -> Result<AttentionMask> {
        // Keys are read before the first branch and the first error.
        let is_decoder = if self.family.causal == Causal::Never { Ok(None) } else { self.flag("is_decoder") };
        let bidirectional = self.is_bidirectional();
        let chunks = self.chunk_size();
        let window = self.family.window;
        let width = if self.has_window()? { Some(self.window_width()?) } else { None };
        let decoder = match self.family.causal {
            Causal::Never => false,
            Causal::Always | Causal::Fixed | Causal::UnlessBidirectional | Causal::UnlessAllBidirectional => true,
            Causal::IfDecoder => is_decoder? == Some(true),
            Causal::IfSet(key) => self.flag(key)? == Some(true),
            Causal::Decoder if !["encoder", "decoder"].iter().any(|part| self.prefix.contains(part)) => {
                is_decoder? == Some(true)
            }
            Causal::Decoder | Causal::FixedDecoder => self.prefix.contains("decoder"),
            Causal::Below(component) => self.is_below(component),
            Causal::TextTower => {
                let is_text = self.section.get("vocab_size").is_some() && !self.prefix.contains("vision");
                self.prefix.contains("text_model") || is_text
            }
        };
        // transformers: `create_causal_mask` falls back to a mask for both directions.
        let fixed = matches!(self.family.causal, Causal::Fixed | Causal::FixedDecoder | Causal::IfSet(_));
        // There null is false.
        let is_causal = self.flag("is_causal")?.unwrap_or(self.section.get("is_causal").is_none());
        let switched_off = !fixed && !is_causal;
        let bidirectional = bidirectional?;
        if switched_off && bidirectional && width.is_some() {
            let allowed = "absent beside `use_bidirectional_attention`";
            return Err(Error::config("is_causal", false, allowed));
        }
        let causal = decoder && !switched_off && !bidirectional;
        if let Some(chunks) = chunks? {
            let mask = AttentionMask::chunks(chunks);
            // The mask of chunks is causal whatever `is_causal` states.
            return Ok(if decoder { AttentionMask::causal().and(mask) } else { mask });
        }
        let Some(width) = width else {
            return Ok(if causal { AttentionMask::causal() } else { AttentionMask::full() });
        };
        if !causal {
            let sides = if bidirectional { Sides::Both } else { window.sides };
            let [before, after] = match sides {
                Sides::Each | Sides::OneMore => [width; 2],
                Sides::Both => [width / 2; 2],
                Sides::Around => [width.saturating_sub(1) / 2, width / 2],
            };
            return Ok(AttentionMask::window(Some(before), Some(after)));
        }
        // A token sees itself, and the tokens before it within the width; within half of one that is of both sides.
        let width = width.saturating_sub(usize::from(window.sides == Sides::OneMore));
        let side = if window.sides == Sides::Both { width / 2 } else { width };
        match side.checked_sub(1) {
            Some(before) => Ok(AttentionMask::window(Some(before), Some(0))),
            None => Err(Error::config(window.key, width, "a width that leaves a token itself to see")),
        }
    }

    /// The size of the chunks inside which the layer attends, if it does.
    fn chunk_size(&self) -> Result<Option<usize>> {
        let Window { layers: WindowLayers::Chunks, key, .. } = self.family.window else { return Ok(None) };
        let size = self.number(key)?.filter(|size| *size > 0);
        let chunked = match self.listed("layer_types").and_then(Value::as_str) {
            Some(kind) => kind == CHUNKED,
            None => self.is_rotated(RotaryLayers::NoRopeLayers)?,
        };
        match size {
            _ if !chunked => Ok(None),
            Some(size) => Ok(Some(size)),
            None => Err(Error::config(key, "none", format!("a size: layer {} attends inside chunks", self.index))),
        }
    }

    /// The number at the key for windows: one for all layers, or a list with one for each (Longformer).
    fn stated_width(&self) -> Result<Option<usize>> {
        let key = self.family.window.key;
        let Some(widths) = self.section.get(key).and_then(Value::as_array) else { return self.number(key) };
        let width = widths.get(self.index).and_then(Value::as_u64).and_then(|width| usize::try_from(width).ok());
        let wrong = || Error::config(key, &self.section.json[key], format!("a number for layer {}", self.index));
        width.ok_or_else(wrong).map(Some)
    }

    /// The width of the layer's window.
    fn window_width(&self) -> Result<usize> {
        let key = self.family.window.key;
        let own = |key: &'static str| if self.reads(key) { self.number(key) } else { Ok(None) };
        let mut widths = self.own(WINDOWS).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64);
        let listed = widths.find(|width| *width > 0);
        let width = match (own("sliding_window_size")?, own("sliding_window")?, listed) {
            // MiMo-V2-Flash's own key counts the tokens before a token.
            (Some(before), ..) => Some(before.saturating_add(1)),
            // That of ModernBERT's decoder counts those of one side.
            (_, Some(side), _) => Some(side.saturating_mul(2)),
            // The first width in the list is that of all layers with a window.
            (.., Some(first)) => usize::try_from(first).ok(),
            _ => self.stated_width()?,
        };
        width.ok_or_else(|| Error::config(key, "none", format!("a width: layer {} has a window", self.index)))
    }
}

//! Lists the attention layers of a checkpoint, from its headers alone.

use candle_core::{DType, Device};
use safetensors::Dtype;
use serde_json::Value;

use crate::checkpoint::config_json::{HfAttentionConfig, ModelConfig, config_from_json};
use crate::checkpoint::detect::{attention_prefixes, detect, in_natural_order};
use crate::checkpoint::gguf::blocks;
use crate::checkpoint::open::{Checkpoint, Stored};
use crate::checkpoint::shared_tables::read_with_shared_tables;
use crate::checkpoint::source::{AnySource, WeightSource};
use crate::error::Result;
use crate::families::layout::BESIDE;
use crate::families::layouts::LAYOUTS;

/// The most layers that a layer may be inside of, by its prefix. Each lists the tensors of those inside it, so that
/// thousands, one inside the other, would take time by the square of their number. Published models have at most 1.
const MAX_NESTING: usize = 16;

/// An attention layer of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct LayerInfo {
    /// The prefix of its tensors.
    pub prefix: String,
    /// The name of its [`Layout`](crate::checkpoint::Layout).
    pub layout: &'static str,
    /// The families that publish this layout.
    pub families: &'static str,
    /// Number of query heads; `None` without a `config.json`.
    pub num_attention_heads: Option<usize>,
    /// Number of key-value heads; `None` without a `config.json`.
    pub num_key_value_heads: Option<usize>,
    /// Dimension per head; `None` without a `config.json`.
    pub head_dim: Option<usize>,
    /// Position scheme of the layer; `None` without a `config.json`.
    pub position: Option<String>,
    /// The layer's built-in mask; `None` without a `config.json`.
    pub mask: Option<String>,
    /// The dtypes of its stored weights, and the formats of quantized ones with their sizes, separated by commas.
    pub dtype: String,
    /// Number of its stored parameters.
    pub parameters: usize,
    /// Why the layer cannot be loaded as its model runs it.
    pub problem: Option<String>,
    /// What the layer leaves to its caller
    /// ([`ModelAttention::note`](crate::checkpoint::ModelAttention::note)); `None` for almost all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

/// The most layers times the size of the configuration, which is counted in values and bytes of text: each layer looks
/// through the configuration. A vision model with the names of 22,000 classes has 48 million, most models have less
/// than one.
const MAX_LAYERS_TIMES_CONFIG: usize = 1 << 28;

impl Checkpoint {
    /// Every attention layer, in the order of their prefixes. `config` is the model's `config.json`, as a
    /// [`ModelConfig`]. Reads no tensor data.
    ///
    /// A layer inside more than 16 others, by its prefix, is listed with that as its problem. So are all layers if
    /// their number times the size of the configuration, in values and bytes of text, is more than 268,435,456.
    pub fn attention_layers(&self, config: Option<ModelConfig>) -> Vec<LayerInfo> {
        let prefixes = attention_prefixes(&self.names().collect::<Vec<_>>());
        let size = config.map_or(0, |config| size_of_json(config.json));
        let too_large = (size.saturating_mul(prefixes.len()) > MAX_LAYERS_TIMES_CONFIG).then(|| {
            let layers = prefixes.len();
            format!(
                "{layers} layers with a configuration of size {size} are more than {MAX_LAYERS_TIMES_CONFIG} together"
            )
        });
        let inside = |prefix: &str| {
            let outer = prefix.match_indices('.').map(|(end, _)| &prefix[..end]).chain([""]);
            outer.filter(|outer| *outer != prefix && prefixes.contains_key(*outer)).take(MAX_NESTING + 1).count()
        };
        let layers = prefixes.iter().map(|(prefix, &row)| {
            let nested = || format!("the layer is inside more than {MAX_NESTING} others");
            match too_large.clone().or_else(|| (inside(prefix) > MAX_NESTING).then(nested)) {
                None => self.inspect(prefix, row, config),
                problem => LayerInfo { problem, ..LayerInfo::new(prefix, row) },
            }
        });
        let mut layers: Vec<LayerInfo> = layers.collect();
        layers.sort_by(|a, b| in_natural_order(&a.prefix, &b.prefix));
        layers
    }

    fn inspect(&self, prefix: &str, row: usize, model: Option<ModelConfig>) -> LayerInfo {
        let source = self.at(prefix, DType::F32, &Device::Cpu);
        let mut info = LayerInfo::new(prefix, row);
        let mut dtypes: Vec<String> = Vec::new();
        let beside = LAYOUTS[row].input_weights(|name| name.starts_with(BESIDE)).into_iter();
        let beside = beside.flat_map(|name| [name.to_string(), name.replace(".weight", ".bias")]);
        for name in source.names().into_iter().flatten().chain(beside) {
            // Norms stored next to BERT's attention are not part of it.
            if name.split('.').any(|part| part == "LayerNorm") {
                continue;
            }
            let full_name = source.full_name(&name);
            if let Ok(entry) = self.entry(&full_name) {
                info.parameters += entry.shape.iter().product::<usize>();
            }
            let dtype = match self.lookup(&full_name) {
                Ok(Stored::Plain(_, entry)) => Some(entry.kind()),
                Ok(Stored::Quantized(weight)) => Some(weight.describe()),
                Err(_) => None,
            };
            if let Some(dtype) = dtype
                && !dtypes.contains(&dtype)
            {
                dtypes.push(dtype);
            }
        }
        info.dtype = dtypes.join(", ");
        match detect(&source) {
            Ok(layout) => {
                (info.layout, info.families) = (layout.name, layout.families);
                let unread = layout.required().into_iter().find_map(|name| source.check_dtype(name).err());
                info.problem = unread.map(|error| error.to_string());
            }
            Err(error) => info.problem = Some(error.to_string()),
        }
        if let (Some(model), None) = (model, &info.problem) {
            match config_from_json(model, &source) {
                Ok(asked) => {
                    let HfAttentionConfig { config, pruned_heads, .. } = &asked;
                    info.num_attention_heads = Some(config.num_attention_heads);
                    info.num_key_value_heads = Some(config.resolved_num_key_value_heads());
                    info.head_dim = Some(config.resolved_head_dim());
                    info.position = Some(config.position.to_string());
                    info.mask = Some(config.mask.to_string());
                    info.note = asked.note;
                    let shapes = AnySource::new(&source.with_shapes_alone());
                    if let Err(error) = read_with_shared_tables(config, pruned_heads, &shapes) {
                        info.problem = Some(error.to_string());
                    }
                }
                Err(error) => info.problem = Some(error.to_string()),
            }
        }
        info
    }

    /// The names of floating-point tensors below `prefix`, of any stored format, that hold NaN or infinities. Reads
    /// their data.
    ///
    /// # Errors
    /// If a tensor cannot be read.
    pub fn non_finite(&self, prefix: &str) -> Result<Vec<String>> {
        let source = self.at(prefix, DType::F32, &Device::Cpu);
        let mut found = Vec::new();
        for name in source.names().unwrap_or_default() {
            for (name, shard, entry) in self.stored_parts(&source.full_name(&name))? {
                let holds = match &entry.gguf {
                    Some(gguf) if !gguf.kind.is_numbers() => blocks::hold_non_finite(shard, &name, entry, gguf)?,
                    _ => shard.any_part(&name, entry, |data| holds_non_finite(entry.dtype, data))?,
                };
                if holds {
                    found.push(name);
                }
            }
        }
        Ok(found)
    }
}

impl LayerInfo {
    /// The facts that follow from the prefix and the layout of this row.
    fn new(prefix: &str, row: usize) -> Self {
        let layout = &LAYOUTS[row];
        Self { prefix: prefix.to_string(), layout: layout.name, families: layout.families, ..Self::default() }
    }
}

/// Whether any element has an exponent of ones, or the mark of NaN or infinity that its format has instead.
fn holds_non_finite(dtype: Dtype, data: &[u8]) -> bool {
    fn any<const N: usize>(data: &[u8], is_marked: impl Fn([u8; N]) -> bool) -> bool {
        data.as_chunks().0.iter().any(|number| is_marked(*number))
    }
    let ones = |number: u64, mask: u64| number & mask == mask;
    match dtype {
        Dtype::F64 => any(data, |number| ones(u64::from_le_bytes(number), 0x7ff0 << 48)),
        Dtype::F32 | Dtype::C64 => any(data, |number| ones(u32::from_le_bytes(number).into(), 0x7f80 << 16)),
        Dtype::F16 => any(data, |number| ones(u16::from_le_bytes(number).into(), 0x7c00)),
        Dtype::BF16 => any(data, |number| ones(u16::from_le_bytes(number).into(), 0x7f80)),
        Dtype::F8_E5M2 => any(data, |[number]| ones(number.into(), 0x7c)),
        Dtype::F8_E4M3 => any(data, |[number]| ones(number.into(), 0x7f)),
        Dtype::F8_E8M0 => any(data, |[number]| number == 0xff),
        Dtype::F8_E4M3FNUZ | Dtype::F8_E5M2FNUZ => any(data, |[number]| number == 0x80),
        // Integers, and float formats too small for NaN and infinity.
        _ => false,
    }
}

/// The number of values and of bytes of text in a configuration.
fn size_of_json(json: &Value) -> usize {
    let (mut size, mut rest) = (0, vec![json]);
    while let Some(value) = rest.pop() {
        size += 1;
        match value {
            Value::String(text) => size += text.len(),
            Value::Array(values) => rest.extend(values),
            Value::Object(entries) => {
                size += entries.keys().map(String::len).sum::<usize>();
                rest.extend(entries.values());
            }
            _ => {}
        }
    }
    size
}

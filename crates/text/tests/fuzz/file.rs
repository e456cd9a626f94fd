//! Safetensors files, possibly inconsistent.

use arbitrary::{Result, Unstructured};
use serde_json::json;

use crate::rarely;
use crate::templates::Template;

/// A tensor of a header. Without `data`, as many bytes as shape and dtype require; without `offsets`, right after the
/// tensor before it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub data: Option<Vec<u8>>,
    pub offsets: Option<[usize; 2]>,
}

const DTYPES: &[(&str, usize)] = &[
    ("F32", 32),
    ("F16", 16),
    ("BF16", 16),
    ("F64", 64),
    ("I64", 64),
    ("I32", 32),
    ("I16", 16),
    ("I8", 8),
    ("U8", 8),
    ("U16", 16),
    ("U32", 32),
    ("U64", 64),
    ("BOOL", 8),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E8M0", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("C64", 64),
    ("Q7", 8),
];

/// Tensor names of layers, of their parts, and of other tensors of a checkpoint.
const PARTS: &[&str] = &[
    "",
    ".",
    "..",
    "0",
    "1",
    "18446744073709551615",
    "18446744073709551616",
    "model.layers.0.self_attn",
    "decoder.block.0.layer.0.SelfAttention",
    "encoder.layer.0.attention",
    "text_model.encoder.layers.0.self_attn",
    "q_proj.weight",
    "k_proj.weight",
    "v_proj.weight",
    "o_proj.weight",
    "out_proj.weight",
    "q_proj.bias",
    "qkv.weight",
    "proj.weight",
    "q_bias",
    "v_bias",
    "in_proj_weight",
    "in_proj_bias",
    "W_q.kernel",
    "query.kernel",
    "key.kernel",
    "value.kernel",
    "out.kernel",
    "attention_output.kernel",
    "c_attn.weight",
    "c_proj.weight",
    "q_attn.weight",
    "kv.weight",
    "q.weight",
    "Wqkv.weight",
    "Wo.weight",
    "query_key_value.weight",
    "dense.weight",
    "q_norm.weight",
    "k_norm.weight",
    "q_norm.bias",
    "q_layernorm.norms.0.weight",
    "bias_k",
    "bias_v",
    "score.weight",
    "sinks",
    "relative_attention_bias.weight",
    "bias",
    "masked_bias",
    "LayerNorm.weight",
    // Beside the weights of quantized modules.
    "scales",
    "biases",
    "qbiases",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_packed",
    "weight_shape",
    "qweight",
    "qzeros",
    "g_idx",
    "SCB",
];

fn name(u: &mut Unstructured, known: &[Entry]) -> Result<String> {
    Ok(match u.int_in_range(0..=3)? {
        0 if !known.is_empty() => u.choose(known)?.name.clone(),
        1 => {
            let count = u.int_in_range(1..=3)?;
            (0..count).map(|_| u.choose(PARTS).copied()).collect::<Result<Vec<_>>>()?.join(".")
        }
        // A known prefix with another part.
        2 if !known.is_empty() => {
            let like = &u.choose(known)?.name;
            let cut = like.match_indices('.').map(|(at, _)| at).collect::<Vec<_>>();
            let prefix = if cut.is_empty() { "" } else { &like[..*u.choose(&cut)?] };
            format!("{prefix}.{}", u.choose(PARTS)?)
        }
        _ => u.arbitrary::<&str>()?.chars().take(64).collect(),
    })
}

fn size(u: &mut Unstructured) -> Result<usize> {
    Ok(match u.int_in_range(0..=15u8)? {
        0 => 0,
        1 => 1usize << u.int_in_range(8..=63)?,
        2 => usize::MAX,
        n => usize::from(n) + if n > 12 { u.int_in_range(0..=64)? } else { 0 },
    })
}

impl Entry {
    /// The number of bytes that shape and dtype require.
    pub fn size(&self) -> Option<usize> {
        let bits = DTYPES.iter().find(|(dtype, _)| *dtype == self.dtype)?.1;
        let count = self.shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n))?;
        count.checked_mul(bits).map(|bits| bits / 8)
    }
}

/// The tensors of a family with a few of them damaged.
pub fn entries(u: &mut Unstructured, template: &Template) -> Result<Vec<Entry>> {
    entries_like(u, &template.entries)
}

/// These tensors with a few of them damaged, or none at all.
pub fn entries_like(u: &mut Unstructured, like: &[Entry]) -> Result<Vec<Entry>> {
    let mut all = if rarely(u, 16)? { Vec::new() } else { like.to_vec() };
    for _ in 0..u.int_in_range(0..=6)? {
        damage(u, &mut all)?;
    }
    Ok(all)
}

/// Adds, removes or changes one tensor.
pub fn damage(u: &mut Unstructured, all: &mut Vec<Entry>) -> Result<()> {
    let at = if all.is_empty() { 0 } else { u.choose_index(all.len())? };
    match u.int_in_range(0..=8)? {
        0 => {
            let count = u.int_in_range(0..=4)?;
            let shape = (0..count).map(|_| size(u)).collect::<Result<_>>()?;
            let dtype = u.choose(DTYPES)?.0.to_string();
            all.insert(at, Entry { name: name(u, all)?, dtype, shape, data: None, offsets: None });
        }
        _ if all.is_empty() => {}
        1 => drop(all.remove(at)),
        2 => all[at].name = name(u, all)?,
        3 => (all[at].dtype, all[at].data) = (u.choose(DTYPES)?.0.to_string(), None),
        4 => {
            let Entry { shape, data, .. } = &mut all[at];
            if !shape.is_empty() {
                let axis = u.choose_index(shape.len())?;
                shape[axis] = size(u)?;
                *data = None;
            }
        }
        5 => {
            let Entry { shape, data, .. } = &mut all[at];
            if u.arbitrary()? {
                shape.push(size(u)?)
            } else {
                shape.pop();
            }
            *data = None;
        }
        6 => all[at].offsets = Some([size(u)?, size(u)?]),
        7 => {
            let other = u.choose_index(all.len())?;
            let name = std::mem::take(&mut all[at].name);
            all[at].name = std::mem::replace(&mut all[other].name, name);
        }
        // NaN, infinities, the largest and the smallest numbers.
        _ => {
            let filler = *u.choose(&[0xffu8, 0x7f, 0x80, 0x00, 0x7e])?;
            if let Some(data) = &mut all[at].data {
                data.fill(filler);
            }
        }
    }
    Ok(())
}

/// The header of these tensors and its data, `None` if that is more than `most` bytes.
pub fn header(entries: &[Entry], most: usize) -> Option<(String, Vec<u8>)> {
    let (mut header, mut bytes) = (Vec::new(), Vec::new());
    for entry in entries {
        let start = bytes.len();
        match (&entry.data, entry.size()) {
            (Some(data), _) => bytes.extend(data),
            // Small, distinct values.
            (None, size) => {
                let end = start.checked_add(size.unwrap_or(0)).filter(|end| *end <= most)?;
                bytes.extend((start..end).map(|i| if i % 4 == 3 { 0x3c } else { (i * 37) as u8 }));
            }
        }
        let [from, to] = entry.offsets.unwrap_or([start, bytes.len()]);
        let info = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [from, to]});
        // Formatted as text: a map would drop duplicate names.
        header.push(format!("{}:{info}", json!(entry.name)));
    }
    Some((format!("{{{}}}", header.join(",")), bytes))
}

/// A file; `length` is the header length that it states.
pub fn safetensors(header: &str, data: &[u8], length: u64) -> Vec<u8> {
    [&length.to_le_bytes()[..], header.as_bytes(), data].concat()
}

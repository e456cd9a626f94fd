//! The input file of `attend`: queries, keys, values, and the masks of PyTorch and Hugging Face.

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::AttentionMask;
use candle_attention::checkpoint::Checkpoint;
use candle_core::{DType, Device, Tensor};

use super::super::shared::{Result, about, fail};

const NAMES: [&str; 9] =
    ["query", "key", "value", "attention_mask", "attn_mask", "key_padding_mask", "lengths", "additive", "grid"];

/// The tensors of a call, in its dtype and on its device.
pub struct Inputs {
    pub query: Tensor,
    pub key: Tensor,
    pub value: Tensor,
    pub mask: AttentionMask,
    pub grid: Option<[usize; 2]>,
}

impl Inputs {
    /// Reads the file at `path`.
    pub fn read(path: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        // A misspelled mask must not be ignored silently.
        if let Some(name) = file.names().find(|name| !NAMES.contains(name)) {
            let (name, names) = (name.escape_debug(), NAMES.join(", "));
            return fail(path, format!("unknown tensor `{name}`, expected {names}"));
        }
        let names = NAMES.iter().filter(|name| file.contains(name));
        let tensors = names.map(|name| Ok((*name, file.tensor(name, &Device::Cpu)?)));
        let tensors = Tensors { path, tensors: tensors.collect::<Result<_>>()? };
        let float = |name: &str| -> Result<Option<Tensor>> {
            let Some(tensor) = tensors.tensors.get(name) else { return Ok(None) };
            if !tensor.dtype().is_float() {
                let found = format!("has dtype {}, expected a float", tensor.dtype().as_str());
                return Err(tensors.wrong(name, &found));
            }
            Ok(Some(tensor.to_dtype(dtype)?.to_device(device)?))
        };
        let missing = |name: &str| about(path, format!("tensor `{name}` is missing"));
        let query = float("query")?.ok_or_else(|| missing("query"))?;
        let (key, value) = match (float("key")?, float("value")?) {
            (Some(key), Some(value)) => (key, value),
            (Some(key), None) => (key.clone(), key),
            (None, None) => (query.clone(), query.clone()),
            (None, Some(_)) => return Err(missing("key").into()),
        };
        Ok(Self { query, key, value, mask: tensors.mask()?, grid: tensors.grid()? })
    }
}

/// The tensors of the file by name.
struct Tensors<'a> {
    path: &'a Path,
    tensors: BTreeMap<&'static str, Tensor>,
}

impl Tensors<'_> {
    fn wrong(&self, name: &str, what: &dyn std::fmt::Display) -> Box<dyn std::error::Error> {
        about(self.path, format!("`{name}` {what}")).into()
    }

    /// All masks of the file together.
    fn mask(&self) -> Result<AttentionMask> {
        let mut mask = AttentionMask::full();
        for (&name, tensor) in &self.tensors {
            let one = match name {
                "attention_mask" => AttentionMask::keep_keys(&self.booleans(name, tensor)?),
                "attn_mask" => {
                    let scores = self.score_dims(name, tensor)?; // (b, h, s_q, s_kv)
                    if scores.dtype().is_float() {
                        AttentionMask::additive(&scores)
                    } else {
                        AttentionMask::keep(&self.booleans(name, &scores)?)
                    }
                }
                "key_padding_mask" => {
                    if tensor.dtype().is_float() {
                        AttentionMask::additive_keys(tensor)
                    } else {
                        AttentionMask::exclude_keys(&self.booleans(name, tensor)?)
                    }
                }
                "lengths" => AttentionMask::lengths_tensor(tensor),
                "additive" => AttentionMask::additive(tensor),
                _ => continue,
            };
            mask = mask.and(one.map_err(|error| about(self.path, format!("`{name}`: {error}")))?);
        }
        Ok(mask)
    }

    /// Rows and columns of patches.
    fn grid(&self) -> Result<Option<[usize; 2]>> {
        let Some(grid) = self.tensors.get("grid") else { return Ok(None) };
        let sides = grid.dims1().and_then(|_| grid.to_dtype(DType::F64)?.to_vec1::<f64>()).unwrap_or_default();
        let is_count = |side: &f64| *side >= 1.0 && side.fract() == 0.0;
        match *sides {
            [rows, columns] if sides.iter().all(is_count) => Ok(Some([rows as usize, columns as usize])),
            [rows, columns] => Err(self.wrong("grid", &format!("is {rows} x {columns}, expected integers from 1"))),
            _ => Err(self.wrong("grid", &format!("has shape {:?}, expected [2]", grid.dims()))),
        }
    }

    /// A mask of 0 and 1, in any dtype, as u8.
    fn booleans(&self, name: &str, mask: &Tensor) -> Result<Tensor> {
        let elements = mask.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        if let Some(i) = elements.iter().position(|element| ![0.0, 1.0].contains(element)) {
            return Err(self.wrong(name, &format!("element {i} is {}, expected 0 or 1", elements[i])));
        }
        let elements: Vec<u8> = elements.into_iter().map(|element| element as u8).collect();
        Ok(Tensor::from_vec(elements, mask.dims(), mask.device())?)
    }

    /// A mask `(s_q, s_kv)`, `(b, s_q, s_kv)` or `(b, h, s_q, s_kv)` with 4 dimensions.
    fn score_dims(&self, name: &str, mask: &Tensor) -> Result<Tensor> {
        Ok(match mask.rank() {
            2 => mask.unsqueeze(0)?.unsqueeze(0)?,
            3 => mask.unsqueeze(1)?,
            4 => mask.clone(),
            _ => {
                let found =
                    format!("has shape {:?}, expected (s_q, s_kv), (b, s_q, s_kv) or (b, h, s_q, s_kv)", mask.dims());
                return Err(self.wrong(name, &found));
            }
        })
    }
}

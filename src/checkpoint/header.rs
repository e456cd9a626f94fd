//! Parses a safetensors header; errors name the faulty tensor.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use crate::error::{Error, Result};

/// The longest header or index that is read; safetensors has the same limit.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A JSON object whose keys are unique. Most readers would take the last of several equal keys.
pub(crate) struct Unique<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Unique<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(Names(PhantomData))
    }
}

struct Names<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Names<V> {
    type Value = Unique<V>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Unique<V>, A::Error> {
        let mut all = BTreeMap::new();
        while let Some(name) = entries.next_key::<String>()? {
            let value = entries.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
            if all.contains_key(&name) {
                return Err(A::Error::custom(format!("tensor `{name}` is listed twice")));
            }
            all.insert(name, value);
        }
        Ok(Unique(all))
    }
}

#[derive(serde::Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: Option<HashMap<String, String>>,
    #[serde(flatten)]
    tensors: Unique<TensorInfo>,
}

/// Checks the entry of each tensor and returns the metadata. Whether the file is valid as a whole is left to safetensors:
/// of a file without a readable header, the metadata is empty.
pub(crate) fn read(path: &Path) -> Result<HashMap<String, String>> {
    let mut file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
    let length = file.metadata().map_err(|e| Error::io(path, e))?.len();
    let mut size = [0; 8];
    if length < 8 {
        return Ok(HashMap::new());
    }
    file.read_exact(&mut size).map_err(|e| Error::io(path, e))?;
    let size = u64::from_le_bytes(size);
    if size > MAX_HEADER_BYTES.min(length - 8) {
        return Ok(HashMap::new());
    }
    let mut header = Vec::new();
    file.take(size).read_to_end(&mut header).map_err(|e| Error::io(path, e))?;
    check(path, &header, length - 8 - size)
}

/// The same for a file in memory, which errors call `path`.
pub(crate) fn read_bytes(path: &Path, file: &[u8]) -> Result<HashMap<String, String>> {
    let Some((size, rest)) = file.split_first_chunk() else { return Ok(HashMap::new()) };
    let size = u64::from_le_bytes(*size);
    if size > MAX_HEADER_BYTES.min(rest.len() as u64) {
        return Ok(HashMap::new());
    }
    let (header, data) = rest.split_at(size as usize);
    check(path, header, data.len() as u64)
}

/// Checks a header before `data` bytes.
fn check(path: &Path, header: &[u8], data: u64) -> Result<HashMap<String, String>> {
    let invalid = |what: String| Error::file(path, format!("not a valid safetensors file: {what}"));
    let header: Header = serde_json::from_slice(header).map_err(|e| invalid(e.to_string()))?;
    for (name, info) in &header.tensors.0 {
        let wrong = |what: String| Err(invalid(format!("tensor `{name}`: {what}")));
        let TensorInfo { dtype, shape, data_offsets: (from, to) } = info;
        // Sizes whose product overflows are no shape, even if one of them is zero.
        let sizes = shape.iter().map(|size| *size.max(&1));
        let bits = sizes.chain([dtype.bitsize()]).try_fold(1, usize::checked_mul);
        let Some(bits) = bits.map(|bits| if shape.contains(&0) { 0 } else { bits }) else {
            return wrong(format!("shape {shape:?} is larger than any memory"));
        };
        if *to as u64 > data {
            return wrong(format!("its data ends at {to}, the file's at {data}"));
        }
        if to.checked_sub(*from).and_then(|bytes| bytes.checked_mul(8)) != Some(bits) {
            return wrong(format!("its data goes from {from} to {to}, but {dtype:?} {shape:?} has {bits} bits"));
        }
    }
    Ok(header.metadata.unwrap_or_default())
}

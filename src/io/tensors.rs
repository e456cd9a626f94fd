//! Writing safetensors files.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::{TensorInfo, View};

use crate::error::{Error, Result};
use crate::io::write_atomic;

/// The longest header that is written, and the longest header or index that is read, in bytes; also the limit of the
/// headers of all shards together. safetensors has the same limit. Those of the largest published models have some
/// 15 MB.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The name of the metadata in a header, which no tensor may have.
const METADATA: &str = "__metadata__";

/// A tensor to write: one of candle, or integers of 8 bits, for which candle has no dtype.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WrittenTensor {
    /// A tensor of candle.
    Tensor(Tensor),
    /// `I8`.
    Int8 {
        /// The dimensions.
        shape: Vec<usize>,
        /// As many values as the dimensions have elements.
        values: Vec<i8>,
    },
}

impl From<Tensor> for WrittenTensor {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl WrittenTensor {
    fn shape(&self) -> &[usize] {
        match self {
            Self::Tensor(tensor) => tensor.dims(),
            Self::Int8 { shape, .. } => shape,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Tensor(tensor) => tensor.data_len(),
            Self::Int8 { values, .. } => values.len(),
        }
    }

    /// candle panics when it is asked for the bytes of dtypes that it can only pass on.
    fn check_dtype(&self, name: &str) -> Result<Dtype> {
        match self {
            Self::Int8 { shape, values } => {
                let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
                if elements == Some(values.len()) {
                    Ok(Dtype::I8)
                } else {
                    Err(Error::shape(format!("tensor `{name}`"), shape, format!("{} values", values.len())))
                }
            }
            Self::Tensor(tensor) => match tensor.dtype() {
                DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => {
                    Err(Error::dtype(format!("tensor `{name}`"), tensor.dtype(), "a dtype that candle can write"))
                }
                dtype => Ok(dtype.into()),
            },
        }
    }

    fn write_to(&self, file: &mut dyn Write, target: &Path) -> Result<()> {
        let io = |e| Error::io(target, e);
        match self {
            // candle panics if the copy from a device fails while it makes bytes.
            Self::Tensor(tensor) => file.write_all(&tensor.to_device(&Device::Cpu)?.data()).map_err(io),
            Self::Int8 { values, .. } => file.write_all(bytemuck::cast_slice(values)).map_err(io),
        }
    }
}

/// Writes a safetensors file, as [`write_file`](crate::io::write_file) writes bytes. `metadata` goes into the header.
///
/// The `save` of candle and of its `VarMap` writes without waiting for the disk, and leaves a file that only its owner
/// can read.
///
/// # Errors
/// The errors of [`write_atomic`]; a name that two tensors have; a dtype that candle cannot write (`F8E8M0`, `F6E2M3`,
/// `F6E3M2`, `F4`); a number of integers that is not that of the shape.
///
/// ```
/// use candle_attention::checkpoint::Checkpoint;
/// use candle_attention::io::write_tensors;
/// use candle_core::{DType, Device, Tensor};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let weight = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
/// write_tensors(&path, [("weight", weight)], Default::default())?;
/// assert!(Checkpoint::open(&path)?.contains("weight"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_tensors(
    target: &Path,
    tensors: impl IntoIterator<Item = (impl Into<String>, impl Into<WrittenTensor>)>,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let mut by_name = BTreeMap::new();
    for (name, tensor) in tensors {
        let name = name.into();
        if by_name.insert(name.clone(), tensor.into()).is_some() {
            return Err(Error::value("the name of a tensor to write", format!("`{name}` twice"), "each name once"));
        }
    }
    write_atomic(target, |file| write_content(file, target, &by_name, &metadata))
}

/// Writes the content of the file `target`. The safetensors crate would need all of it in memory, or write a temporary
/// file of its own that it does not sync.
fn write_content(
    file: &mut dyn Write,
    target: &Path,
    tensors: &BTreeMap<String, WrittenTensor>,
    metadata: &HashMap<String, String>,
) -> Result<()> {
    let io = |e| Error::io(target, e);
    if tensors.contains_key(METADATA) {
        return Err(Error::value("the name of a tensor", METADATA, "a name that is not the header's own"));
    }
    let mut sorted: Vec<(Dtype, &String, &WrittenTensor)> = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        sorted.push((tensor.check_dtype(name)?, name, tensor));
    }
    // The largest alignment first, so that every tensor is aligned.
    sorted.sort_by_key(|(dtype, ..)| std::cmp::Reverse(*dtype));

    // The metadata sorted, so that the same content gives the same bytes.
    let json = |e| Error::file(target, e);
    let sorted_metadata: BTreeMap<&String, &String> = metadata.iter().collect();
    let mut entries = Vec::with_capacity(sorted.len() + 1);
    if !metadata.is_empty() {
        entries.push(format!("\"{METADATA}\":{}", serde_json::to_string(&sorted_metadata).map_err(json)?));
    }
    let mut start = 0;
    for (dtype, name, tensor) in &sorted {
        let end = start + tensor.bytes();
        let info = TensorInfo { dtype: *dtype, shape: tensor.shape().to_vec(), data_offsets: (start, end) };
        let [name, info] = [serde_json::to_string(name), serde_json::to_string(&info)];
        entries.push(format!("{}:{}", name.map_err(json)?, info.map_err(json)?));
        start = end;
    }
    let mut header = format!("{{{}}}", entries.join(",")).into_bytes();
    // The data starts at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER_BYTES {
        let reason = format!("its header would have {} bytes, expected at most {MAX_HEADER_BYTES}", header.len());
        return Err(Error::file(target, reason));
    }

    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    file.write_all(&header).map_err(io)?;
    sorted.into_iter().try_for_each(|(_, _, tensor)| tensor.write_to(file, target))
}

//! Writing safetensors files.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo, View};

use crate::error::{Error, Result};

/// The longest header that readers of the format accept, in bytes: a file with a longer one could be written, not read.
const MAX_HEADER_BYTES: usize = 100_000_000;

/// Writes the content of a safetensors file; errors name `target`, the file that it becomes.
///
/// The same bytes as the safetensors crate writes, which would need all of them in memory, or a temporary file of its own
/// that is not synced.
pub(crate) fn write_tensors(
    file: &mut dyn Write,
    target: &Path,
    tensors: &BTreeMap<String, Tensor>,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let io = |e| Error::io(target, e);
    // The largest alignment first, so that every tensor is aligned.
    let mut sorted: Vec<(Dtype, &String, &Tensor)> = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        sorted.push((check_dtype(name, tensor)?, name, tensor));
    }
    sorted.sort_by_key(|(dtype, ..)| std::cmp::Reverse(*dtype));

    let (mut infos, mut start) = (Vec::with_capacity(sorted.len()), 0);
    for (dtype, name, tensor) in &sorted {
        let end = start + tensor.data_len();
        let shape = tensor.dims().to_vec();
        infos.push(((*name).clone(), TensorInfo { dtype: *dtype, shape, data_offsets: (start, end) }));
        start = end;
    }
    let metadata = (!metadata.is_empty()).then_some(metadata);
    let header = Metadata::new(metadata, infos).map_err(|e| Error::file(target, e))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| Error::file(target, e))?;
    // The data starts at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > MAX_HEADER_BYTES {
        let reason = format!("its header would have {} bytes, expected at most {MAX_HEADER_BYTES}", header.len());
        return Err(Error::file(target, reason));
    }

    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    file.write_all(&header).map_err(io)?;
    for (_, _, tensor) in sorted {
        // candle panics if the copy from a device fails while it makes bytes.
        file.write_all(&tensor.to_device(&Device::Cpu)?.data()).map_err(io)?;
    }
    Ok(())
}

/// candle panics when it is asked for the bytes of dtypes that it can only pass on.
fn check_dtype(name: &str, tensor: &Tensor) -> Result<Dtype> {
    match tensor.dtype() {
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => {
            Err(Error::dtype(format!("tensor `{name}`"), tensor.dtype(), "a dtype that candle can write"))
        }
        dtype => Ok(dtype.into()),
    }
}

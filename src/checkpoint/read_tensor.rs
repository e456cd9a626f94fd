//! Reads stored tensors into candle's.

use bytemuck::Pod;
use candle_core::safetensors::Load;
use candle_core::{Device, Tensor, WithDType};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::checkpoint::header::Entry;
use crate::checkpoint::shard::Shard;
use crate::error::{Error, Result};

/// Reads the tensor `name` of a shard as it is stored; booleans, which candle lacks, as u8.
pub(crate) fn read_tensor(shard: &Shard, name: &str, entry: &Entry, device: &Device) -> Result<Tensor> {
    match entry.dtype {
        Dtype::F64 => numbers::<f64>(shard, name, entry, device),
        Dtype::F32 => numbers::<f32>(shard, name, entry, device),
        Dtype::F16 => numbers::<f16>(shard, name, entry, device),
        Dtype::BF16 => numbers::<bf16>(shard, name, entry, device),
        Dtype::I64 => numbers::<i64>(shard, name, entry, device),
        Dtype::U32 => numbers::<u32>(shard, name, entry, device),
        Dtype::U8 | Dtype::BOOL => numbers::<u8>(shard, name, entry, device),
        // What candle makes of rarer formats is left to it, for the price of a second copy.
        dtype => {
            let bytes = shard.read::<u8>(name, entry)?;
            let failed = |e: String| Error::Tensor {
                name: name.to_string(),
                found: format!("cannot be read ({e})"),
                expected: "a dtype that candle supports".to_string(),
            };
            let view = TensorView::new(dtype, entry.shape.to_vec(), &bytes).map_err(|e| failed(e.to_string()))?;
            view.load(device).map_err(|e| failed(e.to_string()))
        }
    }
}

/// Reads numbers straight into the tensor's memory.
fn numbers<T: Pod + WithDType>(shard: &Shard, name: &str, entry: &Entry, device: &Device) -> Result<Tensor> {
    Ok(Tensor::from_vec(shard.read::<T>(name, entry)?, &*entry.shape, device)?)
}

//! Devices, dtypes and compute types on the command line.

use candle_attention::ComputeType;
use candle_core::{DType, Device};
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// The names of compute types: of dtypes, and of formats of weights in few bits.
const COMPUTE_TYPES: [&str; 7] = ["f32", "f64", "f16", "bf16", "int8", "q8_0", "q4_0"];

/// Parses `cpu`, `cuda`, `cuda:1`, `metal` or `metal:1`.
pub fn device(name: &str) -> Result<Device, String> {
    let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
    let index: usize = index.parse().map_err(|_| format!("`{index}` is not a device number"))?;
    let device = match kind {
        "cpu" if name == "cpu" => Ok(Device::Cpu),
        "cuda" => Device::new_cuda(index),
        "metal" if cfg!(feature = "metal") => return candle_attention::metal_device(index).map_err(|e| e.to_string()),
        "metal" => Device::new_metal(index),
        _ => return Err("expected cpu, cuda[:N] or metal[:N]".to_string()),
    };
    device.map_err(|e| format!("{} (build with `--features {kind}`)", e.to_string().lines().next().unwrap_or_default()))
}

/// Parses a compute type.
pub fn compute_type() -> impl TypedValueParser<Value = ComputeType> {
    PossibleValuesParser::new(COMPUTE_TYPES).try_map(|name| name.parse::<ComputeType>())
}

/// Parses `f32`, `f64`, `f16` or `bf16`.
pub fn dtype(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "f64" => Ok(DType::F64),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err("expected f32, f64, f16 or bf16".to_string()),
    }
}

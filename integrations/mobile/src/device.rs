//! Where a model runs, and in which numbers.

use candle_attention::ComputeType;
use candle_core::{DType, Device};

use crate::error::{EncoderError, Result};

/// Where a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum ComputeDevice {
    /// The GPU if the library was built for it and there is one that runs its kernels, else the CPU.
    Auto,
    /// All cores of the CPU.
    Cpu,
    /// An Apple GPU, of the A14, the M1 or later. The library must be built with the feature `metal`. Encode in the foreground
    /// alone: iOS refuses work of apps in the background, which is not always an error.
    Metal,
}

impl ComputeDevice {
    /// Opens the device.
    pub(crate) fn open(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto => Ok(metal().unwrap_or(Device::Cpu)),
            Self::Metal => metal(),
        }
    }

    /// The kind of an open device.
    pub(crate) fn from_device(device: &Device) -> Self {
        if device.is_metal() { Self::Metal } else { Self::Cpu }
    }
}

/// The first Apple GPU.
#[cfg(feature = "metal")]
fn metal() -> Result<Device> {
    candle_attention::metal_device(0).map_err(|e| EncoderError::Device(e.to_string()))
}

#[cfg(not(feature = "metal"))]
fn metal() -> Result<Device> {
    Err(EncoderError::Device(
        "this library was built without the feature `metal`, expected `Auto` or `Cpu`".to_string(),
    ))
}

/// In which numbers weights are kept. Embeddings are always 32-bit numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum NumberFormat {
    /// 32 bits. On the CPU, weights that the model's files hold in fewer bits stay so.
    F32,
    /// 16 bits: half the memory. Meant for GPUs.
    F16,
    /// 16 bits with the range of 32: half the memory.
    Bf16,
}

impl NumberFormat {
    pub(crate) fn compute_type(self) -> ComputeType {
        match self {
            Self::F32 => ComputeType::default(),
            Self::F16 => DType::F16.into(),
            Self::Bf16 => DType::BF16.into(),
        }
    }
}

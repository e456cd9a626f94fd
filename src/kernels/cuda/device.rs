//! Device properties that choose a kernel variant.

/// Properties of an NVIDIA GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(not(any(test, feature = "cuda")), allow(dead_code, reason = "only CUDA builds have such a device"))]
pub(crate) struct Gpu {
    /// Compute capability, 80 for 8.0.
    pub capability: u32,
    pub multiprocessors: usize,
    /// Largest shared memory of a block, in bytes.
    pub shared_memory: usize,
}

#[cfg(feature = "cuda")]
mod query {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    use candle_core::CudaDevice;
    use candle_core::cuda_backend::WrapErr;
    use candle_core::cuda_backend::cudarc::driver::CudaStream;
    use candle_core::cuda_backend::cudarc::driver::sys::{CUdevice_attribute as Attribute, CUstreamCaptureStatus};

    use super::Gpu;
    use crate::error::Result;

    /// The properties of a device, cached. They are queried once, because the query clears CUDA's pending error, which
    /// the failing call should report.
    pub(crate) fn gpu(device: &CudaDevice) -> Result<Gpu> {
        static CACHE: Mutex<BTreeMap<usize, Gpu>> = Mutex::new(BTreeMap::new());
        let stream = device.cuda_stream();
        let ordinal = stream.context().ordinal();
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = cache.get(&ordinal) {
            return Ok(*gpu);
        }
        let major = attribute(&stream, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(&stream, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let gpu = Gpu {
            capability: (10 * major + minor) as u32,
            multiprocessors: attribute(&stream, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_memory: attribute(&stream, Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        };
        cache.insert(ordinal, gpu);
        Ok(gpu)
    }

    fn attribute(stream: &CudaStream, attribute: Attribute) -> Result<usize> {
        Ok(stream.context().attribute(attribute).w()? as usize)
    }

    /// Whether this thread records its work on the device into a CUDA graph.
    pub(crate) fn capturing(device: &CudaDevice) -> Result<bool> {
        Ok(device.cuda_stream().capture_status().w()? != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

#[cfg(feature = "cuda")]
pub(crate) use query::{capturing, gpu};

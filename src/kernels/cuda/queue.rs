//! A kernel queued on a device's stream.

use candle_core::CudaDevice;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};

use super::compile::Compiled;
use crate::error::Result;

/// How a kernel is spread over the GPU.
pub(super) struct Grid {
    pub blocks: (u32, u32),
    pub threads: usize,
    /// Of each block.
    pub shared_bytes: usize,
}

/// Queues the kernel `name`.
///
/// # Safety
/// The kernel takes one argument, `params`; the memory at its addresses is as large as its numbers say, and held until the
/// launch is queued.
pub(super) unsafe fn start<P: DeviceRepr>(
    device: &CudaDevice,
    kernel: &Compiled,
    name: &str,
    grid: Grid,
    params: &P,
) -> Result<()> {
    let function = device.get_or_load_custom_func(name, &kernel.name, &kernel.ptx)?;
    let shared = grid.shared_bytes as u32;
    // So much a kernel has without asking.
    if shared > 48 << 10 {
        let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(most, shared as i32).w()?;
    }
    let (x, y) = grid.blocks;
    let config = LaunchConfig { grid_dim: (x, y, 1), block_dim: (grid.threads as u32, 1, 1), shared_mem_bytes: shared };
    let mut builder = function.builder();
    builder.arg(params);
    // SAFETY: as the caller promises.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}

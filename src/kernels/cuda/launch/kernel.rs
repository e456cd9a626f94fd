//! Launches a compiled kernel on the stream of a device.

use candle_core::CudaDevice;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};

use crate::error::Result;
use crate::kernels::cuda::compile::CompiledKernel;

/// Shared memory that every kernel may use; more has to be requested.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// Size of a launch.
pub(super) struct Grid {
    /// Blocks in x and y.
    pub blocks: (u32, u32),
    /// Threads per block.
    pub threads: usize,
    /// Shared memory per block.
    pub shared_bytes: usize,
}

/// Queues the kernel `name` with one argument, `params`.
///
/// # Safety
/// `P` has the layout of the kernel's parameter struct. Each address in `params` points to as much memory as its sizes
/// and strides describe, and the memory is held until this call returns.
pub(super) unsafe fn launch<P: DeviceRepr>(
    device: &CudaDevice,
    kernel: &CompiledKernel,
    name: &str,
    grid: Grid,
    params: &P,
) -> Result<()> {
    let function = device.get_or_load_custom_func(name, &kernel.name, &kernel.ptx)?;
    let shared_mem_bytes = grid.shared_bytes as u32;
    if shared_mem_bytes > DEFAULT_SHARED_BYTES {
        let limit = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(limit, shared_mem_bytes as i32).w()?;
    }
    let (x, y) = grid.blocks;
    let config = LaunchConfig { grid_dim: (x, y, 1), block_dim: (grid.threads as u32, 1, 1), shared_mem_bytes };
    let mut builder = function.builder();
    builder.arg(params);
    // SAFETY: the caller guarantees that `params` is what the kernel expects.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}

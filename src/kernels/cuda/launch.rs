//! Launches: a compiled kernel, the size of its grid and its parameters, on the stream of a device.

use candle_core::CudaDevice;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;
use candle_core::cuda_backend::cudarc::driver::{LaunchConfig, PushKernelArg};

use crate::error::Result;
use crate::kernels::cuda::compile::{CompiledKernel, compiled};
use crate::kernels::cuda::launch_size::LaunchSize;
use crate::kernels::cuda::variant::{AttentionParams, Variant};

/// Shared memory that every kernel may use; more has to be requested.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// Size of a launch.
struct Grid {
    /// Blocks in x and y.
    blocks: (u32, u32),
    /// Threads per block.
    threads: usize,
    /// Shared memory per block.
    shared_bytes: usize,
}

/// Queues the kernel `name` with one argument, `params`.
///
/// # Safety
/// Each address in `params` points to as much memory as its sizes
/// and strides describe, and the memory is held until this call returns.
unsafe fn launch(
    device: &CudaDevice,
    kernel: &CompiledKernel,
    name: &str,
    grid: Grid,
    params: &AttentionParams,
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
    // SAFETY: the kernels take `AttentionParams`; the caller guarantees the memory.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}

impl LaunchSize {
    /// Queues the kernel, and `combine` if keys are split. `query_heads`: query heads of all tokens. `capability`: that
    /// of the device.
    ///
    /// # Safety
    /// Each address in `params` points to as much memory as its shape and strides describe, and the memory is held
    /// until this call returns.
    pub(crate) unsafe fn launch(
        &self,
        device: &CudaDevice,
        capability: u32,
        params: &AttentionParams,
        query_heads: usize,
    ) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let kernel = compiled(self.variant, capability)?;
        let grid = Grid {
            blocks: (self.blocks, self.splits as u32),
            threads: self.variant.threads,
            shared_bytes: self.variant.shared_bytes(),
        };
        // SAFETY: the caller guarantees the memory.
        unsafe { launch(device, &kernel, "attention", grid, params)? };
        if self.splits == 1 {
            return Ok(());
        }
        let (threads, shared_bytes) = Variant::combine_block(params.d_v as usize);
        let grid = Grid { blocks: (query_heads as u32, 1), threads, shared_bytes };
        // SAFETY: the caller guarantees the memory.
        unsafe { launch(device, &kernel, "combine", grid, params) }
    }
}

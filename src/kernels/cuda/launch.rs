//! Launches: a compiled kernel, the size of its grid and its parameters, on the stream of a device.

use candle_core::CudaDevice;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};

use crate::error::{Error, Result};
use crate::kernels::cuda::compile::{CompiledKernel, Program, compiled};
use crate::kernels::cuda::device::gpu;
use crate::kernels::cuda::launch_size::LaunchSize;
use crate::kernels::cuda::rowwise::{ActivationParams, NormParams, RotaryParams, Rowwise};
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
/// `P` has the layout of the kernel's parameter struct. Each address in `params` points to as much memory as its sizes
/// and strides describe, and the memory is held until this call returns.
unsafe fn launch<P: DeviceRepr>(
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
        let kernel = compiled(Program::Attention(self.variant), capability)?;
        let grid = Grid {
            blocks: (self.blocks, self.splits as u32),
            threads: self.variant.threads,
            shared_bytes: self.variant.shared_bytes(),
        };
        // SAFETY: the kernel takes `AttentionParams`; the caller guarantees the memory.
        unsafe { launch(device, &kernel, "attention", grid, params)? };
        if self.splits == 1 {
            return Ok(());
        }
        let (threads, shared_bytes) = Variant::combine_block(params.d_v as usize);
        let grid = Grid { blocks: (query_heads as u32, 1), threads, shared_bytes };
        // SAFETY: the same parameters.
        unsafe { launch(device, &kernel, "combine", grid, params) }
    }
}

// SAFETY: `repr(C)` and plain numbers, with the fields of the struct in `source/rowwise.cuh` in the same order.
unsafe impl DeviceRepr for NormParams {}
// SAFETY: as for `NormParams`.
unsafe impl DeviceRepr for ActivationParams {}
// SAFETY: as for `NormParams`.
unsafe impl DeviceRepr for RotaryParams {}

impl Rowwise {
    /// Normalizes rows.
    ///
    /// # Safety
    /// Each address in `params` points to as much memory as its shape and strides describe, and the memory is held
    /// until this call returns.
    pub(crate) unsafe fn norm(self, device: &CudaDevice, params: &NormParams) -> Result<()> {
        let blocks = Self::blocks_per_rows(params.rows as usize);
        // SAFETY: the kernel takes `NormParams`; the caller guarantees the memory.
        unsafe { self.launch(device, "rowwise_norm", blocks, params) }
    }

    /// Applies an activation to every element.
    ///
    /// # Safety
    /// As for [`norm`](Self::norm).
    pub(crate) unsafe fn activation(self, device: &CudaDevice, params: &ActivationParams) -> Result<()> {
        let elements = (params.rows as usize).saturating_mul(params.size as usize);
        let blocks = self.blocks_per_elements(elements, params.vectorized != 0);
        // SAFETY: the kernel takes `ActivationParams`; the caller guarantees the memory.
        unsafe { self.launch(device, "rowwise_activation", blocks, params) }
    }

    /// Rotates pairs of elements of every head.
    ///
    /// # Safety
    /// As for [`norm`](Self::norm).
    pub(crate) unsafe fn rotary(self, device: &CudaDevice, params: &RotaryParams) -> Result<()> {
        let blocks = Self::blocks_per_rows(params.rows as usize);
        // SAFETY: the kernel takes `RotaryParams`; the caller guarantees the memory.
        unsafe { self.launch(device, "rowwise_rotary", blocks, params) }
    }

    /// # Safety
    /// As for [`launch`].
    unsafe fn launch<P: DeviceRepr>(self, device: &CudaDevice, name: &str, blocks: usize, params: &P) -> Result<()> {
        let kernel = compiled(Program::Rowwise(self), gpu(device)?.capability)?;
        let blocks =
            i32::try_from(blocks).map_err(|_| Error::value("the number of thread blocks", blocks, "less than 2^31"))?;
        let grid = Grid { blocks: (blocks as u32, 1), threads: Self::THREADS, shared_bytes: 0 };
        // SAFETY: the caller guarantees the kernel's parameters and the memory.
        unsafe { launch(device, &kernel, name, grid, params) }
    }
}

//! Launches the attention kernel.

use candle_core::CudaDevice;

use super::kernel::{Grid, launch};
use crate::error::Result;
use crate::kernels::cuda::compile::{Program, compiled};
use crate::kernels::cuda::launch_size::LaunchSize;
use crate::kernels::cuda::variant::AttentionParams;
use crate::kernels::cuda::variant::Variant;

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

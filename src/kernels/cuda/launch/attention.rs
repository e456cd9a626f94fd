//! Picks a variant and launches the attention kernel.

use candle_core::{CudaDevice, DType};

use super::kernel::{Grid, launch};
use crate::error::{Error, Result};
use crate::kernels::cuda::compile::{Program, compiled};
use crate::kernels::cuda::device::Gpu;
use crate::kernels::cuda::params::AttentionParams;
use crate::kernels::cuda::variant::{ProblemShape, Variant};

/// Kernels count query rows and keys in 32 bits, and past the last ones by up to a tile.
const MAX_ROWS_OR_KEYS: usize = 1 << 30;

/// A variant of the attention kernel and the size of its launch.
pub(crate) struct AttentionLaunch {
    variant: Variant,
    capability: u32,
    blocks: u32,
    /// Blocks that share the keys of a tile of queries.
    pub splits: usize,
}

impl AttentionLaunch {
    /// Selects the variant for tensors of `dtype`. Everything in `params` counts except `out`, `partials`, `vectorized`
    /// and `splits`, which may be unset.
    ///
    /// # Errors
    /// A head, a sequence or a batch that is too large for the kernels.
    pub(crate) fn new(dtype: DType, params: &AttentionParams, gpu: Gpu) -> Result<Self> {
        let work_items = params.b as usize * params.h_kv as usize;
        let query_rows = params.s_q as usize * (params.h / params.h_kv) as usize;
        let keys = params.s_kv as usize + params.appended_keys as usize;
        if let Some(count) = [query_rows, keys].into_iter().find(|count| *count > MAX_ROWS_OR_KEYS) {
            return Err(Error::value("the number of keys, or of queries per key-value head,", count, "at most 2^30"));
        }
        let (d, d_v) = (params.d as usize, params.d_v as usize);
        let shape = ProblemShape { dtype, d, d_v, work_items, query_rows, keys, features: params.features() };
        let variant = Variant::select(shape, gpu)
            .ok_or_else(|| Error::value("the head dimension", params.d.max(params.d_v), "at most 256"))?;
        let blocks = i32::try_from(variant.blocks(work_items, query_rows)).map_err(|_| {
            let found = format!("{work_items} key-value heads of {query_rows} queries");
            Error::value("the batch", found, "less than 2^31 thread blocks")
        })?;
        Ok(Self { variant, capability: gpu.capability, blocks: blocks as u32, splits: variant.splits(shape, gpu) })
    }

    /// Queues the kernel, and `combine` if keys are split. `query_heads`: query heads of all tokens.
    ///
    /// # Safety
    /// Each address in `params` points to as much memory as its shape and strides describe, and the memory is held
    /// until this call returns.
    pub(crate) unsafe fn launch(
        &self,
        device: &CudaDevice,
        params: &AttentionParams,
        query_heads: usize,
    ) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let kernel = compiled(Program::Attention(self.variant), self.capability)?;
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

//! Launches the row-wise kernels.

use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

use super::kernel::{Grid, launch};
use crate::error::{Error, Result};
use crate::kernels::cuda::compile::{Program, compiled};
use crate::kernels::cuda::device::gpu;
use crate::kernels::cuda::rowwise::{ActivationParams, NormParams, RotaryParams, Rowwise};

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

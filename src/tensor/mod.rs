//! Helpers over candle tensors: the memory of a CPU tensor as a slice, dispatch on the dtype, selection, broadcasting.
//!
//! The kernels of this crate read slices and the rest of the crate holds [`Tensor`](candle_core::Tensor)s. The
//! conversion between both is here, once, and by reference: copying every input of a kernel into a `Vec` would be
//! simpler and would cost more than some of the kernels.

mod check;
mod cpu_slice;
#[cfg(feature = "cuda")]
mod cuda_tensor;
mod dtype;
mod freeze;
mod metal_device;
#[cfg(test)]
pub mod random;
mod select;

pub(crate) use candle_attention_kernels::{check_allocation, try_reserve};
pub use candle_attention_kernels::{element_count, zeros};
pub use check::check_tensor_memory;
pub(crate) use check::last_dim_contiguous;
pub(crate) use check::same_dtype_and_device;
pub(crate) use cpu_slice::{Memory, Slice, with_f32_slice, with_f32_slices};
pub use cpu_slice::{with_slice, with_slices};
#[cfg(feature = "cuda")]
pub(crate) use cuda_tensor::{CudaElement, CudaView, for_cuda_element, optional_address, tensor_from_cuda};
pub use dtype::compute_dtype;
pub use freeze::ShareWeights;
pub(crate) use freeze::same_elements;
pub use freeze::{Freeze, Frozen, MapTensors};
pub use metal_device::metal_device;
pub(crate) use select::bias_from_table;
pub(crate) use select::broadcast_rows;
pub(crate) use select::select;

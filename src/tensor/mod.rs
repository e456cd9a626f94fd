//! Helpers over candle tensors: the memory of a CPU tensor as a slice, dispatch on the dtype, selection, broadcasting.
//!
//! Public is what a model around the layer needs: [`Freeze`] and [`ShareWeights`] for its frozen copies and for copies
//! with other adapters, both over the tensors that [`MapTensors`] visits, and [`with_slices`].
//!
//! The kernels of this crate read slices and the rest of the crate holds [`Tensor`](candle_core::Tensor)s. The
//! conversion between both is here, once, and by reference: copying every input of a kernel into a `Vec` would be
//! simpler and would cost more than some of the kernels.

mod check;
mod computed;
mod cpu_slice;
#[cfg(feature = "cuda")]
mod cuda_tensor;
mod dtype;
mod freeze;
mod int8_heads;
mod metal_device;
#[cfg(test)]
pub mod random;
mod select;

pub(crate) use candle_attention_kernels::{check_allocation, element_count, try_reserve, zeros};
pub(crate) use check::{
    check_float, check_shape, check_tensor_memory, last_dim_contiguous, same_device, same_dtype_and_device,
};
pub(crate) use computed::computed;
pub use cpu_slice::with_slices;
pub(crate) use cpu_slice::{Memory, Slice, with_f32_slice, with_f32_slices, with_slice};
#[cfg(feature = "cuda")]
pub(crate) use cuda_tensor::{CudaElement, CudaView, for_cuda_element, optional_address, tensor_from_cuda};
pub use dtype::compute_dtype;
pub(crate) use dtype::for_cpu_element;
pub(crate) use freeze::same_elements;
pub use freeze::{Freeze, Frozen, MapTensors, ShareWeights};
pub(crate) use int8_heads::{is_int8, quantize_heads, wide};
pub use metal_device::metal_device;
pub(crate) use select::{bias_from_table, broadcast_rows, select};

//! CUDA memory of tensors: addresses and strides for kernels, and tensors made of what kernels wrote.

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, SyncOnDrop};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Layout, Shape, Storage, StorageRef, Tensor, WithDType};
use half::{bf16, f16};

use crate::error::{Error, Result};

/// An element type that the CUDA kernels compute with.
pub trait CudaElement: CudaDType + DeviceRepr + WithDType {}
impl CudaElement for f32 {}
impl CudaElement for f16 {}
impl CudaElement for bf16 {}

/// `for_cuda_element!(dtype, T => expression)` evaluates the expression, a [`Result`], with `T` as the element type
/// that the CUDA kernels use for the dtype: `f32`, `f16` or `bf16`.
macro_rules! for_cuda_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $element = f32;
                $body
            }
            candle_core::DType::F16 => {
                type $element = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $element = half::bf16;
                $body
            }
            other => Err(crate::error::Error::dtype("a tensor for a CUDA kernel", other, "f32, f16 or bf16")),
        }
    };
}
pub(crate) use for_cuda_element;

/// The memory of a CUDA tensor, locked for reading.
pub struct CudaView<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> CudaView<'a> {
    pub fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { storage, layout }
    }

    /// Address of the first element, and a guard that orders the read on the stream when it is dropped.
    pub fn address<'s, T: CudaDType + DeviceRepr + 'static>(
        &'s self,
        stream: &'s CudaStream,
    ) -> Result<(u64, SyncOnDrop<'s>)> {
        match &*self.storage {
            Storage::Cuda(storage) => {
                let (address, guard) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
                Ok((address + (self.layout.start_offset() * size_of::<T>()) as u64, guard))
            }
            other => {
                let found = format!("{:?}", other.device().location());
                Err(Error::Device {
                    tensor: "a tensor for a CUDA kernel".into(),
                    found,
                    expected: "an NVIDIA GPU".into(),
                })
            }
        }
    }

    /// Strides of the first `N` dimensions, in elements; 0 for dimensions of size 1.
    pub fn strides<const N: usize>(&self) -> [i64; N] {
        let mut strides = self.layout.dims().iter().zip(self.layout.stride());
        std::array::from_fn(|_| strides.next().map_or(0, |(size, stride)| if *size == 1 { 0 } else { *stride as i64 }))
    }
}

/// [`CudaView::address`] of an optional tensor; the null address for `None`.
pub fn optional_address<'s, T: CudaDType + DeviceRepr + 'static>(
    view: Option<&'s CudaView>,
    stream: &'s CudaStream,
) -> Result<(u64, Option<SyncOnDrop<'s>>)> {
    Ok(match view.map(|view| view.address::<T>(stream)).transpose()? {
        Some((address, guard)) => (address, Some(guard)),
        None => (0, None),
    })
}

/// A tensor that owns memory written by a kernel.
pub fn tensor_from_cuda<T: CudaDType>(slice: CudaSlice<T>, device: &CudaDevice, shape: impl Into<Shape>) -> Tensor {
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.clone()));
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

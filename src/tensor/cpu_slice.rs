//! The elements of a CPU tensor as a slice, without a copy.

use std::marker::PhantomData;
use std::ops::Deref;

use candle_core::{CpuStorage, DType, Layout, Storage, Tensor, WithDType};

use crate::error::{Error, Result};

/// A read lock on the memory of a CPU tensor of element type `T`.
pub(crate) struct Slice<'a, T> {
    storage: Box<dyn Deref<Target = Storage> + 'a>,
    layout: &'a Layout,
    element: PhantomData<T>,
}

impl<'a, T: WithDType> Slice<'a, T> {
    /// Locks the memory of `tensor`; an error if the tensor is not on the CPU or its elements are no `T`.
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let slice = Self { storage: Box::new(storage), layout, element: PhantomData };
        slice.checked_data()?;
        Ok(slice)
    }

    fn checked_data(&self) -> Result<&[T]> {
        match &**self.storage {
            Storage::Cpu(storage) => Ok(&CpuStorage::as_slice::<T>(storage)?[self.layout.start_offset()..]),
            _ => Err(Error::Device { tensor: "a tensor".into(), found: "a GPU".into(), expected: "the CPU".into() }),
        }
    }

    /// From the tensor's first element to the end of its memory.
    pub(crate) fn data(&self) -> &[T] {
        self.checked_data().expect("`new` has checked the device and the dtype")
    }

    /// The strides in elements; 0 for a dimension of size 1, so that it broadcasts.
    pub(crate) fn strides<const N: usize>(&self) -> [usize; N] {
        let dims = self.layout.dims().iter().zip(self.layout.stride());
        let mut strides = dims.map(|(&size, &stride)| if size == 1 { 0 } else { stride });
        std::array::from_fn(|_| strides.next().unwrap_or(0))
    }
}

/// Calls `f` with the elements of a CPU tensor of element type `T`, in row-major order.
pub(crate) fn with_slice<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let slice = Slice::<T>::new(&tensor)?;
    Ok(f(&slice.data()[..tensor.elem_count()]))
}

/// Calls `f` with the elements of a CPU tensor of any dtype, converted to f32, in row-major order.
pub(crate) fn with_f32_slice<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    with_slice(&tensor.to_dtype(DType::F32)?, f)
}

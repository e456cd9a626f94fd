//! The numbers of a CPU tensor, without a copy.

use std::ops::Deref;

use candle_core::{CpuStorage, DType, Layout, Storage, Tensor, WithDType};

use crate::error::{Error, Result};

/// A CPU tensor's numbers, read-locked, and where in them it lies.
pub(crate) struct Slice<'a, T> {
    storage: Box<dyn Deref<Target = Storage> + 'a>,
    layout: &'a Layout,
    numbers: std::marker::PhantomData<T>,
}

impl<'a, T: WithDType> Slice<'a, T> {
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let slice = Self { storage: Box::new(storage), layout, numbers: std::marker::PhantomData };
        slice.checked()?;
        Ok(slice)
    }

    fn checked(&self) -> Result<&[T]> {
        match &**self.storage {
            Storage::Cpu(storage) => Ok(&CpuStorage::as_slice::<T>(storage)?[self.layout.start_offset()..]),
            _ => Err(Error::Device { tensor: "a tensor".into(), found: "a GPU".into(), expected: "the CPU".into() }),
        }
    }

    /// From the tensor's first number to the end of its memory.
    pub(crate) fn data(&self) -> &[T] {
        // `new` has seen that it is one.
        self.checked().unwrap_or(&[])
    }

    /// The strides, 0 where there is one for all.
    pub(crate) fn strides<const N: usize>(&self) -> [usize; N] {
        let dims = self.layout.dims().iter().zip(self.layout.stride());
        let mut strides = dims.map(|(&size, &stride)| if size == 1 { 0 } else { stride });
        std::array::from_fn(|_| strides.next().unwrap_or(0))
    }
}

/// Calls `f` with the numbers of a CPU tensor of type `T`, one after the other.
pub(crate) fn with_slice<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let slice = Slice::<T>::new(&tensor)?;
    Ok(f(&slice.data()[..tensor.elem_count()]))
}

/// As [`with_slice`], converted to f32.
pub(crate) fn with_f32_slice<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    with_slice(&tensor.to_dtype(DType::F32)?, f)
}

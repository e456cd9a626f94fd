//! The elements of a CPU tensor as a slice, without a copy.
//!
//! Candle guards the memory of a tensor, which all of its views share, by a read-write lock. A thread that reads
//! several tensors must not wait for one of them while it holds another: a writer of another thread (`slice_set`,
//! `Var::set`) may wait in between, for the same memory if both tensors are views of it, and new readers queue behind
//! it, so that both threads wait for ever. So the locks are looked up first ([`Memory`]), each for itself, and then all
//! are taken in the way that does not queue behind a waiting writer.

use std::marker::PhantomData;

use candle_attention_kernels::{check_allocation, element_count};
use candle_core::{CpuStorage, DType, Layout, Storage, StorageRef, Tensor, WithDType};

use crate::error::{Error, Result};

/// The memory of a CPU tensor, which is not locked yet. Where several are read at the same time, make all of them
/// before the first is locked.
pub struct Memory<'a> {
    lock: Box<dyn Fn() -> StorageRef<'a> + 'a>,
    layout: &'a Layout,
}

impl<'a> Memory<'a> {
    pub fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        let lock = StorageRef::rwlock(&storage);
        Self { lock: Box::new(move || lock.read_recursive()), layout }
    }

    /// Locks the memory; an error if the tensor is not on the CPU or its elements are no `T`.
    pub fn lock<T: WithDType>(&self) -> Result<Slice<'a, T>> {
        let slice = Slice { storage: (self.lock)(), layout: self.layout, element: PhantomData };
        slice.checked_data()?;
        Ok(slice)
    }
}

/// A read lock on the memory of a CPU tensor of element type `T`.
pub struct Slice<'a, T> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
    element: PhantomData<T>,
}

impl<T: WithDType> Slice<'_, T> {
    fn checked_data(&self) -> Result<&[T]> {
        match &*self.storage {
            // A view without elements may start after the end of its memory.
            Storage::Cpu(storage) => {
                Ok(CpuStorage::as_slice::<T>(storage)?.get(self.layout.start_offset()..).unwrap_or(&[]))
            }
            _ => Err(Error::Device { tensor: "a tensor".into(), found: "a GPU".into(), expected: "the CPU".into() }),
        }
    }

    /// From the tensor's first element to the end of its memory.
    pub fn data(&self) -> &[T] {
        self.checked_data().expect("`lock` has checked the device and the dtype")
    }

    /// The strides in elements; 0 for a dimension of size 1, so that it broadcasts.
    pub fn strides<const N: usize>(&self) -> [usize; N] {
        let dims = self.layout.dims().iter().zip(self.layout.stride());
        let mut strides = dims.map(|(&size, &stride)| if size == 1 { 0 } else { stride });
        std::array::from_fn(|_| strides.next().unwrap_or(0))
    }
}

/// Calls `f` with the elements of a CPU tensor of element type `T`, in row-major order. `f` must not read other tensors
/// by way of this file.
pub fn with_slice<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    with_slices([tensor], |[data]| f(data))
}

/// Calls `f` with the elements of CPU tensors of element type `T`, each in row-major order. `f` must not lock the
/// storage of another tensor.
///
/// # Errors
/// A tensor is not on the CPU or has another dtype, or memory cannot hold the copy of one that is not contiguous.
pub fn with_slices<T: WithDType, R, const N: usize>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[T]; N]) -> R,
) -> Result<R> {
    let (mut f, mut result) = (Some(f), None);
    call_with_slices(&tensors, &mut |data| result = f.take().map(|f| f(std::array::from_fn(|i| data[i]))))?;
    Ok(result.expect("it calls what it is given"))
}

/// Compiled once per element type, whatever is called.
fn call_with_slices<T: WithDType>(tensors: &[&Tensor], f: &mut dyn FnMut(&[&[T]])) -> Result<()> {
    let contiguous = contiguous(tensors, check_allocation::<T>)?;
    let memory: Vec<_> = contiguous.iter().map(Memory::new).collect();
    let slices = memory.iter().map(Memory::lock::<T>).collect::<Result<Vec<_>>>()?;
    let data = slices.iter().zip(&contiguous).map(|(slice, tensor)| &slice.data()[..tensor.elem_count()]);
    f(&data.collect::<Vec<_>>());
    Ok(())
}

/// The tensors in row-major order; an error if a copy that is needed for that does not fit into memory, by `check`.
fn contiguous(
    tensors: &[&Tensor],
    check: fn(&str, usize) -> candle_attention_kernels::Result<()>,
) -> Result<Vec<Tensor>> {
    let contiguous = |tensor: &&Tensor| {
        let count = element_count("a tensor", tensor.dims())?;
        if count > 0 && !tensor.is_contiguous() {
            check("a copy of a tensor", count)?;
        }
        Ok(tensor.contiguous()?)
    };
    tensors.iter().map(contiguous).collect()
}

/// Calls `f` with the elements of a CPU tensor of any dtype, converted to f32, in row-major order.
pub fn with_f32_slice<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    with_f32_slices([tensor], |[data]| f(data))
}

/// [`with_f32_slice`] of several tensors at once.
pub fn with_f32_slices<R, const N: usize>(tensors: [&Tensor; N], f: impl FnOnce([&[f32]; N]) -> R) -> Result<R> {
    let converted = in_f32(&tensors)?;
    with_slices(std::array::from_fn::<_, N, _>(|i| &converted[i]), f)
}

fn in_f32(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let convert = |tensor: &&Tensor| {
        let count = element_count("a tensor", tensor.dims())?;
        if tensor.dtype() != DType::F32 {
            check_allocation::<f32>("an f32 copy of a tensor", count)?;
        }
        Ok(tensor.to_dtype(DType::F32)?)
    };
    tensors.iter().map(convert).collect()
}

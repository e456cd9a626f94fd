//! What kernels are told of tensors and of the device.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::sys::{CUdevice_attribute as Attribute, CUstreamCaptureStatus};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, SyncOnDrop};
use candle_core::cuda_backend::{CudaDType, DeviceId, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Layout, Shape, Storage, StorageRef, Tensor, WithDType};
use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::kernels::cuda::Gpu;

/// A type of numbers that the kernels know.
pub(super) trait Number: CudaDType + DeviceRepr + WithDType {}
impl Number for f32 {}
impl Number for f16 {}
impl Number for bf16 {}

/// Calls a function that is generic over a [`Number`] for the one that a tensor has.
macro_rules! for_number_of {
    ($tensor:expr, $function:ident($($argument:expr),*)) => {
        match $tensor.dtype() {
            candle_core::DType::F32 => $function::<f32>($($argument),*),
            candle_core::DType::F16 => $function::<half::f16>($($argument),*),
            candle_core::DType::BF16 => $function::<half::bf16>($($argument),*),
            other => Err(crate::error::Error::dtype("a tensor", other, "f32, f16 or bf16")),
        }
    };
}
pub(super) use for_number_of;

/// Whether rows of `size` numbers at these addresses, some 0, and so many numbers apart can be read 16 bytes at a time.
pub(super) fn aligned<T: Number>(addresses: &[u64], strides: &[i64], size: usize) -> bool {
    let per_read = 16 / size_of::<T>();
    let whole = |stride: &i64| stride.unsigned_abs().is_multiple_of(per_read as u64);
    addresses.iter().all(|at| at.is_multiple_of(16)) && strides.iter().all(whole) && size.is_multiple_of(per_read)
}

/// A tensor's memory, locked for reading.
pub(super) struct Held<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> Held<'a> {
    pub fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { storage, layout }
    }

    /// Where its first number is, and what tells the stream that it is read.
    pub fn address<'s, T: CudaDType + DeviceRepr + 'static>(
        &'s self,
        stream: &'s CudaStream,
    ) -> Result<(u64, SyncOnDrop<'s>)> {
        match &*self.storage {
            Storage::Cuda(storage) => {
                let (at, guard) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
                Ok((at + (self.layout.start_offset() * size_of::<T>()) as u64, guard))
            }
            other => {
                let found = format!("{:?}", other.device().location());
                Err(Error::Device { tensor: "a tensor".into(), found, expected: "an NVIDIA GPU".into() })
            }
        }
    }

    /// The strides, 0 where there is one for all.
    pub fn strides<const N: usize>(&self) -> [i64; N] {
        let mut strides = self.layout.dims().iter().zip(self.layout.stride());
        std::array::from_fn(|_| strides.next().map_or(0, |(size, stride)| if *size == 1 { 0 } else { *stride as i64 }))
    }
}

pub(super) fn optional<'s, T: CudaDType + DeviceRepr + 'static>(
    held: Option<&'s Held>,
    stream: &'s CudaStream,
) -> Result<(u64, Option<SyncOnDrop<'s>>)> {
    Ok(match held.map(|held| held.address::<T>(stream)).transpose()? {
        Some((at, guard)) => (at, Some(guard)),
        None => (0, None),
    })
}

/// The tensor of what a kernel has written.
pub(super) fn of_slice<T: CudaDType>(slice: CudaSlice<T>, device: &CudaDevice, shape: impl Into<Shape>) -> Tensor {
    let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.clone()));
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// Small arrays that travel to the device together.
#[derive(Default)]
pub(super) struct Uploads(Vec<i32>);

impl Uploads {
    /// Where the array begins, if there is one.
    pub fn add(&mut self, numbers: Option<Vec<i32>>) -> Option<usize> {
        let start = self.0.len();
        self.0.extend(numbers?);
        Some(start)
    }

    /// On the device, `None` if there is nothing.
    pub fn upload(self, device: &CudaDevice) -> Result<Option<Rc<CudaSlice<i32>>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        // A graph that is recorded must not hold an address that is given back one day.
        if capturing(device)? {
            return Ok(Some(Rc::new(device.clone_htod(&self.0)?)));
        }
        LAST.with_borrow_mut(|last| {
            let last = last.entry(device.id()).or_default();
            if let Some(sent) = last.iter().find(|sent| sent.numbers == self.0) {
                return Ok(Some(sent.there.clone()));
            }
            let there = Rc::new(device.clone_htod(&self.0)?);
            last.push_front(Sent { device: device.clone(), numbers: self.0, there: there.clone() });
            last.truncate(KEPT);
            Ok(Some(there))
        })
    }
}

thread_local! {
    /// What was sent last to each device: the layers of a model ask for the same, one after the other. Of each thread for
    /// itself, since each has a stream of its own, in whose order memory is written, read and given back.
    static LAST: RefCell<HashMap<DeviceId, VecDeque<Sent>>> = RefCell::default();
}

const KEPT: usize = 8;

struct Sent {
    device: CudaDevice,
    numbers: Vec<i32>,
    there: Rc<CudaSlice<i32>>,
}

impl Drop for Sent {
    fn drop(&mut self) {
        // The memory goes back to its own device, also when the thread ends with another one at hand; where the driver is
        // gone already there is nothing to give back.
        let _ = self.device.cuda_stream().context().bind_to_thread();
    }
}

/// Whether what this thread asks of the device is recorded for later.
pub(crate) fn capturing(device: &CudaDevice) -> Result<bool> {
    Ok(device.cuda_stream().capture_status().w()? != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// What there is to be known of a device, asked for once: asking takes away an error that an earlier call left behind and
/// that is to be seen where it stops something.
pub(crate) fn gpu(device: &CudaDevice) -> Result<Gpu> {
    static KNOWN: Mutex<BTreeMap<usize, Gpu>> = Mutex::new(BTreeMap::new());
    let stream = device.cuda_stream();
    let ordinal = stream.context().ordinal();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = known.get(&ordinal) {
        return Ok(*gpu);
    }
    let ask = |attribute| Ok::<_, Error>(stream.context().attribute(attribute).w()? as usize);
    let major = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let gpu = Gpu {
        capability: (10 * major + minor) as u32,
        multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_memory: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    };
    known.insert(ordinal, gpu);
    Ok(gpu)
}

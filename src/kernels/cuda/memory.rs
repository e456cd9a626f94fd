//! What kernels are told of tensors and of the device.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DeviceRepr, SyncOnDrop};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Layout, Shape, Storage, StorageRef, Tensor};

use crate::error::{Error, Result};
use crate::gpu::Gpu;

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

    /// On the device of a stream, `None` if there is nothing.
    pub fn upload(self, stream: &Arc<CudaStream>) -> Result<Option<Arc<CudaSlice<i32>>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |sent: &Sent| Arc::ptr_eq(&sent.stream, stream) && sent.numbers == self.0;
        if let Some(sent) = last.iter().find(|sent| same(sent)) {
            return Ok(Some(sent.there.clone()));
        }
        let there = Arc::new(stream.clone_htod(&self.0).w()?);
        last.push_front(Sent { stream: stream.clone(), numbers: self.0, there: there.clone() });
        last.truncate(KEPT);
        Ok(Some(there))
    }
}

/// What was sent last: the layers of a model ask for the same, one after the other.
static LAST: Mutex<VecDeque<Sent>> = Mutex::new(VecDeque::new());

const KEPT: usize = 8;

struct Sent {
    stream: Arc<CudaStream>,
    numbers: Vec<i32>,
    there: Arc<CudaSlice<i32>>,
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

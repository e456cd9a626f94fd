//! Small host arrays for kernels, uploaded together and cached per thread.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use candle_core::CudaDevice;
use candle_core::cuda_backend::DeviceId;
use candle_core::cuda_backend::cudarc::driver::CudaSlice;

use super::device::capturing;
use crate::error::Result;

/// Arrays that are copied to the device in one transfer.
#[derive(Default)]
pub(crate) struct Uploads(Vec<i32>);

impl Uploads {
    /// Appends an array; the index where it starts, `None` if there is none.
    pub(crate) fn add(&mut self, array: Option<Vec<i32>>) -> Option<usize> {
        let start = self.0.len();
        self.0.extend(array?);
        Some(start)
    }

    /// Copies the arrays to the device; `None` if nothing was added.
    pub(crate) fn upload(self, device: &CudaDevice) -> Result<Option<Rc<CudaSlice<i32>>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        // A recorded graph must not hold an address that the cache frees later.
        if capturing(device)? {
            return Ok(Some(Rc::new(device.clone_htod(&self.0)?)));
        }
        CACHE.with_borrow_mut(|cache| {
            let cache = cache.entry(device.id()).or_default();
            if let Some(cached) = cache.iter().find(|cached| cached.values == self.0) {
                return Ok(Some(cached.memory.clone()));
            }
            let memory = Rc::new(device.clone_htod(&self.0)?);
            cache.push_front(Cached { device: device.clone(), values: self.0, memory: memory.clone() });
            cache.truncate(CACHED_PER_DEVICE);
            Ok(Some(memory))
        })
    }
}

thread_local! {
    /// The latest uploads to each device, because the layers of a model ask for the same arrays one after another. The
    /// cache is per thread, because each thread has a stream of its own, in whose order memory is written, read and
    /// freed.
    static CACHE: RefCell<HashMap<DeviceId, VecDeque<Cached>>> = RefCell::default();
}

const CACHED_PER_DEVICE: usize = 8;

struct Cached {
    device: CudaDevice,
    values: Vec<i32>,
    memory: Rc<CudaSlice<i32>>,
}

impl Drop for Cached {
    fn drop(&mut self) {
        // The memory is freed on its own device, also if the thread ends while another device is current. If the driver
        // has shut down already, there is nothing left to free and the error does not matter.
        let _ = self.device.cuda_stream().context().bind_to_thread();
    }
}

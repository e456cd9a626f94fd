//! Cosines and sines of rotary positions, kept for all layers and calls that rotate alike.
//!
//! Computing them for a thousand positions takes longer than the attention itself on a GPU.

use std::any::Any;
use std::cell::RefCell;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;

/// How a table may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Rows are positions 0, 1, …: a larger table serves shorter sequences, too.
    PowerOfTwo,
    /// The table is for exactly these rows.
    Exact,
}

struct Table {
    /// The scheme, and what else the rows depend on.
    key: Box<dyn Any>,
    head_dim: usize,
    dtype: DType,
    device: Device,
    rows: usize,
    /// `(rows, pairs)` each.
    cos_sin: [Tensor; 2],
}

#[cfg(feature = "cuda")]
impl Drop for Table {
    fn drop(&mut self) {
        if let Device::Cuda(device) = &self.device {
            // The memory returns to its own device even if the thread ends while another device is current.
            let _ = device.cuda_stream().context().bind_to_thread();
        }
    }
}

thread_local! {
    /// The most recently used first. One list per thread, because on NVIDIA GPUs each thread has a stream of its own,
    /// and memory is written, read and freed in the order of that stream.
    static TABLES: RefCell<Vec<Table>> = const { RefCell::new(Vec::new()) };
}

/// Tables kept per device.
const MAX_TABLES: usize = 4;
/// Elements of the largest table that is kept: 16,384 positions of heads of 128.
const MAX_ELEMENTS: usize = 1 << 20;

/// Whether a table of so many rows may be kept.
pub(crate) fn may_cache(rows: usize, head_dim: usize, device: &Device) -> Result<bool> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        // A CUDA graph that is being captured must not hold an address that may be freed later.
        return Ok(rows * head_dim / 2 <= MAX_ELEMENTS && !crate::kernels::cuda::capturing(device)?);
    }
    let _ = device;
    Ok(rows * head_dim / 2 <= MAX_ELEMENTS)
}

/// Cosines and sines `(rows, pairs)` of at least `rows` rows, which [`may_cache`] allows. `make` computes them for any
/// number of rows.
pub(crate) fn cos_sin<K: Clone + PartialEq + 'static>(
    key: &K,
    growth: Growth,
    head_dim: usize,
    rows: usize,
    dtype: DType,
    device: &Device,
    make: impl FnOnce(usize) -> Result<[Vec<f64>; 2]>,
) -> Result<[Tensor; 2]> {
    TABLES.with_borrow_mut(|tables| {
        let old = tables.iter().position(|table| {
            let same = table.device.same_device(device) && (table.head_dim, table.dtype) == (head_dim, dtype);
            same && table.key.downcast_ref::<K>() == Some(key)
        });
        if let Some(i) = old.filter(|i| tables[*i].rows >= rows) {
            tables[..=i].rotate_right(1);
            return Ok(tables[0].cos_sin.clone());
        }
        let rows = match growth {
            // Sequences that grow token by token make a new table only a few times.
            Growth::PowerOfTwo => rows.next_power_of_two().min(MAX_ELEMENTS / (head_dim / 2).max(1)),
            Growth::Exact => rows,
        };
        let cos_sin = tensors(make(rows)?, rows, dtype, device)?;
        // Tables are freed in the order of the device from which memory was just requested.
        old.map(|i| tables.remove(i));
        let table = Table { key: Box::new(key.clone()), head_dim, dtype, device: device.clone(), rows, cos_sin };
        let cos_sin = table.cos_sin.clone();
        tables.insert(0, table);
        let mut on_device = 0;
        tables.retain(|table| {
            let here = table.device.same_device(device);
            on_device += usize::from(here);
            !here || on_device <= MAX_TABLES
        });
        Ok(cos_sin)
    })
}

/// Cosines and sines of `rows` rows as tensors `(rows, pairs)`.
pub(crate) fn tensors(cos_sin: [Vec<f64>; 2], rows: usize, dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
    let tensor = |values: Vec<f64>| {
        let pairs = values.len() / rows.max(1);
        Tensor::from_vec(values, (rows, pairs), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    };
    let [cos, sin] = cos_sin.map(tensor);
    Ok([cos?, sin?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_sizes_and_number_are_bounded() {
        let make = |rows: usize| Ok([vec![1.0; rows * 4], vec![0.0; rows * 4]]);
        let of = |key: i32, rows| {
            let made = cos_sin(&key, Growth::PowerOfTwo, 8, rows, DType::F32, &Device::Cpu, make).unwrap();
            made[0].dim(0).unwrap()
        };
        assert_eq!((of(1000, 100), of(1000, 128), of(1000, 3)), (128, 128, 128));
        assert_eq!(of(1000, MAX_ELEMENTS / 4 - 1), MAX_ELEMENTS / 4, "never more than the largest");
        assert!(may_cache(MAX_ELEMENTS / 4, 8, &Device::Cpu).unwrap());
        assert!(!may_cache(MAX_ELEMENTS / 4 + 1, 8, &Device::Cpu).unwrap());
        (0..10).for_each(|i| assert_eq!(of(2000 + i, 3), 4));
        TABLES.with_borrow(|tables| {
            assert_eq!(tables.len(), MAX_TABLES);
            assert_eq!(tables[0].key.downcast_ref::<i32>(), Some(&2009));
        });
    }
}

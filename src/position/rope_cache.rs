//! Cosines and sines made once, for all layers and calls that turn alike: of a thousand positions they take longer than the
//! attention of a GPU.

use std::cell::RefCell;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::position::{Rotary, RotaryGrid};

/// What a table's rows are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// Positions from 0 on.
    Positions(Rotary),
    /// The tokens of an image, with the rows and columns that a call gives.
    Patches(RotaryGrid, Option<[usize; 2]>, usize),
}

struct Table {
    kind: Kind,
    head_dim: usize,
    dtype: DType,
    device: Device,
    rows: usize,
    /// `(rows, pairs)` each.
    waves: [Tensor; 2],
}

impl Table {
    fn fits(&self, kind: &Kind, head_dim: usize, dtype: DType) -> bool {
        self.kind == *kind && (self.head_dim, self.dtype) == (head_dim, dtype)
    }
}

#[cfg(feature = "cuda")]
impl Drop for Table {
    fn drop(&mut self) {
        if let Device::Cuda(device) = &self.device {
            // The memory goes back to its own device, also when the thread ends with another one at hand.
            let _ = device.cuda_stream().context().bind_to_thread();
        }
    }
}

thread_local! {
    /// Those used last come first. Of each thread for itself: on NVIDIA GPUs each has a stream of its own, in whose order
    /// memory is written, read and given back.
    static TABLES: RefCell<Vec<Table>> = const { RefCell::new(Vec::new()) };
}

/// Tables kept for a device.
const KEPT: usize = 4;
/// Numbers of the largest table that is kept: 16,384 positions of heads of 128.
const LARGEST: usize = 1 << 20;

/// Whether so many rows are kept.
pub(crate) fn are_kept(rows: usize, head_dim: usize, device: &Device) -> Result<bool> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        // A graph that is recorded must not hold an address that is given back one day.
        return Ok(rows * head_dim / 2 <= LARGEST && !crate::kernels::cuda::capturing(device)?);
    }
    let _ = device;
    Ok(rows * head_dim / 2 <= LARGEST)
}

/// Cosines and sines `(rows, pairs)` of at least so many rows as are asked for, which [`are_kept`]. `make` makes those of any
/// number of rows.
pub(crate) fn waves(
    kind: &Kind,
    head_dim: usize,
    rows: usize,
    dtype: DType,
    device: &Device,
    make: impl FnOnce(usize) -> Result<[Vec<f64>; 2]>,
) -> Result<[Tensor; 2]> {
    TABLES.with_borrow_mut(|tables| {
        let found = |table: &Table| table.device.same_device(device) && table.fits(kind, head_dim, dtype);
        let old = tables.iter().position(found);
        if let Some(i) = old.filter(|i| tables[*i].rows >= rows) {
            tables[..=i].rotate_right(1);
            return Ok(tables[0].waves.clone());
        }
        // Growing texts make a table a few times only.
        let rows = match kind {
            Kind::Positions(_) => rows.next_power_of_two().min(LARGEST / (head_dim / 2).max(1)),
            Kind::Patches(..) => rows,
        };
        let waves = tensors(make(rows)?, rows, dtype, device)?;
        // What goes now goes in the order of the device that has just been asked for memory.
        old.map(|i| tables.remove(i));
        let (kind, device) = (kind.clone(), device.clone());
        tables.insert(0, Table { kind, head_dim, dtype, device, rows, waves: waves.clone() });
        let mut of_device = 0;
        tables.retain(|table| {
            let here = table.device.same_device(waves[0].device());
            of_device += usize::from(here);
            !here || of_device <= KEPT
        });
        Ok(waves)
    })
}

/// Cosines and sines of some rows as tensors `(rows, pairs)`.
pub(crate) fn tensors(waves: [Vec<f64>; 2], rows: usize, dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
    let tensor = |wave: Vec<f64>| {
        let pairs = wave.len() / rows.max(1);
        Tensor::from_vec(wave, (rows, pairs), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    };
    let [cos, sin] = waves.map(tensor);
    Ok([cos?, sin?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::RotaryScaling;

    fn numbers(tensor: &Tensor) -> Vec<f64> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn what_is_kept_is_what_would_be_made() {
        let cpu = Device::Cpu;
        let plain = Rotary::default();
        let all = [
            plain.clone(),
            plain.clone().with_dim(6),
            plain.clone().with_theta(500.0),
            plain.clone().with_scaling(RotaryScaling::Linear { factor: 2.0 }),
            plain.clone().with_scaling(RotaryScaling::Dynamic { factor: 2.0, original_max_position_embeddings: 8 }),
        ];
        for (starts, s) in [(vec![0], 5), (vec![40], 1), (vec![3, 0, 70], 9), (vec![0], 200), (vec![7], 0)] {
            for rotary in &all {
                let length = starts.iter().max().unwrap() + s;
                let positions = starts.iter().flat_map(|start| *start..start + s);
                let want = rotary.waves(positions, 8, length);
                let got = rotary.angles(&starts, s, 8, DType::F64, &cpu).unwrap();
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got.dims(), [starts.len(), s, 1, rotary.dim.unwrap_or(8) / 2]);
                    assert_eq!(numbers(got), *want, "{rotary:?}, {starts:?}, {s}");
                }
                let [half, _] = rotary.angles(&starts, s, 8, DType::BF16, &cpu).unwrap();
                assert_eq!(half.dtype(), DType::BF16);
            }
        }
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let make = |rows: usize| Ok([vec![1.0; rows * 4], vec![0.0; rows * 4]]);
        let of = |theta: f64, rows| {
            let kind = Kind::Positions(Rotary::default().with_theta(theta));
            waves(&kind, 8, rows, DType::F32, &Device::Cpu, make).unwrap()[0].dim(0).unwrap()
        };
        assert_eq!((of(1e3, 100), of(1e3, 128), of(1e3, 3)), (128, 128, 128));
        assert_eq!(of(1e3, LARGEST / 4 - 1), LARGEST / 4, "never more than the largest");
        assert!(are_kept(LARGEST / 4, 8, &Device::Cpu).unwrap());
        assert!(!are_kept(LARGEST / 4 + 1, 8, &Device::Cpu).unwrap());
        (0..10).for_each(|i| assert_eq!(of(2e3 + f64::from(i), 3), 4));
        TABLES.with_borrow(|tables| {
            assert_eq!(tables.len(), KEPT);
            assert!(tables[0].kind == Kind::Positions(Rotary::default().with_theta(2e3 + 9.0)));
        });
    }

    /// A step far into a text makes the angles of its own tokens alone.
    #[test]
    fn far_positions_are_made_as_they_are_asked_for() {
        let rotary = Rotary::default();
        let got = rotary.angles(&[LARGEST, 5], 2, 8, DType::F64, &Device::Cpu).unwrap();
        let want = rotary.waves([LARGEST, LARGEST + 1, 5, 6].into_iter(), 8, LARGEST + 2);
        assert_eq!(numbers(&got[0]), want[0]);
        assert_eq!(numbers(&got[1]), want[1]);
    }
}

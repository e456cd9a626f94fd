//! Cosines and sines made once, for all layers and calls that turn alike: of a thousand positions they take longer than the
//! attention of a GPU.

use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};

use super::{Rotary, RotaryGrid};
use crate::error::Result;

/// What a table's rows are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Positions from 0 on.
    Positions(Rotary),
    /// The tokens of an image, with the rows and columns that a call gives.
    Patches(RotaryGrid, Option<[usize; 2]>, usize),
}

struct Table {
    kind: Kind,
    head_dim: usize,
    dtype: DType,
    rows: usize,
    /// `(rows, pairs)` each.
    waves: [Tensor; 2],
}

/// Those used last come first.
static TABLES: Mutex<Vec<Table>> = Mutex::new(Vec::new());

/// Tables kept.
const KEPT: usize = 4;
/// Numbers of the largest table that is kept.
const LARGEST: usize = 1 << 22;

/// Cosines and sines `(rows, pairs)`, of at least so many rows as are asked for, or exactly so many where they are too many
/// to be kept. `make` makes those of any number of rows.
pub(super) fn waves(
    kind: &Kind,
    head_dim: usize,
    rows: usize,
    dtype: DType,
    device: &Device,
    make: impl FnOnce(usize) -> Result<[Vec<f64>; 2]>,
) -> Result<[Tensor; 2]> {
    let tensors = |rows: usize, waves: [Vec<f64>; 2]| {
        let tensor = |wave: Vec<f64>| {
            let pairs = wave.len() / rows.max(1);
            Tensor::from_vec(wave, (rows, pairs), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
        };
        let [cos, sin] = waves.map(tensor);
        Ok([cos?, sin?])
    };
    if rows * head_dim / 2 > LARGEST {
        return tensors(rows, make(rows)?);
    }
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |table: &Table| {
        table.kind == *kind
            && (table.head_dim, table.dtype) == (head_dim, dtype)
            && table.waves[0].device().same_device(device)
    };
    let found = tables.iter().position(fits).map(|i| tables.remove(i)).filter(|table| table.rows >= rows);
    let table = match found {
        Some(table) => table,
        None => {
            // Growing texts make a table a few times only.
            let rows = match kind {
                Kind::Positions(_) => rows.next_power_of_two().min(LARGEST / (head_dim / 2).max(1)),
                Kind::Patches(..) => rows,
            };
            Table { kind: kind.clone(), head_dim, dtype, rows, waves: tensors(rows, make(rows)?)? }
        }
    };
    let waves = table.waves.clone();
    tables.insert(0, table);
    tables.truncate(KEPT);
    Ok(waves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::RotaryScaling;

    fn numbers(tensor: &Tensor) -> Vec<f64> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Tables are shared by tests that run at the same time: what is kept may go at any moment, what is given may not change.
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
        assert_eq!((of(1e3, 100), of(1e3, 128)), (128, 128));
        assert_eq!(of(1e3, LARGEST / 4 + 1), LARGEST / 4 + 1, "as many as are asked for, not kept");
        assert_eq!(of(1e3, LARGEST / 4 - 1), LARGEST / 4, "never more than the largest");
        (0..10).for_each(|i| assert_eq!(of(2e3 + f64::from(i), 3), 4));
        assert!(TABLES.lock().unwrap().len() <= KEPT);
    }
}

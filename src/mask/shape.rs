//! The sizes of an attention call, and checks of masks against them.

use candle_core::{DType, Device, Tensor};

use crate::ensure;
use crate::error::{Error, Result};
use crate::tensor::{check_allocation, element_count};

/// The sizes of one attention call: batch, query heads, queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttnShape {
    pub b: usize,
    pub h: usize,
    pub s_q: usize,
    pub s_kv: usize,
}

impl AttnShape {
    /// The shape of the scores.
    pub(crate) fn dims(self) -> [usize; 4] {
        [self.b, self.h, self.s_q, self.s_kv]
    }

    /// Checks that `name` has one entry per sequence.
    pub(crate) fn check_sequences(self, name: &str, found: usize) -> Result<()> {
        let expected = format!("{}, the batch size", self.b);
        ensure!(found == self.b, Error::value(format!("the number of rows in {name}"), found, expected));
        Ok(())
    }

    /// Checks that a sequence has at least `length` keys.
    pub(crate) fn check_length(self, name: String, length: usize) -> Result<()> {
        ensure!(length <= self.s_kv, Error::value(name, length, format!("at most {}, the number of keys", self.s_kv)));
        Ok(())
    }
}

/// Checks that a tensor holds integers.
pub(crate) fn check_integers(name: &str, tensor: &Tensor) -> Result<()> {
    ensure!(tensor.dtype().is_int(), Error::dtype(name, tensor.dtype(), "an integer dtype such as u8"));
    Ok(())
}

/// The tensor in a dtype that every device can compare. GPUs have no operations on i16 and i32, so these become i64, by
/// way of the CPU.
pub(crate) fn comparable(tensor: &Tensor) -> Result<Tensor> {
    let device = tensor.device();
    Ok(match tensor.dtype() {
        DType::I16 | DType::I32 => {
            check_allocation::<i64>("an integer mask", element_count("an integer mask", tensor.dims())?)?;
            tensor.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.to_device(device)?
        }
        _ => tensor.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_that_gpus_cannot_compare_become_i64() {
        let ids = Tensor::new(&[[3i64, 0, 3], [0, 1, 1]], &Device::Cpu).unwrap();
        for (dtype, want) in [(DType::I16, DType::I64), (DType::I32, DType::I64), (DType::U8, DType::U8)] {
            assert_eq!(comparable(&ids.to_dtype(dtype).unwrap()).unwrap().dtype(), want);
        }
    }
}

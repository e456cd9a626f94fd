//! A table of embeddings: a tensor, or rows in few bits.

use std::sync::Arc;

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::tensor::{MapTensors, with_slices};
use candle_attention::{Quantization, Result};
use candle_attention_kernels::{QuantizedRows, element_count, try_reserve};
use candle_core::{DType, Device, Tensor};

/// A table `(rows, width)`, whose rows are looked up.
#[derive(Debug, Clone)]
pub(crate) enum Table {
    Tensor(Tensor),
    /// On the CPU. Rows are f32 when they are read, exactly what their format holds.
    Quantized(Arc<QuantizedRows>, Quantization),
}

impl Table {
    /// Reads the table `name`, in few bits if the source has a format for it that takes its width.
    pub fn load(source: &AnySource, name: &str, [rows, width]: [usize; 2]) -> Result<Self> {
        let Some(format) = source.quantization(name).filter(|format| format.fits(width)) else {
            return Ok(Self::Tensor(source.get(name, &[rows, width])?));
        };
        Ok(Self::Quantized(Arc::new(quantized_rows(source, name, [rows, width], format)?), format))
    }

    pub fn rows(&self) -> usize {
        match self {
            Self::Tensor(table) => table.dims()[0],
            Self::Quantized(rows, _) => rows.rows(),
        }
    }

    pub fn width(&self) -> usize {
        match self {
            Self::Tensor(table) => table.dims()[1],
            Self::Quantized(rows, _) => rows.width(),
        }
    }

    pub fn dtype(&self) -> DType {
        match self {
            Self::Tensor(table) => table.dtype(),
            Self::Quantized(..) => DType::F32,
        }
    }

    pub fn device(&self) -> &Device {
        const CPU: &Device = &Device::Cpu;
        match self {
            Self::Tensor(table) => table.device(),
            Self::Quantized(..) => CPU,
        }
    }

    /// The format, if it has few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        match self {
            Self::Tensor(_) => None,
            Self::Quantized(_, format) => Some(*format),
        }
    }

    /// The rows of `ids` `(n)` u32: `(n, width)`. Ids of a quantized table are checked already.
    pub fn lookup(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Tensor(table) => Ok(table.index_select(ids, 0)?),
            Self::Quantized(rows, _) => with_slices([ids], |[ids]: [&[u32]; 1]| Self::gather(rows, ids))?,
        }
    }

    fn gather(rows: &QuantizedRows, ids: &[u32]) -> Result<Tensor> {
        let shape = (ids.len(), rows.width());
        let size = element_count("rows of a table", &[shape.0, shape.1])?;
        let mut gathered = Vec::new();
        try_reserve("rows of a table", &mut gathered, size)?;
        gathered.resize(size, 0.0f32);
        for (id, to) in ids.iter().zip(gathered.chunks_exact_mut(shape.1.max(1))) {
            rows.row_into(*id as usize, to);
        }
        Ok(Tensor::from_vec(gathered, shape, &Device::Cpu)?)
    }
}

/// Reads a table in few bits, some rows at a time.
pub(crate) fn quantized_rows(
    source: &dyn WeightSource,
    name: &str,
    [rows, width]: [usize; 2],
    format: Quantization,
) -> Result<QuantizedRows> {
    let mut table = QuantizedRows::new(format.weight_format(), rows, width)?;
    source.get_rows(name, [rows, width], &mut |rows| {
        Ok(with_slices([&rows], |[rows]: [&[f32]; 1]| table.push(rows))??)
    })?;
    Ok(table)
}

impl MapTensors for Table {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        match self {
            Self::Tensor(table) => Ok(Self::Tensor(f(table)?)),
            // It cannot change.
            Self::Quantized(..) => Ok(self.clone()),
        }
    }
}

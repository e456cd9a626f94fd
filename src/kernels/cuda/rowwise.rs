//! Row-wise kernels, the CUDA side of `source/rowwise.cuh`: normalization, activation and rotary embedding, one pass
//! each.

use candle_core::DType;

use super::variant::element_id;

/// Strides of the rows of a tensor `(b, s, h, size)`, the struct of `source/rowwise.cuh`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RowStrides {
    /// Strides of b, s and h.
    pub strides: [i64; 3],
    pub s: i32,
    pub h: i32,
}

/// Parameters of `rowwise_norm`, the struct of `source/rowwise.cuh`, which documents each field; so are the structs
/// below. Addresses are device addresses, 0 for null.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct NormParams {
    pub x: u64,
    pub residual: u64,
    pub residual_bias: u64,
    pub weight: u64,
    pub bias: u64,
    pub sum: u64,
    pub out: u64,
    pub row_strides: RowStrides,
    pub rows: i64,
    pub size: i32,
    pub weight_stride: i32,
    pub rms: i32,
    pub weight_offset: f32,
    pub eps: f32,
    pub vectorized: i32,
}

/// Parameters of `rowwise_activation`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ActivationParams {
    pub x: u64,
    pub bias: u64,
    pub gate: u64,
    pub gate_bias: u64,
    pub out: u64,
    pub x_stride: i64,
    pub gate_stride: i64,
    pub rows: i32,
    pub size: i32,
    pub activation: i32,
    pub vectorized: i32,
}

/// Parameters of `rowwise_rotary`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RotaryParams {
    pub x: u64,
    pub cos: u64,
    pub sin: u64,
    pub out: u64,
    pub row_strides: RowStrides,
    pub rows: i64,
    pub batch_offset: i64,
    pub d: i32,
    pub pairs: i32,
    pub interleaved: i32,
}

/// The row-wise kernels for one element type: f32, f16 or bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Rowwise(pub DType);

impl Rowwise {
    pub const THREADS: usize = 256;

    /// Blocks of a launch with one warp per row.
    pub(crate) fn blocks_per_rows(rows: usize) -> usize {
        rows.div_ceil(Self::THREADS / 32)
    }

    /// Blocks of a launch with one thread per vector of 16 bytes, or per element.
    pub(crate) fn blocks_per_elements(self, elements: usize, vectorized: bool) -> usize {
        let per_thread = if vectorized { self.vector_size() } else { 1 };
        (elements / per_thread).div_ceil(Self::THREADS)
    }

    /// Elements in 16 bytes.
    pub(crate) fn vector_size(self) -> usize {
        16 / self.0.size_in_bytes()
    }

    /// Macro definitions for the compiler, `NAME=VALUE`.
    pub(crate) fn definitions(self) -> Vec<String> {
        vec![format!("ELEMENT={}", element_id(self.0)), format!("THREADS={}", Self::THREADS)]
    }

    /// The source of the kernels after `device`, which is `device.cuh` or the emulator.
    pub(crate) fn source(self, device: &str) -> String {
        [device, include_str!("source/element.cuh"), include_str!("source/rowwise.cuh")].join("\n")
    }
}

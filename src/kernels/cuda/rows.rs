//! What lies between products, as `source/rows.cuh` does it: norms, activations and rotations, each in one pass.

use candle_core::DType;

use super::variant::element;

/// Where the rows of a tensor `(b, s, h, size)` are.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Places {
    /// Of b, s and h.
    pub strides: [i64; 3],
    pub s: i32,
    pub h: i32,
}

/// The struct of `source/rows.cuh`, which says what each field is; likewise those below. Addresses are the device's, 0 for
/// null.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct NormParams {
    pub x: u64,
    pub add: u64,
    pub add_bias: u64,
    pub weight: u64,
    pub bias: u64,
    pub sum: u64,
    pub out: u64,
    pub places: Places,
    pub rows: i64,
    pub size: i32,
    pub weight_stride: i32,
    pub rms: i32,
    pub offset: f32,
    pub eps: f32,
    pub aligned: i32,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct ActivateParams {
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
    pub aligned: i32,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RotateParams {
    pub x: u64,
    pub cos: u64,
    pub sin: u64,
    pub out: u64,
    pub places: Places,
    pub rows: i64,
    pub of_b: i64,
    pub d: i32,
    pub pairs: i32,
    pub interleaved: i32,
}

/// The kernels for one element type: f32, f16 or bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Rows(pub DType);

impl Rows {
    pub const THREADS: usize = 256;

    /// Blocks of a launch in which a warp takes a row.
    pub(crate) fn blocks_of_rows(rows: usize) -> usize {
        rows.div_ceil(Self::THREADS / 32)
    }

    /// Blocks of a launch in which a thread takes 16 bytes or, unaligned, a number.
    pub(crate) fn blocks_of_numbers(self, numbers: usize, aligned: bool) -> usize {
        let per_thread = if aligned { self.per_read() } else { 1 };
        (numbers / per_thread).div_ceil(Self::THREADS)
    }

    /// Numbers in 16 bytes.
    pub(crate) fn per_read(self) -> usize {
        16 / self.0.size_in_bytes()
    }

    /// The macros that make the kernels these, `NAME=VALUE`.
    pub(crate) fn definitions(self) -> Vec<String> {
        vec![format!("ELEMENT={}", element(self.0)), format!("THREADS={}", Self::THREADS)]
    }

    /// Their source, on a GPU or on the emulator.
    pub(crate) fn source(self, device: &str) -> String {
        [device, include_str!("source/element.cuh"), include_str!("source/rows.cuh")].join("\n")
    }
}

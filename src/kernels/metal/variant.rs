//! The constants that a kernel is compiled with.

use candle_core::DType;

/// Threadgroup memory for keys and values, in bytes: half of what there is, so that two threadgroups share a core.
const TILE_BYTES: usize = 16 << 10;

/// Queries of a threadgroup: `QUERIES` of the source.
pub(crate) const QUERIES: usize = 32;

/// Threads of a threadgroup: `THREADS` of the source.
#[cfg(feature = "metal")]
pub(crate) const THREADS: usize = 4 * QUERIES;

/// What a kernel is specialized for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub dtype: DType,
    pub d: usize,
    pub d_v: usize,
}

impl Variant {
    /// The source with its constants. `element` is the name of the element type.
    pub fn source(self, element: &str) -> String {
        let Self { d, d_v, .. } = self;
        let constants =
            format!("#define T {element}\n#define D {d}\n#define D_V {d_v}\n#define KEYS {}\n", self.keys());
        constants + include_str!("source/attention.metal")
    }

    /// Metal's name of the element type.
    #[cfg(feature = "metal")]
    pub fn element(self) -> crate::error::Result<&'static str> {
        match self.dtype {
            DType::F32 => Ok("float"),
            DType::F16 => Ok("half"),
            DType::BF16 => Ok("bfloat"),
            other => Err(crate::error::Error::dtype("a tensor for a Metal kernel", other, "f32, f16 or bf16")),
        }
    }

    /// Floats of a key and its value in threadgroup memory.
    fn row(self) -> usize {
        self.d.next_multiple_of(4) + self.d_v.next_multiple_of(4)
    }

    /// Keys in threadgroup memory at a time: a multiple of 4.
    pub fn keys(self) -> usize {
        (TILE_BYTES / size_of::<f32>() / self.row() / 4 * 4).clamp(4, 32)
    }

    /// Bytes of threadgroup memory.
    pub fn tile_bytes(self) -> usize {
        self.keys() * self.row() * size_of::<f32>()
    }
}

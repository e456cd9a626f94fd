//! Which kernel a call takes, and in what sizes.

use candle_core::DType;

use crate::kernels::cuda::Gpu;

/// What a kernel does with scores besides scaling them and looking at ranges of keys: bits, as in `source/types.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Features(pub u32);

impl Features {
    pub const SOFTCAP: u32 = 1;
    pub const SLOPES: u32 = 2;
    pub const BIAS: u32 = 4;
    pub const KEEP: u32 = 8;
    pub const SEGMENTS: u32 = 16;
}

/// What there is to be known of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// f32, f16 or bf16.
    pub dtype: DType,
    pub d: usize,
    pub d_v: usize,
    /// Key-value heads of all rows of the batch.
    pub jobs: usize,
    /// Queries of a job times the heads that share its key-value head; of the longest row in a ragged batch.
    pub rows: usize,
    /// Keys of a row of the batch, those that no mask knows included; of the longest row.
    pub keys: usize,
    pub features: Features,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// f32 on ordinary cores.
    Simt,
    /// 16-bit types on tensor cores.
    TensorCores,
}

/// A kernel in certain sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub kind: Kind,
    pub dtype: DType,
    pub features: Features,
    /// Numbers of a head, rounded up to what the kernel steps by.
    pub d: usize,
    pub d_v: usize,
    /// Queries and keys of a tile.
    pub rows: usize,
    pub keys: usize,
    pub threads: usize,
    /// Whether several blocks share the keys of a tile of queries.
    pub split: bool,
}

/// Warps of a block that puts the parts of split keys together.
const COMBINE_WARPS: usize = 4;

/// The largest head that the kernels keep in their registers.
const LARGEST_HEAD: usize = 256;

/// `(rows, keys, threads)` for heads of at most so many numbers, the largest tiles first. The last of each fits any GPU.
type Tiles = [(usize, &'static [(usize, usize, usize)])];

const SIMT: &Tiles = &[
    (64, &[(128, 64, 128), (128, 32, 128), (64, 64, 128), (32, 32, 128), (16, 64, 128)]),
    (128, &[(128, 64, 256), (64, 32, 128), (32, 32, 128), (16, 32, 128)]),
    (LARGEST_HEAD, &[(64, 32, 256), (32, 16, 128), (16, 8, 128)]),
];

const TENSOR_CORES: &Tiles = &[
    (64, &[(128, 64, 128), (64, 64, 128)]),
    (128, &[(128, 64, 256), (64, 64, 128), (64, 32, 128)]),
    (LARGEST_HEAD, &[(128, 64, 256), (64, 32, 128), (64, 16, 128)]),
];

impl Variant {
    /// The kernel for a call on a GPU; `None` if heads are larger than [`LARGEST_HEAD`].
    pub(crate) fn of(shape: Shape, gpu: Gpu) -> Option<Self> {
        let kind = match shape.dtype {
            DType::F32 => Kind::Simt,
            _ if gpu.capability < 80 => Kind::Simt,
            _ => Kind::TensorCores,
        };
        let (step, tiles) = match kind {
            Kind::Simt => (32, SIMT),
            Kind::TensorCores => (16, TENSOR_CORES),
        };
        let (d, d_v) = (shape.d.next_multiple_of(step), shape.d_v.next_multiple_of(step));
        let sizes = tiles.iter().find(|(most, _)| d.max(d_v) <= *most).map_or(&[][..], |(_, sizes)| *sizes);
        let mut fitting = sizes
            .iter()
            .map(|&(rows, keys, threads)| Self {
                kind,
                dtype: shape.dtype,
                features: shape.features,
                d,
                d_v,
                rows,
                keys,
                threads,
                split: false,
            })
            .filter(|variant| variant.shared_bytes() <= gpu.shared_memory);
        // Large tiles read the keys less often, but only pay where they leave no part of the GPU without work.
        let busy = |variant: &Self| {
            variant.rows < 2 * shape.rows && variant.blocks(shape.jobs, shape.rows) >= gpu.multiprocessors
        };
        let whole = fitting.clone().find(busy).or(fitting.next_back())?;
        Some(Self { split: whole.splits(shape, gpu) > 1, ..whole })
    }

    /// How many blocks share the keys of a tile of queries, so that no part of the GPU is without work: a decoder's step
    /// has one tile for each key-value head.
    pub(crate) fn splits(&self, shape: Shape, gpu: Gpu) -> usize {
        let blocks = self.blocks(shape.jobs, shape.rows);
        if blocks == 0 || 2 * blocks > gpu.multiprocessors {
            return 1;
        }
        // Less than four tiles a block are not worth the second launch.
        let most = (shape.keys.div_ceil(self.keys) / 4).max(1);
        (2 * gpu.multiprocessors / blocks).min(most)
    }

    /// Threads of a block of `combine`, and bytes of shared memory for heads of `d_v` numbers.
    pub(crate) fn combine(d_v: usize) -> (usize, usize) {
        (32 * COMBINE_WARPS, 4 * COMBINE_WARPS * (d_v + 2))
    }

    /// Blocks of a launch.
    pub(crate) fn blocks(&self, jobs: usize, rows: usize) -> usize {
        jobs * rows.div_ceil(self.rows)
    }

    /// Bytes of shared memory of a block.
    pub(crate) fn shared_bytes(&self) -> usize {
        const EXTENT: usize = 16;
        let Self { d, d_v, rows, keys, .. } = *self;
        EXTENT
            + match self.kind {
                Kind::Simt => 4 * ((rows + keys) * (d + 4) + keys * (d_v + 4) + rows * (keys + 8)),
                Kind::TensorCores => 2 * ((rows + keys) * (d + 8) + keys * (d_v + 8)),
            }
    }

    /// The macros that make the kernel this one, `NAME=VALUE`.
    pub(crate) fn definitions(&self) -> Vec<String> {
        let Self { d, d_v, rows, keys, threads, features: Features(features), .. } = self;
        let mut all = vec![
            ("ELEMENT", element(self.dtype)),
            ("FEATURES", *features as usize),
            ("D", *d),
            ("DV", *d_v),
            ("BN", *keys),
            ("THREADS", *threads),
            ("TENSOR_CORES", usize::from(self.kind == Kind::TensorCores)),
            ("SPLIT", usize::from(self.split)),
            ("COMBINE_WARPS", COMBINE_WARPS),
        ];
        match self.kind {
            Kind::Simt => all.push(("BM", *rows)),
            Kind::TensorCores => all.extend([("WARPS", threads / 32), ("TILES", rows / (threads / 2))]),
        }
        all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// The kernel's source, on a GPU or on the emulator.
    pub(crate) fn source(&self, device: &str) -> String {
        let kernel = match self.kind {
            Kind::Simt => include_str!("source/simt.cuh"),
            Kind::TensorCores => include_str!("source/tensor_core.cuh"),
        };
        let common = [
            include_str!("source/element.cuh"),
            include_str!("source/types.cuh"),
            include_str!("source/job.cuh"),
            include_str!("source/mask.cuh"),
            include_str!("source/output.cuh"),
        ];
        [device, &common.join("\n"), kernel].join("\n")
    }
}

/// The number that stands for an element type in the sources.
pub(super) fn element(dtype: DType) -> usize {
    match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 0,
    }
}

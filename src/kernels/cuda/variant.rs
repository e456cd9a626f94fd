//! Kernel variants: which attention kernel a problem uses, and its tile sizes.

use candle_core::DType;

use crate::kernels::cuda::Gpu;

/// Changes of scores besides their scale and a range of keys: the flags of `source/types.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Features(pub u32);

impl Features {
    pub const SOFTCAP: u32 = 1;
    pub const SLOPES: u32 = 2;
    pub const BIAS: u32 = 4;
    pub const KEEP: u32 = 8;
    pub const SEGMENTS: u32 = 16;
}

/// Problem shape, from which a kernel variant is selected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProblemShape {
    /// f32, f16 or bf16.
    pub dtype: DType,
    /// Head dimension of queries and keys.
    pub d: usize,
    /// Head dimension of values.
    pub d_v: usize,
    /// Key-value heads of all sequences.
    pub work_items: usize,
    /// Queries per work item times the query heads that share its key-value head; of the longest sequence if ragged.
    pub query_rows: usize,
    /// Keys per sequence including appended ones; of the longest sequence if ragged.
    pub keys: usize,
    pub features: Features,
}

/// The two attention kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum KernelKind {
    /// `source/simt.cuh`: f32 arithmetic on CUDA cores, any element type.
    Simt,
    /// `source/tensor_core.cuh`: f16 and bf16 on tensor cores.
    TensorCore,
}

/// An attention kernel with its compile-time sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub kind: KernelKind,
    pub dtype: DType,
    pub features: Features,
    /// Head dimension of queries and keys, rounded up to the kernel's step.
    pub head_dim: usize,
    /// Head dimension of values, rounded up to the kernel's step.
    pub head_dim_v: usize,
    /// Query rows per tile.
    pub block_m: usize,
    /// Keys per tile.
    pub block_n: usize,
    pub threads: usize,
    /// Whether several blocks share the keys of a tile of queries.
    pub split: bool,
}

/// Warps per block of the kernel that combines split keys.
const COMBINE_WARPS: usize = 4;

/// Largest head dimension whose outputs fit in registers.
const MAX_HEAD_DIM: usize = 256;

/// `(block_m, block_n, threads)` per largest head dimension, largest tiles first. The last tile of each list fits any
/// GPU. `docs/devices.md` has the registers and warps of each on an H100.
type Tiles = [(usize, &'static [(usize, usize, usize)])];

const SIMT: &Tiles = &[
    (64, &[(128, 64, 128), (128, 32, 128), (64, 64, 128), (32, 32, 128), (16, 64, 128)]),
    (128, &[(128, 64, 256), (64, 32, 128), (32, 32, 128), (16, 32, 128)]),
    (MAX_HEAD_DIM, &[(64, 32, 256), (32, 16, 128), (16, 8, 128)]),
];

const TENSOR_CORE: &Tiles = &[
    (64, &[(128, 64, 128), (64, 64, 128)]),
    (128, &[(128, 64, 256), (64, 64, 128), (64, 32, 128)]),
    (MAX_HEAD_DIM, &[(128, 64, 256), (64, 32, 128), (64, 16, 128)]),
];

impl Variant {
    /// The variant for a problem on a GPU; `None` if the head dimension exceeds [`MAX_HEAD_DIM`].
    pub(crate) fn select(shape: ProblemShape, gpu: Gpu) -> Option<Self> {
        let kind =
            if shape.dtype == DType::F32 || gpu.capability < 80 { KernelKind::Simt } else { KernelKind::TensorCore };
        let (step, tiles) = match kind {
            KernelKind::Simt => (32, SIMT),
            KernelKind::TensorCore => (16, TENSOR_CORE),
        };
        let (head_dim, head_dim_v) = (shape.d.next_multiple_of(step), shape.d_v.next_multiple_of(step));
        let largest = head_dim.max(head_dim_v);
        let sizes = tiles.iter().find(|(limit, _)| largest <= *limit).map_or(&[][..], |(_, sizes)| *sizes);
        let mut fitting = sizes
            .iter()
            .map(|&(block_m, block_n, threads)| Self {
                kind,
                dtype: shape.dtype,
                features: shape.features,
                head_dim,
                head_dim_v,
                block_m,
                block_n,
                threads,
                split: false,
            })
            .filter(|variant| variant.shared_bytes() <= gpu.shared_memory);
        // Large tiles read the keys less often, but pay only if there are enough of them for every multiprocessor.
        let busy = |variant: &Self| {
            variant.block_m < shape.query_rows.saturating_mul(2)
                && variant.blocks(shape.work_items, shape.query_rows) >= gpu.multiprocessors
        };
        let whole = fitting.clone().find(busy).or(fitting.next_back())?;
        Some(Self { split: whole.splits(shape, gpu) > 1, ..whole })
    }

    /// How many blocks share the keys of a tile of queries. Without splits, a decoding step would have one tile per
    /// key-value head and leave most multiprocessors idle.
    pub(crate) fn splits(&self, shape: ProblemShape, gpu: Gpu) -> usize {
        let blocks = self.blocks(shape.work_items, shape.query_rows);
        if blocks == 0 || blocks.saturating_mul(2) > gpu.multiprocessors {
            return 1;
        }
        // Fewer than four key tiles per block do not pay for the second launch.
        let limit = (shape.keys.div_ceil(self.block_n) / 4).max(1);
        (2 * gpu.multiprocessors / blocks).min(limit)
    }

    /// Threads and shared memory in bytes of a block of the kernel `combine`.
    pub(crate) fn combine_block(d_v: usize) -> (usize, usize) {
        (32 * COMBINE_WARPS, 4 * COMBINE_WARPS * (d_v + 2))
    }

    /// Blocks of a launch, splits excluded.
    pub(crate) fn blocks(&self, work_items: usize, query_rows: usize) -> usize {
        work_items.saturating_mul(query_rows.div_ceil(self.block_m))
    }

    /// Shared memory per block, in bytes: tiles of queries, keys, values and, on CUDA cores, probabilities.
    pub(crate) fn shared_bytes(&self) -> usize {
        const KEY_RANGE: usize = 16;
        let Self { head_dim, head_dim_v, block_m, block_n, .. } = *self;
        let tiles = match self.kind {
            KernelKind::Simt => {
                let probabilities = block_m * (block_n + 8);
                4 * ((block_m + block_n) * (head_dim + 4) + block_n * (head_dim_v + 4) + probabilities)
            }
            KernelKind::TensorCore => 2 * ((block_m + block_n) * (head_dim + 8) + block_n * (head_dim_v + 8)),
        };
        KEY_RANGE + tiles
    }

    /// Macro definitions for the compiler, `NAME=VALUE`.
    pub(crate) fn definitions(&self) -> Vec<String> {
        let Self { threads, block_m, .. } = *self;
        let mut all = vec![
            ("ELEMENT", element_id(self.dtype)),
            ("FEATURES", self.features.0 as usize),
            ("HEAD_DIM", self.head_dim),
            ("HEAD_DIM_V", self.head_dim_v),
            ("BLOCK_N", self.block_n),
            ("THREADS", threads),
            ("TENSOR_CORES", usize::from(self.kind == KernelKind::TensorCore)),
            ("SPLIT", usize::from(self.split)),
            ("COMBINE_WARPS", COMBINE_WARPS),
        ];
        match self.kind {
            KernelKind::Simt => all.push(("BLOCK_M", block_m)),
            KernelKind::TensorCore => all.extend([("WARPS", threads / 32), ("TILES", block_m / (threads / 2))]),
        }
        all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// The source of the kernel after `device`, which is `device.cuh` or the emulator.
    pub(crate) fn source(&self, device: &str) -> String {
        let kernel = match self.kind {
            KernelKind::Simt => include_str!("source/simt.cuh"),
            KernelKind::TensorCore => include_str!("source/tensor_core.cuh"),
        };
        let common = [
            include_str!("source/element.cuh"),
            include_str!("source/types.cuh"),
            include_str!("source/work_item.cuh"),
            include_str!("source/mask.cuh"),
            include_str!("source/non_finite.cuh"),
            include_str!("source/output.cuh"),
        ];
        [device, &common.join("\n"), kernel].join("\n")
    }
}

/// Value of the macro ELEMENT for an element type.
pub(super) fn element_id(dtype: DType) -> usize {
    match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 0,
    }
}

/// Parameters of an attention launch, the struct of `source/types.cuh`, which documents each field. Addresses are
/// device addresses, 0 for null; strides count elements.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct AttentionParams {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub out: u64,
    pub sinks: u64,
    pub slopes: u64,
    pub bias: u64,
    pub keep: u64,
    pub query_segments: u64,
    pub key_segments: u64,
    pub key_lengths: u64,
    pub padding_lengths: u64,
    pub query_lengths: u64,
    pub query_starts: u64,
    pub offsets: u64,
    pub partials: u64,
    pub q_strides: [i64; 3],
    pub k_strides: [i64; 3],
    pub v_strides: [i64; 3],
    pub bias_strides: [i64; 4],
    pub keep_strides: [i64; 4],
    pub b: i32,
    pub h: i32,
    pub h_kv: i32,
    pub s_q: i32,
    pub s_kv: i32,
    pub appended_keys: i32,
    pub d: i32,
    pub d_v: i32,
    pub window_size_left: i32,
    pub window_size_right: i32,
    pub symmetric: i32,
    pub vectorized: i32,
    pub splits: i32,
    pub scale: f32,
    pub softcap: f32,
}

// SAFETY: `repr(C)` and plain numbers, with the fields of the struct in `source/types.cuh` in the same order.
#[cfg(feature = "cuda")]
unsafe impl candle_core::cuda_backend::cudarc::driver::DeviceRepr for AttentionParams {}

#[cfg(feature = "cuda")]
impl AttentionParams {
    /// The flags of what the kernel does to scores, from the addresses that are not null.
    pub(crate) fn features(&self) -> Features {
        use Features;

        let flags = [
            (Features::SOFTCAP, self.softcap != 0.0),
            (Features::SLOPES, self.slopes != 0),
            (Features::BIAS, self.bias != 0),
            (Features::KEEP, self.keep != 0),
            (Features::SEGMENTS, self.query_segments != 0),
        ];
        Features(flags.into_iter().filter(|(_, used)| *used).map(|(flag, _)| flag).sum())
    }
}

/// Whether rows of `row_len` elements of `T` at these addresses (0 for null) and with these strides can be read 16
/// bytes at a time.
#[cfg(feature = "cuda")]
pub(crate) fn vectorizable<T>(addresses: &[u64], strides: &[i64], row_len: usize) -> bool {
    let vector = 16 / size_of::<T>();
    addresses.iter().all(|address| address.is_multiple_of(16))
        && strides.iter().all(|stride| stride.unsigned_abs().is_multiple_of(vector as u64))
        && row_len.is_multiple_of(vector)
}

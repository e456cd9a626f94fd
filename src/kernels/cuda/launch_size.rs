//! The size of a launch of the attention kernel, checked before anything is allocated for it.

use crate::error::{Error, Result};
use crate::kernels::cuda::device::Gpu;
use crate::kernels::cuda::variant::{ProblemShape, Variant};

/// A variant of the attention kernel and the blocks of its launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchSize {
    pub variant: Variant,
    /// Blocks without splits; 0 only where there are no queries.
    pub blocks: u32,
    /// Blocks that share the keys of a tile of queries.
    pub splits: usize,
    /// Elements of the partial results; 0 without splits.
    pub partials: usize,
    /// Elements of the output.
    pub outputs: usize,
}

impl LaunchSize {
    /// The launch for a problem whose tokens have `query_heads` query heads together.
    ///
    /// # Errors
    /// A head, a sequence or a batch that is too large for the kernels.
    pub(crate) fn new(shape: ProblemShape, query_heads: usize, gpu: Gpu) -> Result<Self> {
        if let Some(count) = [shape.query_rows, shape.keys].into_iter().find(|count| *count > MAX_COUNT) {
            return Err(Error::value("the number of keys, or of queries per key-value head,", count, "at most 2^30"));
        }
        let variant = Variant::select(shape, gpu)
            .ok_or_else(|| Error::value("the head dimension", shape.d.max(shape.d_v), "at most 256"))?;
        let too_large = || {
            let found = format!("{} key-value heads of {} queries", shape.work_items, shape.query_rows);
            Error::value("the batch", found, "less than 2^31 thread blocks")
        };
        let blocks = variant.blocks(shape.work_items, shape.query_rows);
        let grid = |blocks: usize| i32::try_from(blocks).map_err(|_| too_large());
        // Each query head is in a block, which writes its output: without blocks the output would be arbitrary memory.
        if (blocks == 0) != (query_heads == 0) {
            return Err(Error::value(
                "the number of query heads",
                query_heads,
                format!("that of {blocks} thread blocks"),
            ));
        }
        let splits = variant.splits(shape, gpu);
        if splits > 1 {
            grid(query_heads)?;
        }
        let elements = |size: usize| query_heads.checked_mul(size).ok_or_else(too_large);
        let partials = if splits > 1 { elements(splits * (shape.d_v + 2))? } else { 0 };
        Ok(Self { variant, blocks: grid(blocks)? as u32, splits, partials, outputs: elements(shape.d_v)? })
    }
}

/// Largest count of sequences, heads, queries, keys or elements of a row. Kernels count in 32 signed bits, go past the
/// last query or key by up to a tile, and add up to two counts.
pub(crate) const MAX_COUNT: usize = 1 << 30;

/// A count as a kernel takes it; `name` is what it counts.
pub(crate) fn to_i32(name: &str, count: usize) -> Result<i32> {
    match i32::try_from(count) {
        Ok(small) if count <= MAX_COUNT => Ok(small),
        _ => Err(Error::value(format!("the number of {name}"), count, "at most 2^30 for a kernel on an NVIDIA GPU")),
    }
}

/// Positions as a kernel takes them: counts that may be negative.
pub(crate) fn to_i32_positions(name: &str, positions: &[i64]) -> Result<Vec<i32>> {
    let small = |position: &i64| {
        let fits = position.unsigned_abs() <= MAX_COUNT as u64;
        let expected = "from -2^30 to 2^30 for a kernel on an NVIDIA GPU";
        i32::try_from(*position).ok().filter(|_| fits).ok_or_else(|| Error::value(name, position, expected))
    };
    positions.iter().map(small).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::kernels::cuda::Features;

    const GPU: Gpu = Gpu { capability: 90, multiprocessors: 132, shared_memory: 227 << 10 };

    #[test]
    fn launches_that_would_not_write_every_output_are_errors() {
        let shape = ProblemShape {
            dtype: DType::F32,
            d: 64,
            d_v: 64,
            work_items: 4,
            query_rows: 10,
            keys: 10,
            features: Features::default(),
        };
        let size = LaunchSize::new(shape, 40, GPU).unwrap();
        assert_eq!((size.blocks, size.splits, size.partials, size.outputs), (4, 1, 0, 40 * 64));
        let split = LaunchSize::new(ProblemShape { keys: 5000, ..shape }, 40, GPU).unwrap();
        assert!(split.variant.split && split.partials == 40 * split.splits * 66);
        assert_eq!(LaunchSize::new(ProblemShape { work_items: 0, ..shape }, 0, GPU).unwrap().blocks, 0);
        let refused = [
            (ProblemShape { work_items: 0, ..shape }, 40),
            (ProblemShape { query_rows: 0, ..shape }, 40),
            (ProblemShape { query_rows: (1 << 32) + 5, ..shape }, 40),
            (ProblemShape { keys: (1 << 30) + 1, ..shape }, 40),
            (ProblemShape { work_items: 1 << 32, ..shape }, 40),
            (ProblemShape { work_items: usize::MAX, query_rows: 1 << 30, ..shape }, 40),
            (ProblemShape { d: 257, ..shape }, 40),
            (shape, usize::MAX),
        ];
        for (shape, query_heads) in refused {
            LaunchSize::new(shape, query_heads, GPU).unwrap_err();
        }
    }
}

#[cfg(test)]
mod count_tests {
    use super::*;

    #[test]
    fn counts_that_a_kernel_cannot_take_are_errors() {
        assert_eq!(to_i32("keys", MAX_COUNT).unwrap(), 1 << 30);
        for count in [MAX_COUNT + 1, 1 << 31, (1 << 32) + 5, 1 << 32, usize::MAX] {
            let error = to_i32("keys", count).unwrap_err().to_string();
            assert!(error.starts_with(&format!("the number of keys is {count}, expected at most 2^30")), "{error}");
        }
        assert_eq!(to_i32_positions("a position", &[-(1 << 30), 5, 1 << 30]).unwrap(), [-(1 << 30), 5, 1 << 30]);
        for position in [i64::MIN, -(1 << 32), (1 << 30) + 1, 1 << 32, i64::MAX] {
            assert!(to_i32_positions("a position", &[0, position]).is_err());
        }
    }
}

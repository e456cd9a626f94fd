//! The size of a launch of the attention kernel, checked before anything is allocated for it.

use super::count::MAX_COUNT;
use super::device::Gpu;
use super::variant::{ProblemShape, Variant};
use crate::error::{Error, Result};

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

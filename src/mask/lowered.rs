//! The lowered mask: rules over positions and tensors, as fused kernels read them.

use candle_attention_kernels as kernels;
use candle_attention_kernels::{Broadcast, Distances, Lengths, Mask, MaskStructure};
use candle_core::Tensor;

use crate::error::Result;
use crate::mask::kinds::DistanceEmbeddings;
use crate::tensor::{Memory, Slice};

/// A rule over positions that kernels apply without a tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TermStructure<'a> {
    /// At most `left` keys before and `right` keys after a query's own position are visible; `None` is no limit.
    Window { left: Option<usize>, right: Option<usize> },
    /// The first keys are visible.
    Lengths(&'a Lengths),
    /// `-slopes[h] · distance` is added to the scores.
    Distances { slopes: &'a [f64], symmetric: bool },
}

/// A mask in the form that fused kernels read: rules over positions where there are some, tensors for the rest.
#[derive(Debug, Default)]
pub(crate) struct LoweredMask {
    pub structure: MaskStructure,
    /// Segment ids of queries `(b, s_q)` and keys `(b, s_kv)`, i64.
    pub segments: Vec<[Tensor; 2]>,
    /// u8 tensors that broadcast to `(b, h, s_q, s_kv)`, 4-D; nonzero = visible.
    pub keep: Vec<Tensor>,
    /// f32 tensors that broadcast to `(b, h, s_q, s_kv)`, 4-D; a value at or below the lowest finite f32 hides the key.
    pub bias: Vec<Tensor>,
    /// Whether the kernel reads the next two. Otherwise what they describe comes as tensors.
    pub reads_distances: bool,
    pub tables: Vec<DistanceTable>,
    pub embeddings: Option<DistanceEmbeddings>,
}

/// A bias per head and distance: `(h, distances)`, of which the first is the distance `first`.
#[derive(Debug)]
pub(crate) struct DistanceTable {
    pub values: Vec<f32>,
    pub first: i64,
    pub distances: usize,
}

impl DistanceTable {
    /// The argument of the CPU kernel.
    fn kernel_table(&self) -> kernels::DistanceTable<'_> {
        kernels::DistanceTable { values: &self.values, first: self.first, distances: self.distances }
    }
}

impl LoweredMask {
    /// Adds a rule that needs no tensor.
    pub(crate) fn add_structure(&mut self, structure: TermStructure) {
        match structure {
            TermStructure::Window { left, right } => self.structure.narrow_window(left, right),
            TermStructure::Lengths(lengths) => self.structure.lengths.push(lengths.clone()),
            TermStructure::Distances { slopes, symmetric } => {
                let slopes = slopes.iter().map(|slope| *slope as f32).collect();
                self.structure.distances.push(Distances { slopes, symmetric });
            }
        }
    }

    /// The memory of the tensors, which must be on the CPU.
    pub(crate) fn memory(&self) -> MaskMemory<'_> {
        MaskMemory {
            structure: &self.structure,
            segments: self.segments.iter().map(|ids| ids.each_ref().map(Memory::of)).collect(),
            keep: self.keep.iter().map(Memory::of).collect(),
            bias: self.bias.iter().map(Memory::of).collect(),
            tables: &self.tables,
            embeddings: self.embeddings.as_ref().map(|of| {
                let [c2p, p2c] = [&of.c2p, &of.p2c].map(|values| values.as_ref().map(Memory::of));
                EmbeddingMemory { c2p, p2c, of }
            }),
        }
    }
}

/// Embeddings of distances `of`, whose tensors are not locked yet, or are.
struct EmbeddingMemory<'a, T> {
    c2p: Option<T>,
    p2c: Option<T>,
    of: &'a DistanceEmbeddings,
}

/// A lowered mask whose tensors are not locked yet: see [`Memory`].
pub(crate) struct MaskMemory<'a> {
    structure: &'a MaskStructure,
    segments: Vec<[Memory<'a>; 2]>,
    keep: Vec<Memory<'a>>,
    bias: Vec<Memory<'a>>,
    tables: &'a [DistanceTable],
    embeddings: Option<EmbeddingMemory<'a, Memory<'a>>>,
}

impl<'a> MaskMemory<'a> {
    /// Locks the tensors for reading.
    pub(crate) fn lock(&self) -> Result<MaskSlices<'a>> {
        Ok(MaskSlices {
            structure: self.structure,
            segments: self.segments.iter().map(|[q, k]| Ok([q.lock()?, k.lock()?])).collect::<Result<_>>()?,
            keep: self.keep.iter().map(Memory::lock).collect::<Result<_>>()?,
            bias: self.bias.iter().map(Memory::lock).collect::<Result<_>>()?,
            tables: self.tables,
            embeddings: self.embeddings.as_ref().map(EmbeddingMemory::lock).transpose()?,
        })
    }
}

/// A lowered mask whose tensors are locked for reading.
pub(crate) struct MaskSlices<'a> {
    structure: &'a MaskStructure,
    segments: Vec<[Slice<'a, i64>; 2]>,
    keep: Vec<Slice<'a, u8>>,
    bias: Vec<Slice<'a, f32>>,
    tables: &'a [DistanceTable],
    embeddings: Option<EmbeddingMemory<'a, Slice<'a, f32>>>,
}

impl<'a> EmbeddingMemory<'a, Memory<'a>> {
    fn lock(&self) -> Result<EmbeddingMemory<'a, Slice<'a, f32>>> {
        let lock = |memory: &Option<Memory<'a>>| memory.as_ref().map(Memory::lock).transpose();
        Ok(EmbeddingMemory { c2p: lock(&self.c2p)?, p2c: lock(&self.p2c)?, of: self.of })
    }
}

impl EmbeddingMemory<'_, Slice<'_, f32>> {
    /// The argument of the CPU kernel; the tensors are contiguous.
    fn kernel_embeddings(&self) -> kernels::DistanceEmbeddings<'_> {
        let DistanceEmbeddings { c2p, p2c, count, indices, first } = self.of;
        let elements = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, Tensor::elem_count);
        kernels::DistanceEmbeddings {
            c2p: self.c2p.as_ref().map(|values| &values.data()[..elements(c2p)]),
            p2c: self.p2c.as_ref().map(|values| &values.data()[..elements(p2c)]),
            count: *count,
            indices,
            first: *first,
        }
    }
}

impl MaskSlices<'_> {
    /// The argument of the CPU kernel.
    pub(crate) fn kernel_mask(&self) -> Mask<'_> {
        Mask {
            structure: self.structure.clone(),
            segments: self.segments.iter().map(|[q, k]| [ids_along(q, 2), ids_along(k, 3)]).collect(),
            keep: self.keep.iter().map(|keep| Broadcast { data: keep.data(), strides: keep.strides() }).collect(),
            bias: self.bias.iter().map(|bias| Broadcast { data: bias.data(), strides: bias.strides() }).collect(),
            tables: self.tables.iter().map(DistanceTable::kernel_table).collect(),
            embeddings: self.embeddings.as_ref().map(EmbeddingMemory::kernel_embeddings),
        }
    }
}

/// Segment ids `(b, s)` along dimension `axis` of `(b, h, s_q, s_kv)`.
fn ids_along<'a>(ids: &'a Slice<i64>, axis: usize) -> Broadcast<'a, i64> {
    let [b, s] = ids.strides();
    let mut strides = [b, 0, 0, 0];
    strides[axis] = s;
    Broadcast { data: ids.data(), strides }
}

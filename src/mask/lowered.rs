//! The lowered mask: rules over positions and tensors, as fused kernels read them.

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::cpu::{Broadcast, Distances, Lengths, Mask, MaskStructure};
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
        }
    }
}

/// A lowered mask whose tensors are not locked yet: see [`Memory`].
pub(crate) struct MaskMemory<'a> {
    structure: &'a MaskStructure,
    segments: Vec<[Memory<'a>; 2]>,
    keep: Vec<Memory<'a>>,
    bias: Vec<Memory<'a>>,
}

impl<'a> MaskMemory<'a> {
    /// Locks the tensors for reading.
    pub(crate) fn lock(&self) -> Result<MaskSlices<'a>> {
        Ok(MaskSlices {
            structure: self.structure,
            segments: self.segments.iter().map(|[q, k]| Ok([q.lock()?, k.lock()?])).collect::<Result<_>>()?,
            keep: self.keep.iter().map(Memory::lock).collect::<Result<_>>()?,
            bias: self.bias.iter().map(Memory::lock).collect::<Result<_>>()?,
        })
    }
}

/// A lowered mask whose tensors are locked for reading.
pub(crate) struct MaskSlices<'a> {
    structure: &'a MaskStructure,
    segments: Vec<[Slice<'a, i64>; 2]>,
    keep: Vec<Slice<'a, u8>>,
    bias: Vec<Slice<'a, f32>>,
}

impl MaskSlices<'_> {
    /// The argument of the CPU kernel.
    pub(crate) fn kernel_mask(&self) -> Mask<'_> {
        Mask {
            structure: self.structure.clone(),
            segments: self.segments.iter().map(|[q, k]| [ids_along(q, 2), ids_along(k, 3)]).collect(),
            keep: self.keep.iter().map(|keep| Broadcast { data: keep.data(), strides: keep.strides() }).collect(),
            bias: self.bias.iter().map(|bias| Broadcast { data: bias.data(), strides: bias.strides() }).collect(),
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

//! The lowered mask: rules over positions and tensors, as fused kernels read them.

use std::slice;

use candle_attention_kernels as kernels;
use candle_attention_kernels::{Broadcast, Distances, Lengths, Mask, MaskStructure, PairRule, ScoreRule};
use candle_core::{Tensor, WithDType};

use crate::error::Result;
use crate::mask::kinds::{DistanceEmbeddings, FunctionRule, GridBias, ScoreFunctionCall, Window};
use crate::tensor::{Memory, Slice};

/// A rule over positions that kernels apply without a tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TermStructure<'a> {
    /// The keys near a query's own position are visible.
    Window(Window),
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
    /// Whether the CPU kernel reads it, and so the next five. Otherwise what they describe comes as tensors.
    pub is_for_cpu_kernel: bool,
    pub tables: Vec<DistanceTable>,
    pub embeddings: Option<DistanceEmbeddings>,
    /// The tensors of the grids are f32.
    pub grids: Vec<GridBias>,
    pub functions: Vec<FunctionRule>,
    pub score_functions: Vec<ScoreFunctionCall>,
}

/// A bias per head and distance: `(h, distances)`, of which the first is the distance `first`; times a factor of the
/// query, if there are `factors`, f32 `(b, h, s_q, 1)`.
#[derive(Debug)]
pub(crate) struct DistanceTable {
    pub values: Vec<f32>,
    pub first: i64,
    pub distances: usize,
    pub factors: Option<Tensor>,
}

impl LoweredMask {
    /// Adds a rule that needs no tensor.
    pub(crate) fn add_structure(&mut self, structure: TermStructure) {
        match structure {
            TermStructure::Window(Window { left, right }) => self.structure.narrow_window(left, right),
            TermStructure::Lengths(lengths) => self.structure.lengths.push(lengths.clone()),
            TermStructure::Distances { slopes, symmetric } => {
                let slopes = slopes.iter().map(|slope| *slope as f32).collect();
                self.structure.distances.push(Distances { slopes, symmetric });
            }
        }
    }

    /// The error of a function that has panicked in a kernel.
    pub(crate) fn check_functions(&self) -> Result<()> {
        self.functions.iter().try_for_each(FunctionRule::failed)?;
        self.score_functions.iter().try_for_each(ScoreFunctionCall::failed)
    }

    /// The memory of the tensors, which must be on the CPU.
    pub(crate) fn memory(&self) -> MaskMemory<'_> {
        let embeddings = self.embeddings.iter().flat_map(|distances| [&distances.c2p, &distances.p2c]).flatten();
        let factors = self.tables.iter().filter_map(|table| table.factors.as_ref());
        let grids = self.grids.iter().flat_map(|grid| [&grid.rows, &grid.columns]);
        let tensors = self.segments.iter().flatten().chain(&self.keep).chain(&self.bias);
        let tensors = tensors.chain(factors).chain(grids).chain(embeddings);
        MaskMemory { mask: self, tensors: tensors.map(Memory::new).collect() }
    }
}

/// A lowered mask whose tensors are not locked yet: see [`Memory`].
pub(crate) struct MaskMemory<'a> {
    mask: &'a LoweredMask,
    /// The tensors of segments, `keep`, `bias`, factors of tables, grids and embeddings.
    tensors: Vec<Memory<'a>>,
}

impl<'a> MaskMemory<'a> {
    /// Locks the tensors for reading.
    pub(crate) fn lock(&self) -> Result<MaskSlices<'a>> {
        let mask = self.mask;
        let factors = mask.tables.iter().filter(|table| table.factors.is_some()).count();
        let tensors = &mut self.tensors.iter();
        Ok(MaskSlices {
            mask,
            segments: lock_next(tensors, 2 * mask.segments.len())?,
            keep: lock_next(tensors, mask.keep.len())?,
            bias: lock_next(tensors, mask.bias.len())?,
            factors: lock_next(tensors, factors)?,
            grids: lock_next(tensors, 2 * mask.grids.len())?,
            embeddings: tensors.map(Memory::lock).collect::<Result<_>>()?,
        })
    }
}

/// Locks the next `count` tensors.
fn lock_next<'a, T: WithDType>(tensors: &mut slice::Iter<Memory<'a>>, count: usize) -> Result<Vec<Slice<'a, T>>> {
    tensors.take(count).map(Memory::lock).collect()
}

/// A lowered mask whose tensors are locked for reading.
pub(crate) struct MaskSlices<'a> {
    mask: &'a LoweredMask,
    /// Segment ids of queries and of keys, in turns.
    segments: Vec<Slice<'a, i64>>,
    keep: Vec<Slice<'a, u8>>,
    bias: Vec<Slice<'a, f32>>,
    /// The factors of those tables that have some.
    factors: Vec<Slice<'a, f32>>,
    /// Biases of rows and of columns, in turns.
    grids: Vec<Slice<'a, f32>>,
    embeddings: Vec<Slice<'a, f32>>,
}

impl MaskSlices<'_> {
    /// The argument of the CPU kernel.
    pub(crate) fn kernel_mask(&self) -> Mask<'_> {
        // Embeddings are contiguous; only those that there are have a slice.
        let mut embeddings = self.embeddings.iter();
        let mut values =
            |side: &Option<Tensor>| side.as_ref().and_then(|t| Some(&embeddings.next()?.data()[..t.elem_count()]));
        let mut factors = self.factors.iter();
        let tables = self.mask.tables.iter().map(|table| kernels::DistanceTable {
            values: &table.values,
            first: table.first,
            distances: table.distances,
            factors: table.factors.as_ref().and_then(|_| factors.next().map(broadcast)),
        });
        let parts = self.grids.as_chunks().0.iter();
        let grids = self.mask.grids.iter().zip(parts).map(|(grid, [rows, columns])| kernels::GridBias {
            rows: broadcast(rows),
            columns: broadcast(columns),
            grid: grid.grid(),
        });
        Mask {
            structure: self.mask.structure.clone(),
            segments: self.segments.as_chunks().0.iter().map(|[q, k]| [ids_along(q, 2), ids_along(k, 3)]).collect(),
            keep: self.keep.iter().map(broadcast).collect(),
            bias: self.bias.iter().map(broadcast).collect(),
            tables: tables.collect(),
            embeddings: self.mask.embeddings.as_ref().map(|distances| kernels::DistanceEmbeddings {
                c2p: values(&distances.c2p),
                p2c: values(&distances.p2c),
                count: distances.count,
                indices: &distances.indices,
                first: distances.first,
            }),
            grids: grids.collect(),
            rules: self.mask.functions.iter().map(|function| function as &dyn PairRule).collect(),
            score_rules: self.mask.score_functions.iter().map(|function| function as &dyn ScoreRule).collect(),
        }
    }
}

fn broadcast<'a, T: WithDType>(slice: &'a Slice<T>) -> Broadcast<'a, T> {
    Broadcast { data: slice.data(), strides: slice.strides() }
}

/// Segment ids `(b, s)` along dimension `axis` of `(b, h, s_q, s_kv)`.
fn ids_along<'a>(ids: &'a Slice<i64>, axis: usize) -> Broadcast<'a, i64> {
    let [b, s] = ids.strides();
    let mut strides = [b, 0, 0, 0];
    strides[axis] = s;
    Broadcast { data: ids.data(), strides }
}

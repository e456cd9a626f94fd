use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::kernels::cpu::{Distances, Lengths};
use crate::mask::dense::{Band, left_pad_dims, lowest_finite, to_4d};
use crate::mask::{AttentionMask, Part};

/// A mask with its structure kept: what fused kernels read.
#[derive(Debug, Default)]
pub(crate) struct Structure {
    pub lengths: Vec<Lengths>,
    pub distances: Vec<Distances>,
    /// The key at which query 0 of each row stands, if not at `s_kv - s_q`.
    pub starts: Option<Vec<i64>>,
    /// Keys seen before and after a query's own position.
    pub left: Option<usize>,
    pub right: Option<usize>,
    /// `(b, s_q)` and `(b, s_kv)`, i64.
    pub segments: Vec<[Tensor; 2]>,
    /// u8 that broadcast to `(b, h, s_q, s_kv)`, 4-D; nonzero = seen.
    pub keep: Vec<Tensor>,
    /// f32 that broadcast likewise; at or below the lowest finite f32 = hidden.
    pub bias: Vec<Tensor>,
}

impl AttentionMask {
    /// The mask's structure, its tensors brought to a device.
    pub(crate) fn structure(&self, device: &Device) -> Result<Structure> {
        let mut structure = Structure::default();
        if let Some(Band { left, right }) = Band::of(&self.parts) {
            (structure.left, structure.right) = (left, right);
        }
        let there = |mask: &Tensor| mask.to_device(device);
        for part in &self.parts {
            match part {
                Part::Keep(mask) => structure.keep.push(to_4d(&there(mask)?.ne(0f64)?)?),
                Part::Drop(mask) => structure.keep.push(to_4d(&there(mask)?.eq(0f64)?)?),
                Part::Additive(mask) => {
                    let mask = there(mask)?;
                    let mask = match mask.dtype() {
                        DType::F32 => mask,
                        dtype => {
                            let hidden = mask.le(lowest_finite(dtype))?;
                            let mask = mask.to_dtype(DType::F32)?;
                            hidden.where_cond(&Tensor::full(f32::MIN, mask.shape(), device)?, &mask)?
                        }
                    };
                    structure.bias.push(left_pad_dims(&mask)?);
                }
                Part::Lengths(rows) => structure.lengths.push(Lengths::Rows(rows.clone())),
                Part::QueryLengths(rows) => structure.lengths.push(Lengths::Queries(rows.clone())),
                Part::Distances { slopes, symmetric } => {
                    let slopes = slopes.iter().map(|slope| *slope as f32).collect();
                    structure.distances.push(Distances { slopes, symmetric: *symmetric });
                }
                Part::Padding(rows) => structure.lengths.push(Lengths::Padding(rows.clone())),
                Part::Starts(starts) => structure.starts = Some(starts.clone()),
                Part::Causal | Part::Window { .. } => {}
                Part::Segments { queries, keys } => {
                    let ids = |ids: &Tensor| there(ids)?.to_dtype(DType::I64)?.contiguous();
                    structure.segments.push([ids(queries)?, ids(keys)?]);
                }
            }
        }
        Ok(structure)
    }

    /// Whether a gradient would have to flow into the mask.
    pub(crate) fn tracks_gradient(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Additive(mask) if mask.track_op()))
    }
}
